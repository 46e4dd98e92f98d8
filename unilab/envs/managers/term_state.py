"""What terms remember: undone by a failed reset, kept by rows, saved in checkpoints and loaded.

The state of an object is every tensor, NumPy array, random generator (of torch, NumPy or Python)
and plain value (number, flag, text, None) in its attributes, also in lists, tuples, dicts, deques,
TensorDicts, modules and other objects there. What belongs to the environment or to another term is
left out, and so are functions, enum members and settings: they must be there when it is loaded.
Nothing else (sets, iterators, files, objects with ``__slots__``) is looked into: a reset does not
restore it, and saving refuses it by name. Attributes of classes and of functions, default arguments
and globals are not found.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_Path = tuple[Any, ...]
"""Attributes, keys and indices that lead to a value."""
_PLAIN = {bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device}
_LEFT_OUT = (
    *(type, FunctionType, BuiltinFunctionType, MethodType, partial),
    *(Enum, slice, range, PurePath, logging.Logger),
)
_OF_MODULES = vars(nn.Module()).keys() - {"training", "_parameters", "_buffers", "_modules"}
_MADE = {"builtins.list": list, "builtins.dict": dict, "builtins.tuple": tuple}
"""What is made when a state is loaded, where the object has none."""


def _is_fixed(value: Any) -> bool:
    """Whether a tensor or an array cannot be written to: expanded, or read-only."""
    if isinstance(value, np.ndarray):
        return not value.flags.writeable
    sizes = () if value.is_contiguous() else zip(value.stride(), value.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in sizes)


def _fill(value: Any, saved: Any) -> None:
    if not _is_fixed(value):
        value.copy_(saved) if isinstance(value, Tensor) else np.copyto(value, saved)


_LEAVES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    Tensor: (Tensor.clone, _fill),
    np.ndarray: (np.ndarray.copy, _fill),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.Generator: (
        lambda g: tree_map_only(np.ndarray, torch.from_numpy, g.bit_generator.state),
        lambda g, saved: setattr(
            g.bit_generator, "state", tree_map_only(Tensor, Tensor.numpy, saved)
        ),
    ),
    random.Random: (random.Random.getstate, random.Random.setstate),
}
"""How the contents of a type are copied, and written back."""
_GENERATORS = tuple(_LEAVES)[2:]


def _find_leaf(kind: type) -> Any:
    return next((how for base, how in _LEAVES.items() if issubclass(kind, base)), None)


def _find_constant(kind: type) -> bool:
    """Whether objects of this type cannot change: plain values, code and settings."""
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    settings = frozen and any(base.__module__.startswith("unilab.") for base in kind.__mro__)
    return settings or kind in _PLAIN or issubclass(kind, _LEFT_OUT)


def _find_container(kind: type) -> Callable[[Any], Any] | None:
    """Returns the container of what a value holds; None: it is not looked into."""
    if issubclass(kind, dict | list | tuple | deque):
        return lambda value: value
    if issubclass(kind, TensorDict):
        return attrgetter("_tensordict")
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__[:-1]] or ["builtins"]
    foreign = packages[0] in sys.stdlib_module_names - {"types"} or "builtins" in packages
    if foreign or _leaf(kind) or _is_constant(kind) or not kind.__dictoffset__:
        return None
    return attrgetter("__dict__")


_leaf: Callable[[Any], Any] = cache(_find_leaf)
_is_constant: Callable[[Any], bool] = cache(_find_constant)
_container_of: Callable[[Any], Any] = cache(_find_container)


def _refill(held: Any, contents: Any) -> None:
    if not isinstance(held, tuple):
        held.clear()
        (held.update if isinstance(held, dict) else held.extend)(contents)


def _alike(one: Any, two: Any) -> bool:
    """Whether both are tensors, or arrays, of the same shape and type."""
    arrays = isinstance(one, (Tensor, np.ndarray)) and isinstance(two, type(one))
    return arrays and (one.shape, one.dtype) == (two.shape, two.dtype)


def _memory(value: Any) -> int:
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else id(value)


def _others(env: ManagerBasedRlEnv, *owners: Any) -> set[int]:
    """Ids of what belongs to the environment, and of its terms, except for the owners."""
    parts = [env, *vars(env).values(), *env.terms, *(term.func for term in env.terms)]
    parts += env.command_manager.terms.values()
    parts += [part for e in env.scene.entities.values() for part in (e, e.data)]
    parts += env.scene.sensors.values()
    if env.scene.terrain is not None:
        parts += [env.scene.terrain, env.scene.terrain.levels]
    return {*map(id, parts)} - {*map(id, owners)}


def _walk(root: Any, others: set[int]) -> dict[_Path, tuple[Any, Any]]:
    """What an object holds, itself first: by path, the value and the container of its contents.

    The container is None for leaves, for what is not looked into, such as the ids ``others``, and
    where an object is met again.
    """
    found: dict[_Path, tuple[Any, Any]] = {}
    seen = set(others)

    def visit(path: _Path, value: Any) -> None:
        held = None
        if type(value) not in _PLAIN and id(value) not in seen:
            container = _container_of(type(value))
            held = container(value) if container else None
            if not isinstance(value, tuple):
                seen.add(id(value))
        found[path] = value, held
        if held is not None:
            for key, child in held.items() if isinstance(held, dict) else enumerate(held):
                if key not in _OF_MODULES:
                    visit((*path, key), child)

    visit((), root)
    return found


class StateSnapshot:
    """The state of some objects of ``env`` as it is now; trained parameters are left out."""

    def __init__(self, env: ManagerBasedRlEnv, roots: Sequence[Any]) -> None:
        self._num_envs = env.num_envs
        self._roots = tuple(roots)
        self._others = _others(env, *roots) if roots else set()
        self._before = _walk(self._roots, self._others)
        self._copies: dict[int, tuple[Any, Any]] = {}
        with torch.inference_mode():
            for value, held in self._before.values():
                leaf = _leaf(type(value))
                if held is not None:
                    copied = dict(held) if isinstance(held, dict) else list(held)
                    self._copies[id(held)] = held, copied
                elif leaf and not getattr(value, "requires_grad", False):
                    self._copies.setdefault(id(value), (value, leaf[0](value)))

    def restore(self, but: tuple[type, ...] = ()) -> None:
        """Restore this state, except for leaves of some types."""
        with torch.no_grad(), torch.inference_mode():
            for value, saved in self._copies.values():
                if not isinstance(value, but):
                    leaf = _leaf(type(value))
                    (leaf[1] if leaf else _refill)(value, saved)

    def restore_but(self, rows: Tensor) -> None:
        """Restore this state, except for the rows ``[n]`` of tensors ``[num_envs, ...]``.

        Values without rows (numbers, lengths of lists, other tensors) are restored, generators are
        not. If ``rows`` are all rows, nothing is restored.
        """
        if rows.shape[0] == self._num_envs:
            return
        after = _walk(self._roots, self._others)
        kept: dict[_Path, tuple[Any, Any, int]] = {}
        memories: dict[int, int] = {}
        with torch.no_grad(), torch.inference_mode():
            for path, (old, _) in self._before.items():
                new, _ = after.get(path, (None, None))
                with_rows = _alike(old, new) and old.shape[:1] == (self._num_envs,)
                if with_rows and not (new is old and _is_fixed(old)):
                    at: Any = rows if isinstance(old, Tensor) else rows.cpu().numpy()
                    kept[path] = at, new[at], _memory(new)
            self.restore(but=_GENERATORS)
            for path, (at, value, memory) in kept.items():
                old, held = self._before[path][0], self._before[path[:-1]][1]
                if memories.setdefault(_memory(old), memory) != memory or _is_fixed(old):
                    old = _leaf(type(old))[0](old)  # names that shared memory share it no more
                    if isinstance(held, tuple):
                        continue
                    held[path[-1]] = old
                old[at] = value


def save_state(value: Any, env: ManagerBasedRlEnv, name: str = "state", *left_out: Any) -> Any:
    """The state of an object of ``env``: by path, plain values and tuples of a kind and tensors.

    Tensors are not copied. Two names of one object are saved as one.

    Args:
        name: the object's, for errors.
        left_out: parts that are not saved, and stay when the state is loaded.
    """
    others = _others(env, value).union(map(id, left_out))
    found = _walk(value, others)
    known = others.union(id(each) for each, _ in found.values())
    first: dict[int, _Path] = {}
    memories: dict[int, int] = {}

    def entry(path: _Path, each: Any, held: Any) -> Any:
        if type(each) in _PLAIN:
            return each
        if id(each) in others:
            return "left out", _name(each)
        if not isinstance(each, tuple) and first.setdefault(id(each), path) != path:
            return "same", first[id(each)]
        odd = [key for key in held if type(key) not in _PLAIN] if isinstance(held, dict) else []
        if held is not None and not odd:
            keys = held if isinstance(held, dict) else range(len(held))
            return "contents", _name(each), tuple(key for key in keys if key not in _OF_MODULES)
        memory = memories.setdefault(_memory(each), len(memories))
        if isinstance(each, Tensor):
            return "tensor", each.detach(), memory, each.device.type
        if isinstance(each, np.ndarray | np.generic) and each.dtype.kind in "biufc":
            return "tensor", torch.from_numpy(np.array(each)), memory, "numpy"
        if isinstance(each, _GENERATORS):
            return "generator", _name(each), _leaf(type(each))[0](each)
        if _is_constant(type(each)):
            cells = getattr(each, "__closure__", None) or ()
            parts = [cell.cell_contents for cell in cells if cell != CellType()]
            parts += [getattr(each, "__self__", None)]
            parts += each.args if isinstance(each, partial) else ()
            odd = [part for part in parts if id(part) not in known and not _is_constant(type(part))]
            if not odd:
                return "left out", _name(each)
        raise ConfigError(
            f"{_label(name, path)} must be a number, text, tensor, array, random generator, or a "
            "list, tuple, dict or object of these, to be saved, got "
            f"{_name(each)}" + (f" with {_name(odd[0])}" if odd else "")
        )

    return {path: entry(path, *each) for path, each in found.items()}


def _name(value: Any) -> str:
    """A name of what must be there when a state is loaded."""
    if isinstance(value, Enum | slice | range):
        return repr(value)
    value = value.__func__ if isinstance(value, MethodType) else value
    named = value if isinstance(value, type | FunctionType | BuiltinFunctionType) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _label(name: str, path: _Path) -> str:
    return ".".join(map(str, (name, *path)))


def load_state(value: Any, state: Any, env: ManagerBasedRlEnv, name: str = "state") -> None:
    """Load what :func:`save_state` returned into an object that was built in the same way.

    Tensors are written in place if they exist. ``name`` is the object's, for errors. An error may
    leave some values loaded.
    """
    built: dict[_Path, Any] = {}
    taken: dict[int, Any] = {}  # by memory here: names that shared it may share it no more

    def put(path: _Path, now: Any) -> Any:
        """What takes the place of ``now``: itself with other contents, if possible."""
        if type(state[path]) is not tuple:
            return state[path]
        kind, saved, *more = state[path]
        if kind == "same":
            return built[saved]
        if kind == "tensor":
            memory, device = more
            saved = saved.numpy() if device == "numpy" else saved
            fits = _alike(saved, now) and (device == "numpy" or now.device.type == device)
            if fits and not _is_fixed(now) and taken.setdefault(_memory(now), memory) == memory:
                _fill(now, saved)
            elif device == "numpy":
                now = saved.copy()[()]  # without dimensions, a number of NumPy
            else:
                with torch.inference_mode(False):
                    now = saved.to(env.device if device == env.device.type else device, copy=True)
            built[path] = now
            return now
        owner = path if isinstance(now, tuple) else taken.setdefault(id(now), path)
        if _name(now) != saved or (more and owner != path):
            if saved not in _MADE:
                raise ConfigError(
                    f"{_label(name, path)} must be {saved} when the environment is built, as in "
                    f"the saved episodes, got {_name(now)}"
                )
            now = _MADE[saved]()
        built[path] = now
        if kind == "generator":
            _leaf(type(now))[1](now, more[0])
        if kind == "contents":
            held = _container_of(type(now))(now)
            old = held if isinstance(held, dict) else dict(enumerate(held))
            new = {key: put((*path, key), old.get(key)) for key in more[0]}
            if isinstance(now, tuple):
                return getattr(now, "_make", type(now))(new.values())
            if held is now:
                _refill(now, new if isinstance(now, dict) else new.values())
            elif lost := held.keys() - new.keys() - _OF_MODULES:
                raise ConfigError(f"{_label(name, path)}.{min(lost)} must be in the saved episodes")
            else:
                held.update(new)
        return now

    with torch.no_grad(), torch.inference_mode():  # its tensors may be inference tensors
        put((), value)
