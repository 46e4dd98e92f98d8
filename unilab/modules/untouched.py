"""Running a module without leaving a trace in it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrl.checkpoint import GlobalRNGState

__all__ = ["untouched"]

_IMMUTABLE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
Restore = Callable[[], object]


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Whatever runs inside leaves the module and every random generator as they were.

    That is: parameters, gradients, buffers and other tensors by content, size and identity,
    attributes, ``requires_grad``, train/eval flags, and what lies in containers, NumPy arrays and
    objects that the module holds, be their attributes in a ``__dict__`` or in slots. The generators
    are those of Python, NumPy, torch and its accelerators, and any of these kinds that the module
    holds.

    Args:
        module: the module; a copy would miss whatever its closures reach.
    """
    generators = GlobalRNGState()
    # All of a stack's callbacks run, also behind one that fails.
    with ExitStack() as stack:
        stack.callback(generators.load_state_dict, generators.state_dict())
        for put_back in _memories(module):
            stack.callback(put_back)
        yield


def _memories(module: nn.Module) -> Iterator[Restore]:
    """What puts a module, and all that it holds, back in place."""
    todo: list[Any] = [module]
    seen: dict[int, Any] = {}  # by identity; the objects stay alive, so that no other gets their id
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, _IMMUTABLE):
            continue
        seen[id(value)] = value
        slots = _slots(value)
        yield from _own(value)
        yield _slotted(value, slots)
        todo += [*slots.values(), *_items(value)]
        if hasattr(value, "__dict__"):
            todo.append(vars(value))


def _own(value: Any) -> Iterator[Restore]:
    """What puts one value back, apart from what it holds."""
    if isinstance(value, Tensor):
        yield _tensor(value)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        yield partial(np.copyto, value, value.copy())
    elif isinstance(value, torch.Generator):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        yield partial(value.setstate, value.getstate())
    elif isinstance(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, dict):
        yield _container(value, dict(value), value.update)
    elif isinstance(value, list | deque | bytearray):
        yield _container(value, list(value), value.extend)
    elif isinstance(value, set):
        yield _container(value, set(value), value.update)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Tensor):
        return (value.grad,) if value.is_leaf else ()
    return list(value) if isinstance(value, list | deque | tuple) else ()


def _tensor(value: Tensor) -> Restore:
    whole, needs_grad = value.detach(), value.requires_grad
    grad = value.grad if value.is_leaf else None
    dense = whole.layout is torch.strided
    once = whole
    if dense:  # what expand repeats can be written only once
        for dim, (size, stride) in enumerate(zip(whole.shape, whole.stride(), strict=True)):
            once = once.narrow(dim, 0, 1) if size > 1 and stride == 0 else once
    content = once.clone()

    def put_back() -> None:
        value.data = whole if dense else content  # after resize_, set_ or another .data
        if dense and not torch.equal(once, content):
            once.copy_(content)
        if value.is_leaf:
            value.requires_grad_(needs_grad)
            value.grad = grad

    return put_back


def _container(value: Any, then: Any, fill: Callable[[Any], Any]) -> Restore:
    def put_back() -> None:
        # Left alone if it is as it was: others may be reading it, such as a logger's registry.
        if list(map(id, _flat(value))) != list(map(id, _flat(then))):
            value.clear()
            fill(then)

    return put_back


def _flat(container: Any) -> list[Any]:
    keys = list(container)
    return keys + list(container.values()) if isinstance(container, dict) else keys


def _slots(value: Any) -> dict[MemberDescriptorType, Any]:
    """What lies in an object's slots."""
    declared = (vars(kind) for kind in type(value).__mro__ if "__slots__" in vars(kind))
    slots = (s for names in declared for s in names.values() if isinstance(s, MemberDescriptorType))
    return {slot: slot.__get__(value) for slot in slots if hasattr(value, slot.__name__)}


def _slotted(value: Any, then: Mapping[MemberDescriptorType, Any]) -> Restore:
    def put_back() -> None:
        for slot in _slots(value).keys() - then.keys():
            slot.__delete__(value)
        for slot, held in then.items():
            slot.__set__(value, held)

    return put_back
