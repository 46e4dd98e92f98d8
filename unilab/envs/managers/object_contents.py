"""What objects hold: their contents found, copied and written back."""

from __future__ import annotations

import copy
import logging
import random
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from functools import cache, partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unilab.backends import SimBackend
from unilab.envs.entity import Entity, EntityData, SceneEntityCfg
from unilab.envs.scene import EntityScene
from unilab.envs.sensors import ContactSensor
from unilab.envs.torch_env import TorchEnv

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

PLAIN = {bool, int, float, complex, str, bytes, type(None)}
PLAIN |= {torch.Size, torch.dtype, torch.device}
CODE = (type, FunctionType, BuiltinFunctionType)
STATELESS = (
    *(*CODE, slice, range, ModuleType, np.dtype, np.ufunc, re.Pattern, PurePath, weakref.ref),
    *(logging.Logger, type(threading.Lock()), type(threading.RLock()), random.SystemRandom),
    *(TorchEnv, SimBackend, EntityScene, Entity, EntityData, SceneEntityCfg, ContactSensor),
)
GENERATORS = (
    *(torch.Generator, np.random.Generator, np.random.BitGenerator),
    *(np.random.RandomState, random.Random),
)
ABSENT = object()


def _fill(tensor: Tensor, saved: Tensor) -> None:
    if not is_expanded(tensor):  # an expanded one cannot have been written to
        tensor.copy_(saved)


def _fill_array(array: Any, saved: Any) -> None:
    if array.flags.writeable:
        array[...] = saved


def fill_set(held: set[Any], saved: set[Any]) -> None:
    held.clear()
    held.update(saved)


_LEAVES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    Tensor: (Tensor.clone, _fill),
    np.ndarray: (np.ndarray.copy, _fill_array),
    set: (set.copy, fill_set),
    bytearray: (bytes, lambda held, saved: held.__setitem__(slice(None), saved)),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.Generator: (
        lambda g: g.bit_generator.state,
        lambda g, saved: setattr(g.bit_generator, "state", saved),
    ),
    np.random.BitGenerator: (lambda g: g.state, lambda g, saved: setattr(g, "state", saved)),
    np.random.RandomState: (lambda g: g.get_state(legacy=False), np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
}
"""How the contents of a type are copied, and written back."""


def _find_leaf(kind: type) -> Any:
    return next((how for base, how in _LEAVES.items() if issubclass(kind, base)), None)


leaf_of: Callable[[Any], Any] = cache(_find_leaf)


def shared_ids(env: ManagerBasedRlEnv) -> set[int]:
    """Ids of what belongs to the environment, and of its terms."""
    terms = [*env.command_manager.terms.values(), *(term.func for term in env.terms)]
    return {id(value) for value in (*vars(env).values(), *env.terms, *terms)}


def contents_of(value: Any) -> dict[Hashable, Any] | None:
    """What an object holds, by key, index or attribute; None if it is not looked into."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple | deque):
        return dict(enumerate(value))
    kind = type(value)
    if kind is MethodType:
        return {"__self__": value.__self__}
    if kind is partial:
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if kind is FunctionType and not _library(value, "torch", "torchrl", "tensordict", "unilab"):
        names = value.__code__.co_freevars
        cells = zip(names, value.__closure__ or (), strict=True)
        return {name: cell.cell_contents for name, cell in cells if _filled(cell)} or None
    if isinstance(value, (*STATELESS, Enum)) or (_library(kind) and kind is not SimpleNamespace):
        return None
    slots = _slots(kind)
    if not slots and not hasattr(value, "__dict__"):
        return None
    held: dict[Hashable, Any] = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    held |= getattr(value, "__dict__", {})
    return (
        None
        if is_settings(kind) and not any(isinstance(v, Tensor) for v in held.values())
        else held
    )


def _library(code: Any, *others: str) -> bool:
    """Whether a class or function is of Python's library or of these packages."""
    package = (code.__module__ or "").partition(".")[0]
    return package in sys.stdlib_module_names or package in others


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not ABSENT
    except ValueError:
        return False


def is_frozen(kind: type) -> bool:
    return bool(getattr(getattr(kind, "__dataclass_params__", None), "frozen", False))


def is_settings(kind: type) -> bool:
    return is_frozen(kind) and _library(kind, "unilab")


def _slots(kind: type) -> list[str]:
    slots = (getattr(base, "__slots__", ()) for base in kind.__mro__)
    names = [name for s in slots for name in ((s,) if isinstance(s, str) else s)]
    return [name for name in names if not name.startswith("__")]


def with_contents(container: Any, contents: dict[Any, Any]) -> Any:
    """The container with other contents; the same object, except for an immutable one."""
    values, kind = list(contents.values()), type(container)
    if isinstance(container, tuple | MethodType) or is_frozen(kind):
        held = contents_of(container) or {}
        if held.keys() == contents.keys() and all(held[k] is v for k, v in contents.items()):
            return container
        if isinstance(container, MethodType):
            return MethodType(container.__func__, *values)
        if isinstance(container, tuple):
            return kind(*values) if hasattr(kind, "_fields") else kind(values)
        container = copy.copy(container)
    if isinstance(container, list | deque):
        container.clear()
        container.extend(values)
    elif isinstance(container, dict):  # not with the methods of a Counter
        dict.clear(container)
        dict.update(container, contents)
    elif isinstance(container, partial):
        container.__setstate__((*values, vars(container)))  # type: ignore[attr-defined]
    elif isinstance(container, FunctionType):
        for name, cell in zip(
            container.__code__.co_freevars, container.__closure__ or (), strict=True
        ):
            if name in contents:
                cell.cell_contents = contents[name]
    else:
        slots = _slots(kind)
        for name in slots:
            if name in contents:
                object.__setattr__(container, name, contents[name])  # frozen ones too
        if hasattr(container, "__dict__"):
            container.__dict__.clear()
            container.__dict__.update((k, v) for k, v in contents.items() if k not in slots)
    return container


def is_expanded(tensor: Tensor) -> bool:
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in sizes)
