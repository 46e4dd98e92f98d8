"""Running a module without leaving a trace in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.checkpoint import GlobalRNGState

__all__ = ["untouched"]

_IMMUTABLE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
Restore = Callable[[], object]


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Whatever runs inside leaves the module and every random generator as they were.

    That is: parameters, buffers and other tensors by content and identity, attributes,
    ``requires_grad``, train/eval flags, and what lies in containers and plain objects that the
    module holds. The generators are those of Python, NumPy, torch and its accelerators, and any
    ``torch.Generator`` that the module holds.

    Args:
        module: the module; a copy would miss whatever its closures reach.
    """
    generators = GlobalRNGState()
    before = generators.state_dict()
    restore: list[Restore] = []
    _remember(module, restore, set())
    try:
        yield
    finally:
        with torch.no_grad():
            for put_back in restore:
                put_back()
        generators.load_state_dict(before)


def _remember(value: Any, restore: list[Restore], seen: set[int]) -> None:
    """Appends what puts ``value``, and all that it holds, back in place."""
    if id(value) in seen or isinstance(value, _IMMUTABLE):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        restore.append(_tensor(value))
    elif isinstance(value, torch.Generator):
        state = value.get_state()
        restore.append(lambda: value.set_state(state))
    elif isinstance(value, dict):
        restore.append(_container(value, dict(value), value.update))
        _remember_all(value.values(), restore, seen)
    elif isinstance(value, list | deque):
        restore.append(_container(value, list(value), value.extend))
        _remember_all(value, restore, seen)
    elif isinstance(value, set):
        restore.append(_container(value, set(value), value.update))
    elif isinstance(value, tuple):
        _remember_all(value, restore, seen)
    elif hasattr(value, "__dict__"):
        _remember(value.__dict__, restore, seen)


def _remember_all(values: Any, restore: list[Restore], seen: set[int]) -> None:
    for value in list(values):
        _remember(value, restore, seen)


def _tensor(value: Tensor) -> Restore:
    content, needs_grad = value.detach().clone(), value.requires_grad

    def put_back() -> None:
        if not torch.equal(value.data, content):  # an expanded tensor cannot be written
            value.data.copy_(content)
        if value.is_leaf:
            value.requires_grad_(needs_grad)

    return put_back


def _container(value: Any, items: Any, fill: Callable[[Any], Any]) -> Restore:
    def put_back() -> None:
        value.clear()
        fill(items)

    return put_back
