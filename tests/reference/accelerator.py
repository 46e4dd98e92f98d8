"""An emulated accelerator: PyTorch's PrivateUse1 device, in Python, with its memory on the CPU.

A tensor on it has a device, but no data that the host can reach: ``numpy()`` is refused, and so is
an operation that mixes it with a CPU tensor, as on CUDA. The data is a CPU tensor of the same
strides, ``host``, on which every operation runs. Results are therefore the CPU's, bit for bit.

While the device is attached, ``traffic`` lists each copy between host and device and each
operation that makes the host wait for the device, with the line of unilab that asked for it::

    with attached() as traffic:
        env = unilab.make("go2_velocity_flat", num_envs=4, device=DEVICE)
        ...
        traffic.clear()
        env.step(td)
        assert len(traffic.up) == len(traffic.down) == 1

Import this module before the first backward pass of a process: autograd counts devices only then.
``tests/conftest.py`` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import unilab

_NAME = "emulated"
_LIBRARY = str(Path(unilab.__file__).parent)
_backend = SimpleNamespace(  # the functions of torch.cuda that PyTorch calls for any device
    is_available=lambda: False,
    device_count=lambda: 0,
    is_initialized=lambda: True,
    current_device=lambda: 0,
    synchronize=lambda device=None: _wait("synchronize"),
    manual_seed_all=lambda seed: None,
    get_rng_state=lambda device=None: torch.get_rng_state(),
    set_rng_state=lambda state, device=None: torch.set_rng_state(state),
    _is_in_bad_fork=lambda: False,
)
_setup_privateuseone_for_python_backend(_NAME, backend_module=_backend)
DEVICE = torch.device(_NAME, 0)


class Event(NamedTuple):
    """A copy, or a wait of the host."""

    bytes: int
    """0 for a wait."""
    what: str
    """The operation."""
    where: str
    """The innermost line of unilab, as ``envs/scene.py:123 function``."""


@dataclass
class Traffic:
    """What crossed between host and device since the last :meth:`clear`."""

    up: list[Event] = field(default_factory=list)
    """Copies from host to device."""
    down: list[Event] = field(default_factory=list)
    """Copies from device to host. The host waits for each."""
    waits: list[Event] = field(default_factory=list)
    """Other operations whose result the host needs: ``item``, ``nonzero``, masks as indices."""

    def clear(self) -> None:
        """Forget everything so far."""
        for events in (self.up, self.down, self.waits):
            events.clear()


_traffic = Traffic()


@contextmanager
def attached() -> Iterator[Traffic]:
    """Let PyTorch and unilab see the device in the block, and record its traffic."""
    _traffic.clear()
    _unread.clear()
    with (
        patch.multiple(_backend, is_available=lambda: True, device_count=lambda: 1),
        patch("unilab.checks.DEVICE_TYPES", ("cpu", _NAME)),
        patch("unilab.collectors.placement.SHAREABLE", ("cuda", _NAME)),
        patch("torch.Generator", Generator),
        patch("torch.accelerator.current_stream", lambda device=None: _backend),
        patch(
            "torchrl.collectors.Collector._get_sync_fn", lambda self, device: _backend.synchronize
        ),
    ):
        yield _traffic


@dataclass(frozen=True)
class MadeOnDevice:
    """Makes an environment in another process, where the device stays attached; pickles."""

    make_env: Callable[[], Any]

    def __call__(self) -> Any:
        _FOR_GOOD.enter_context(attached())
        return self.make_env()


_FOR_GOOD = ExitStack()


class DeviceTensor(Tensor):
    """A tensor on the device: shape, strides and dtype of ``host``, which holds the data."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        with torch.inference_mode(host.is_inference()):  # not so for a view of a normal tensor
            tensor = Tensor._make_wrapper_subclass(
                cls,
                host.shape,
                strides=host.stride(),
                storage_offset=host.storage_offset(),
                dtype=host.dtype,
                device=DEVICE,
            )
        tensor.host = host
        return tensor

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op._can_decompose():  # seen whole in inference mode, in its parts elsewhere
            return op.decompose(*args, **(kwargs or {}))
        return _run(op, args, kwargs or {})

    def untyped_storage(self) -> Any:
        return self.host.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.cpu().numpy()
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy: use Tensor.cpu()")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def __repr__(self, **kwargs: Any) -> str:
        return f"{self.host!r} on {DEVICE}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor
        return rebuild, (self.detach().cpu(), self.dtype, str(DEVICE), self.requires_grad)


def _reduce_shared(tensor: DeviceTensor) -> Any:
    return DeviceTensor, (tensor.host.share_memory_(),)


# Between processes it is one memory, as a CUDA tensor's is; torch.save and copies see its values.
ForkingPickler.register(DeviceTensor, _reduce_shared)


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    """Makes every generator an instance of the class that stands in for ``torch.Generator``."""

    def __instancecheck__(cls, value: Any) -> bool:
        return type.__instancecheck__(torch._C.Generator, value)


class Generator(torch.Generator, metaclass=_AnyGenerator):
    """``torch.Generator`` that also exists on the device, where it draws what the CPU's draws."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != _NAME:
            return torch._C.Generator(device)
        generator = torch._C.Generator.__new__(cls, "cpu")
        _generators[generator._cdata] = generator
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE


_generators: WeakValueDictionary[int, Generator] = WeakValueDictionary()
"""The device's generators. Operations get other Python objects of the same address."""


def _run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the host's tensors; record copies and waits."""
    name = op._schema.name.removeprefix("aten::")
    if name in ("copy_", "_copy_from"):
        source, target = (args[1], args[0]) if name == "copy_" else args[:2]
        later = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        _note_copy(source, target, name, later)
        _host(target).copy_(_host(source))
        return target
    if name == "_to_copy":
        return _moved(args[0], kwargs)
    leaves = tree_leaves((args, kwargs))
    mine = [leaf for leaf in leaves if isinstance(leaf, DeviceTensor)]
    _check_devices(op, name, args, leaves, mine)
    if name in _WAITS or (name in _INDEXING and _looks_at_mask(args)):
        _wait(name)
    out = op(*tree_map(_host, args), **tree_map(_host, kwargs))

    def on_device(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        same = [tensor for tensor in mine if tensor.host is value]  # an operation in place
        if not same:
            return DeviceTensor(value)
        if (same[0].shape, same[0].stride()) != (value.shape, value.stride()):  # as t_() does
            same[0].data = DeviceTensor(value)
        return same[0]

    return tree_map(on_device, out)


_WAITS = {
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "multinomial"),
    *("_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive"),
    *("bincount", "repeat_interleave", "allclose"),
}
"""Operations whose result, or its size, the host needs before it continues."""
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


def _looks_at_mask(args: tuple[Any, ...]) -> bool:
    """Whether the host needs to know how many elements of a mask are true.

    To write one number CUDA fills by the mask instead.
    """
    masks = [i for i in args[1] if isinstance(i, DeviceTensor) and i.dtype == torch.bool]
    return bool(masks) and not (len(args) > 2 and args[2].ndim == 0 and len(args[1]) == 1)


def _check_devices(
    op: Any, name: str, args: tuple[Any, ...], leaves: list[Any], mine: list[DeviceTensor]
) -> None:
    """Refuse what CUDA refuses: CPU tensors, but for single numbers, and the CPU's generator.

    CPU indices of a tensor on the device are allowed, and cost CUDA a copy.
    """
    theirs = [v for v in leaves if isinstance(v, Tensor) and not isinstance(v, DeviceTensor)]
    theirs = [v for v in theirs if v.ndim or name in ("cat", "stack")]
    if name in _INDEXING and isinstance(args[0], DeviceTensor):
        indices = [i for i in args[1] if any(i is v for v in theirs)]
        for index in indices:
            _note_copy(index, mine[0], name)
        theirs = [v for v in theirs if not any(v is i for i in indices)]
    if mine and theirs:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{DEVICE} and cpu! (in {op})"
        )
    for leaf in leaves:
        if isinstance(leaf, torch._C.Generator) and leaf._cdata not in _generators and mine:
            raise RuntimeError(f"Expected a {_NAME!r} device type for generator but found 'cpu'")


def _moved(source: Tensor, options: dict[str, Any]) -> Tensor:
    """``source`` with another dtype, layout or device."""
    device = options.pop("device", None) or source.device
    later = options.pop("non_blocking", False)
    host = torch.ops.aten._to_copy(_host(source), **options)
    if device.type == "cpu":
        _note_copy(source, host, "to", later)
        return host
    return DeviceTensor(host)


def _host(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.host
    on_device = isinstance(value, torch.device) and value.type == _NAME
    return torch.device("cpu") if on_device else value


def _note_copy(source: Tensor, target: Tensor, what: str, later: bool = False) -> None:
    """Record a copy; ``later``: it may take place until the host waits for the device next."""
    before, after = (isinstance(value, DeviceTensor) for value in (source, target))
    if before == after:
        return
    size = source.numel() * source.element_size()
    _note(_traffic.down if before else _traffic.up, what, size)
    if before and not later:
        _settle()
    elif after and later:
        _unread.append((source, source.clone(), _traffic.up[-1]))


_unread: list[tuple[Tensor, Tensor, Event]] = []
"""Sources of copies up that the host did not wait for, what they were then, and the copies."""


def _wait(what: str) -> None:
    _note(_traffic.waits, what)
    _settle()


def _settle() -> None:
    """The host has waited: every copy has taken place."""
    for source, copied, event in _unread:
        if not torch.equal(source.nan_to_num(), copied.nan_to_num()):
            raise RuntimeError(f"written to while it was copied without blocking: {event}")
    _unread.clear()


def _note(events: list[Event], what: str, size: int = 0) -> None:
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    where = ""
    if frame is not None:
        path = Path(frame.f_code.co_filename).relative_to(_LIBRARY)
        where = f"{path}:{frame.f_lineno} {frame.f_code.co_name}"
    events.append(Event(size, what, where))


_FACTORIES = ("empty", "empty_strided", "arange", "linspace", "logspace", "eye", "randperm")
"""Operations that make tensors, and so see none; those that are not listed begin with ``empty``."""


def _register() -> torch.library.Library:
    """Tell PyTorch of the operations that it runs for the device before one sees a DeviceTensor."""
    library = torch.library.Library("aten", "IMPL")
    for name in (*_FACTORIES, "_copy_from"):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            if "out" not in overload and "names" not in overload:
                op = getattr(packet, overload)
                library.impl(op, partial(_call, op), "PrivateUse1")
    return library


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(op, args, kwargs)


_library = _register()
