"""Ring of transitions in memory that two processes share."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase, is_leaf_nontensor
from torch import Tensor

from unilab.errors import CollectorError, ConfigError

_HEADER_BYTES = mmap.PAGESIZE
_ALIGN = 64


@dataclass(frozen=True)
class Layout:
    """Entries of one transition, by who writes them and when."""

    transition: TensorDictBase
    """``[*batch]`` on the CPU, with every entry that the environment reads or writes."""
    root_keys: tuple[NestedKey, ...]
    input_keys: tuple[NestedKey, ...]
    """The action, and any other input of the environment that the policy writes."""
    next_keys: tuple[NestedKey, ...]

    @classmethod
    def of(cls, transition: TensorDictBase, input_keys: list[NestedKey]) -> Layout:
        """The layout of an environment's ``fake_tensordict()``."""
        keys = list(transition.keys(True, True, is_leaf=is_leaf_nontensor))
        for key in keys:
            if not isinstance(value := transition.get(key), Tensor):
                raise ConfigError(
                    f"entry {key!r} of the environment must be a tensor, got "
                    f"{type(value).__name__}: exclude it with a transform"
                )
        inputs = tuple(key for key in keys if key in input_keys)
        ahead = tuple(key for key in keys if isinstance(key, tuple) and key[0] == "next")
        root = tuple(key for key in keys if key not in inputs and key not in ahead)
        return cls(transition.cpu(), root, inputs, ahead)

    @property
    def keys(self) -> tuple[NestedKey, ...]:
        """All entries, in their order in memory."""
        return self.root_keys + self.input_keys + self.next_keys

    def size(self, keys: tuple[NestedKey, ...]) -> int:
        """Bytes of these entries in a slot, padding included."""
        return sum(-(-self.transition.get(key).nbytes // _ALIGN) * _ALIGN for key in keys)


class Ring:
    """``num_slots`` transitions as views of one block of bytes; tick t is in slot t % num_slots.

    The ``next`` entries of tick t and the root entries of tick t + 1 are neighbours in memory, so
    what a step publishes is one range of bytes (two where the ring wraps around).
    """

    def __init__(self, memory: Tensor, layout: Layout, num_slots: int) -> None:
        self.memory = memory
        self.layout = layout
        self.num_slots = num_slots
        self._slot_bytes = layout.size(layout.keys)
        self._root_bytes, self._next_bytes = map(layout.size, (layout.root_keys, layout.next_keys))
        rows = memory.view(num_slots, self._slot_bytes)
        transition = layout.transition.to(memory.device)
        self._slots = transition.expand(num_slots, *transition.batch_size)
        begin = 0
        for key in layout.keys:
            entry = transition.get(key)
            columns = rows[:, begin : begin + entry.nbytes].view(entry.dtype)
            self._slots.set(key, columns.view(num_slots, *entry.shape))
            begin += layout.size((key,))
        self._views: dict[int, TensorDictBase] = {}

    @classmethod
    def split(cls, memory: Tensor, layouts: Sequence[Layout], num_slots: int) -> list[Ring]:
        """A ring of each layout, one after the other in the same memory."""
        sizes = [num_slots * layout.size(layout.keys) for layout in layouts]
        parts = memory.split(sizes)
        return [cls(*each, num_slots) for each in zip(parts, layouts, strict=True)]

    def slot(self, tick: int) -> TensorDictBase:
        """The transition of a tick, in place."""
        place = tick % self.num_slots
        if place not in self._views:
            self._views[place] = self._slots[place]
        return self._views[place]

    def batch(self, tick: int, length: int) -> TensorDictBase:
        """``length`` transitions from ``tick`` on as ``[*batch, length]``, in place.

        The batch must not cross the end of the ring.
        """
        first, dims = tick % self.num_slots, self.layout.transition.ndim
        batch = self._slots[first : first + length].permute(*range(1, dims + 1), 0)
        batch.names = [*[None] * dims, "time"]
        return batch

    def write(
        self,
        tick: int,
        source: TensorDictBase,
        keys: tuple[NestedKey, ...],
        writer: str = "the environment",
        convert: bool = False,
    ) -> None:
        """Copy entries into the slot of a tick.

        ``convert`` accepts another dtype if every value is the same in the slot's dtype.
        """
        slot = self.slot(tick)
        for key in keys:
            value, place = source.get(key, None), slot.get(key)
            if value is None:
                raise CollectorError(f"{writer} must write {key!r}, which the specs declare")
            if convert and value.dtype != place.dtype:
                converted = value.to(place.dtype)  # a one-hot as bool, for example
                value = converted if torch.equal(converted.to(value.dtype), value) else value
            if value.shape != place.shape or value.dtype != place.dtype:
                raise CollectorError(
                    f"{key!r} must have shape {list(place.shape)} and dtype {place.dtype} as the "
                    f"specs declare, got {list(value.shape)} and {value.dtype} from {writer}"
                )
            place.copy_(value)

    def flush(self) -> None:
        """Wait until the other process can read what was written."""
        if self.memory.device.type != "cpu":
            torch.accelerator.current_stream(self.memory.device).synchronize()

    def copy_published(self, tick: int, source: Ring) -> None:
        """Copy ``next`` of ``tick``, if any, and the root of ``tick + 1`` from another device."""
        end = (tick % self.num_slots + 1) * self._slot_bytes
        begin = end - self._next_bytes if tick >= 0 else end
        if (tick + 1) % self.num_slots:
            ranges = [(begin, end + self._root_bytes)]
        else:
            ranges = [(begin, end), (0, self._root_bytes)]
        for a, b in ranges:
            if a == b:
                continue
            self.memory[a:b].copy_(source.memory[a:b], non_blocking=True)


class SharedBlock:
    """Anonymous memory shared with a process that is given this object when it starts.

    It has no name, in ``/dev/shm`` or elsewhere: the system frees it with the last process that
    uses it, and its size does not depend on ``/dev/shm``.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            if hasattr(os, "memfd_create"):
                fd = os.memfd_create("unilab-ring")
            else:
                with tempfile.TemporaryFile() as file:
                    fd = os.dup(file.fileno())
            os.ftruncate(fd, _HEADER_BYTES)
        self.fd = fd
        # int64; the environment process writes, both read without a lock
        self.header = memoryview(mmap.mmap(fd, _HEADER_BYTES)).cast("q")

    def __reduce__(self) -> tuple[Callable[..., SharedBlock], tuple[Any, ...]]:
        return _attach, (reduction.DupFd(self.fd),)

    def grow(self, nbytes: int) -> None:
        """Allocate the memory of the ring."""
        try:
            # Allocated now: touching a page that cannot be allocated later is a SIGBUS.
            allocate = getattr(os, "posix_fallocate", lambda fd, _, size: os.ftruncate(fd, size))
            allocate(self.fd, 0, _HEADER_BYTES + nbytes)
        except OSError as error:
            raise CollectorError(
                f"the ring needs {nbytes / 2**20:.1f} MiB of shared memory ({error}): use fewer "
                "environments, a smaller frames_per_batch, or more memory"
            ) from error

    def map(self, nbytes: int) -> Tensor:
        """The memory of the ring, ``[nbytes]`` uint8; unmapped with the last view of it."""
        whole = mmap.mmap(self.fd, _HEADER_BYTES + nbytes)
        return torch.frombuffer(whole, dtype=torch.uint8, count=nbytes, offset=_HEADER_BYTES)

    def close(self) -> None:
        """Close the descriptor; memory that is mapped stays."""
        os.close(self.fd)


def pin(memory: Tensor) -> Callable[[], None]:
    """Page-lock host memory, so that copies to a CUDA device are asynchronous.

    Returns a function that ends this, to be called before the memory is unmapped.
    """
    if not torch.cuda.is_available():
        return lambda: None
    cudart, address = torch.cuda.cudart(), memory.data_ptr()
    torch.cuda.check_error(cudart.cudaHostRegister(address, memory.nbytes, 0))

    def unpin(memory: Tensor = memory) -> None:  # keeps it mapped until then
        torch.cuda.check_error(cudart.cudaHostUnregister(address))

    return unpin


def _attach(fd: Any) -> SharedBlock:
    return SharedBlock(fd.detach())
