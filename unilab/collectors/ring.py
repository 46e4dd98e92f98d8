"""Transitions of a batch of environments, in one block of memory that two processes map."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, is_leaf_nontensor
from torch import Tensor

from unilab.collectors.spans import SPANS_BYTES
from unilab.errors import CollectorError, ConfigError

__all__ = ["HEADER_BYTES", "Layout", "Ring", "SharedBlock", "pin"]

_PAGE = 4096
HEADER_BYTES = _PAGE + SPANS_BYTES
"""Start of the block that is not the ring: a page of counters, then the latest spans."""
_ALIGN = 64
_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Entry:
    key: NestedKey
    shape: torch.Size
    dtype: torch.dtype
    offset: int
    """Bytes from the start of the slot."""


@dataclass(frozen=True)
class Layout:
    """Where the entries of a transition lie in a slot: root, then inputs, then ``next``."""

    batch_size: torch.Size
    entries: tuple[_Entry, ...]
    nested: tuple[tuple[NestedKey, torch.Size], ...]
    """TensorDicts in it whose batch has more dimensions, and which; inner ones first."""
    root_keys: tuple[NestedKey, ...]
    input_keys: tuple[NestedKey, ...]
    """The action, and whatever else the policy gives the environment."""
    next_keys: tuple[NestedKey, ...]
    root_bytes: int
    """End of the root entries."""
    next_offset: int
    """Start of the ``next`` entries, which end with the slot."""
    slot_bytes: int

    @classmethod
    def of(cls, transition: TensorDictBase, input_keys: list[NestedKey]) -> Layout:
        """The layout of slots that hold such a transition.

        Args:
            transition: ``[*batch]`` with every entry that an environment reads and writes.
            input_keys: the entries that the learner writes.

        Raises:
            ConfigError: an entry is no tensor.
        """
        keys = list(transition.keys(True, True, is_leaf=is_leaf_nontensor))
        inputs = tuple(key for key in keys if key in input_keys)
        after = tuple(key for key in keys if isinstance(key, tuple) and key[0] == "next")
        root = tuple(key for key in keys if key not in inputs and key not in after)
        entries: list[_Entry] = []
        ends = []
        end = 0
        for group in (root, inputs, after):
            for key in group:
                value = transition.get(key)
                if not isinstance(value, Tensor):
                    raise ConfigError(
                        f"entry {key!r} of the environment is a {type(value).__name__}: only "
                        "tensors can be shared between processes; exclude it with a transform"
                    )
                entries.append(_Entry(key, value.shape, value.dtype, end))
                end += -(-value.nbytes // _ALIGN) * _ALIGN
            ends.append(end)
        outer = transition.batch_size
        inner = ((key, value.batch_size[len(outer) :]) for key, value in _nested(transition))
        nested = tuple((key, more) for key, more in inner if more)[::-1]
        return cls(outer, tuple(entries), nested, root, inputs, after, *ends)


class Ring:
    """``num_slots`` transitions of one layout, as TensorDict views of a block of bytes.

    The slot of tick ``t`` is ``t % num_slots``. The end of a slot (``next`` of tick ``t``) and the
    beginning of the following one (root of tick ``t + 1``) are neighbours, so what a tick
    publishes is one range of bytes, two where the ring wraps.

    Args:
        memory: at least ``num_slots * layout.slot_bytes`` uint8.
        layout: of a slot.
        num_slots: transitions held.
    """

    def __init__(self, memory: Tensor, layout: Layout, num_slots: int) -> None:
        self.memory = memory
        self.layout = layout
        self.num_slots = num_slots
        self._typed = {
            dtype: memory.view(dtype) for dtype in {entry.dtype for entry in layout.entries}
        }
        self._slots: dict[int, TensorDict] = {}

    def slot(self, tick: int) -> TensorDict:
        """The transition of a tick, in place."""
        place = tick % self.num_slots
        if place not in self._slots:  # made as they are come to: there may be thousands
            self._slots[place] = self._view(place, None)
        return self._slots[place]

    def batch(self, tick: int, length: int) -> TensorDict:
        """``length`` transitions from ``tick`` on as ``[*batch, length]``, in place.

        They must not cross the ring's end: ``tick % num_slots + length <= num_slots``.
        """
        return self._view(tick % self.num_slots, length)

    def write(
        self,
        tick: int,
        source: TensorDictBase,
        keys: tuple[NestedKey, ...],
        giver: str = "the environment",
        convert: bool = False,
    ) -> None:
        """Copy entries into the slot of a tick.

        Args:
            tick: whose slot.
            source: has the entries.
            keys: which ones.
            giver: who gave them, for messages.
            convert: take another dtype where the slot's can hold the very same values.

        Raises:
            CollectorError: an entry is missing, or has another shape or dtype than before.
        """
        slot = self.slot(tick)
        for key in keys:
            value, place = source.get(key, None), slot.get(key)
            if value is None:
                raise CollectorError(f"{giver} gave no {key!r}, which the specs announce")
            if convert and value.dtype != place.dtype:
                value = _converted(value, place.dtype)
            if value.shape != place.shape or value.dtype != place.dtype:
                raise CollectorError(
                    f"{giver} gave {key!r} of shape {list(value.shape)} and dtype {value.dtype}; "
                    f"the specs announce {list(place.shape)} and {place.dtype}, for the whole run"
                )
            place.copy_(value)

    def flush(self) -> None:
        """Wait until what was written is there for the other process to read."""
        if self.memory.is_cuda:
            torch.cuda.current_stream(self.memory.device).synchronize()

    def copy_published(self, tick: int, source: Ring) -> None:
        """Take over ``next`` of ``tick`` and the root of ``tick + 1`` from another ring.

        Args:
            tick: -1 for the root of tick 0 alone.
            source: a ring of the same layout, maybe on another device; copied without waiting.
        """
        layout = self.layout
        end = tick % self.num_slots * layout.slot_bytes + layout.slot_bytes
        begin = end - layout.slot_bytes + layout.next_offset if tick >= 0 else end
        if (tick + 1) % self.num_slots:
            ranges = [(begin, end + layout.root_bytes)]
        else:
            ranges = [(begin, end), (0, layout.root_bytes)]
        for a, b in ranges:
            self.memory[a:b].copy_(source.memory[a:b], non_blocking=True)

    def _view(self, slot: int, length: int | None) -> TensorDict:
        batch = self.layout.batch_size
        time = () if length is None else (length,)
        names = None if length is None else [*[None] * len(batch), "time"]
        view = TensorDict({}, [*batch, *time], device=self.memory.device, names=names)
        for entry in self.layout.entries:
            memory, size = self._typed[entry.dtype], entry.dtype.itemsize
            strides = [prod(entry.shape[i + 1 :]) for i in range(len(entry.shape))]
            if length is not None:
                strides.insert(len(batch), self.layout.slot_bytes // size)
            start = (slot * self.layout.slot_bytes + entry.offset) // size
            shape = [*batch, *time, *entry.shape[len(batch) :]]
            view.set(entry.key, memory.as_strided(shape, strides, memory.storage_offset() + start))
        for key, more in self.layout.nested:
            view.get(key).batch_size = torch.Size([*batch, *time, *more])
        return view


class SharedBlock:
    """Memory without a name that a process shares with those that inherit its descriptor.

    It is in no directory, ``/dev/shm`` included, and goes when the last process that has it ends,
    however it ends.

    Args:
        fd: an inherited descriptor; None makes a block that holds the header only.

    Attributes:
        fd: the descriptor; closed by :meth:`close`.
        header: int64 counters, written without a lock; each has one writer.
        spans: memory for the :class:`~unilab.collectors.spans.Spans` of the other process.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _anonymous_file() if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, HEADER_BYTES)
        words = memoryview(mmap.mmap(self.fd, HEADER_BYTES)).cast("q")
        self.header, self.spans = words[: _PAGE // 8], words[_PAGE // 8 :]

    def grow(self, nbytes: int) -> None:
        """Make room for a ring.

        Raises:
            CollectorError: there is not that much memory.
        """
        available = _available_memory()
        if nbytes > available:
            raise _too_little(nbytes, f"{available / 2**20:.1f} MiB are available")
        try:
            # The pages themselves, now: a page that is missing later is a SIGBUS.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, 0, HEADER_BYTES + nbytes)
            else:
                os.ftruncate(self.fd, HEADER_BYTES + nbytes)
        except OSError as error:
            raise _too_little(nbytes, str(error)) from error

    def map(self, nbytes: int) -> Tensor:
        """The ring's bytes as ``[nbytes]`` uint8; unmapped when the last view of them goes."""
        whole = mmap.mmap(self.fd, HEADER_BYTES + nbytes)
        return torch.frombuffer(whole, dtype=torch.uint8, count=nbytes, offset=HEADER_BYTES)

    def close(self) -> None:
        """Let go of the block; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def pin(memory: Tensor) -> None:
    """Lock host memory in place, so that copies to a CUDA device need not wait."""
    if torch.cuda.is_available():
        torch.cuda.check_error(
            torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
        )


def _nested(transition: TensorDictBase) -> list[tuple[NestedKey, TensorDictBase]]:
    """The TensorDicts in one, outer ones first."""
    items = transition.items(True, is_leaf=is_leaf_nontensor)
    return [(key, value) for key, value in items if isinstance(value, TensorDictBase)]


def _converted(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The same values in another dtype, a one-hot as bool say; as it is if some would differ."""
    converted = value.to(dtype)
    return converted if torch.equal(converted.to(value.dtype), value) else value


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("unilab-ring", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _too_little(nbytes: int, why: str) -> CollectorError:
    return CollectorError(
        f"the ring between collector and learner needs {nbytes / 2**20:.1f} MiB of shared memory, "
        f"which could not be had ({why}): use fewer environments or a smaller frames_per_batch, "
        "or give the process more memory"
    )


def _available_memory() -> float:
    """Bytes that can be had without the system killing for them; infinite where it does not say."""
    available = float("inf")
    with suppress(OSError, KeyError):
        table = _table(_PROC / "meminfo")
        available = 1024.0 * (table["MemAvailable"] + table["SwapFree"])
    # A container has a limit of its own: what can be given back to it is neither of these two.
    with suppress(OSError, KeyError, ValueError):
        used = _table(_CGROUP / "memory.stat")
        limit = int((_CGROUP / "memory.max").read_text())
        available = min(available, limit - used["anon"] - used["shmem"])
    return available


def _table(file: Path) -> dict[str, int]:
    rows = (line.replace(":", " ").split() for line in file.read_text().splitlines())
    return {name: int(value) for name, value, *_ in rows}
