"""The state of terms: everything that their objects remember, found, saved and restored.

This is every tensor, NumPy array, random generator and plain value (number, flag, text, None) in an
object's attributes, also in lists, tuples, sets, dicts, TensorDicts, modules, helper objects, bound
methods and the variables that a function encloses. What belongs to the environment or to another
term is left out, and so are functions, classes, loggers, locks and unilab's settings. Attributes of
classes and of the environment, and globals, are not found.
"""

from __future__ import annotations

import copy
import logging
import random
import re
import sys
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from functools import cache, partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from unilab.backends import SimBackend
from unilab.envs.entity import Entity, EntityData, SceneEntityCfg
from unilab.envs.scene import EntityScene
from unilab.envs.torch_env import TorchEnv
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_PLAIN = {bool, int, float, complex, str, bytes, type(None)}
_PLAIN |= {torch.Size, torch.dtype, torch.device}
_CODE = (type, FunctionType, BuiltinFunctionType)
_STATELESS = (
    *(
        *_CODE,
        slice,
        range,
        ModuleType,
        np.dtype,
        np.ufunc,
        re.Pattern,
        PurePath,
        weakref.ref,
        logging.Logger,
    ),
    *(np.dtype, np.ufunc, type(threading.Lock()), type(threading.RLock()), random.SystemRandom),
    *(TorchEnv, SimBackend, EntityScene, Entity, EntityData, SceneEntityCfg),
)
_GENERATORS = (
    *(torch.Generator, np.random.Generator, np.random.BitGenerator),
    *(np.random.RandomState, random.Random),
)
_ABSENT = object()


def _fill(tensor: Tensor, saved: Tensor) -> None:
    if not _expanded(tensor):  # an expanded one cannot have been written to
        tensor.copy_(saved)


def _fill_array(array: Any, saved: Any) -> None:
    if array.flags.writeable:
        array[...] = saved


def _fill_set(held: set[Any], saved: set[Any]) -> None:
    held.clear()
    held.update(saved)


_LEAVES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    Tensor: (Tensor.clone, _fill),
    np.ndarray: (np.ndarray.copy, _fill_array),
    set: (set.copy, _fill_set),
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


_leaf: Callable[[Any], Any] = cache(_find_leaf)


def save_state(value: Any, env: ManagerBasedRlEnv, name: str = "state", *left_out: Any) -> Any:
    """The state of an object of ``env`` as nested lists of tensors and plain values.

    Tensors are not copied. Two names of one object are saved as one.

    Args:
        name: the object's, for errors.
        left_out: parts that are not saved, and stay when the state is loaded.
    """
    saver = _Saver(_shared(env).union(map(id, left_out)) - {id(value)})
    saver.put(value, name)
    return saver.nodes


def load_state(value: Any, state: Any, env: ManagerBasedRlEnv, name: str = "state") -> None:
    """Load what :func:`save_state` returned into an object that was built in the same way.

    Tensors are written in place if they exist. ``name`` is the object's, for errors. An error may
    leave some values loaded.
    """
    loader = _Loader(state, env)
    with torch.no_grad(), torch.inference_mode():  # its tensors may be inference tensors
        loader.get((0,), value, name)


class StateSnapshot:
    """The state of some objects of ``env`` as it is now; trained parameters are left out."""

    def __init__(self, env: ManagerBasedRlEnv, roots: Sequence[Any]) -> None:
        self._roots = roots
        self._num_envs = env.num_envs
        self._found: dict[int, tuple[Any, Any]] = {}
        """Leaves with copies and containers with their contents, by id."""
        others = _shared(env) - {id(root) for root in roots} if roots else set()
        with torch.inference_mode():
            for root in roots:
                self._find(root, others)

    def _find(self, value: Any, others: set[int]) -> None:
        if type(value) in _PLAIN or id(value) in self._found or id(value) in others:
            return
        if leaf := _leaf(type(value)):
            if not isinstance(value, nn.Parameter) or not value.requires_grad:
                self._found[id(value)] = (value, leaf[0](value))
            return
        contents = _contents(value)
        if contents is not None:
            self._found[id(value)] = (value, contents)
            for child in contents.values():
                self._find(child, others)

    def restore(self) -> None:
        """Restore this state."""
        with torch.no_grad(), torch.inference_mode():
            for value, saved in self._found.values():
                leaf = _leaf(type(value))
                leaf[1](value, saved) if leaf else _with(value, saved)

    def restore_but(self, rows: Tensor) -> None:
        """Restore this state, except for the rows ``[n]`` of tensors ``[num_envs, ...]``.

        Values without rows (numbers, lengths of lists, other tensors) are restored, generators are
        not. If ``rows`` are all rows, values that were None or absent keep what was made since.
        """
        done: dict[int, Any] = {}
        with torch.no_grad(), torch.inference_mode():
            for root in self._roots:
                self._merged(root, root, rows, done)

    def _merged(self, old: Any, new: Any, rows: Tensor, done: dict[int, Any]) -> Any:
        """The old value with the rows of the new one."""
        whole = rows.shape[0] == self._num_envs
        if id(old) in done:
            return done[id(old)]
        if id(old) not in self._found or isinstance(old, _GENERATORS):
            made = old is None and whole and type(new) not in _PLAIN and new is not _ABSENT
            return new if made else old
        _, saved = self._found[id(old)]
        if leaf := _leaf(type(old)):
            if (
                isinstance(old, Tensor | np.ndarray)
                and type(new) is type(old)
                and new.shape[:1] == (self._num_envs,)
                and (new.shape, new.dtype) == (saved.shape, saved.dtype)
            ):
                at: Any = rows if isinstance(old, Tensor) else rows.cpu().numpy()
                saved = leaf[0](saved)
                saved[at] = new[at]
                if new is not old:
                    return saved
            leaf[1](old, saved)
            return old
        now = _contents(new) if type(new) is type(old) else None
        if now is None or (isinstance(old, list | tuple | deque) and len(now) != len(saved)):
            now = {}
        done[id(old)] = old
        merged = {k: self._merged(v, now.get(k, _ABSENT), rows, done) for k, v in saved.items()}
        done[id(old)] = _with(old, now | merged if whole else merged)
        return done[id(old)]


def _shared(env: ManagerBasedRlEnv) -> set[int]:
    """Ids of what belongs to the environment, and of its terms."""
    terms = [*env.command_manager.terms.values(), *(term.func for term in env.terms)]
    return {id(value) for value in (*vars(env).values(), *env.terms, *terms)}


def _contents(value: Any) -> dict[Hashable, Any] | None:
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
    if isinstance(value, (*_STATELESS, Enum)) or (_library(kind) and kind is not SimpleNamespace):
        return None
    slots = _slots(kind)
    if not slots and not hasattr(value, "__dict__"):
        return None
    held: dict[Hashable, Any] = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    held |= getattr(value, "__dict__", {})
    return (
        None if _settings(kind) and not any(isinstance(v, Tensor) for v in held.values()) else held
    )


def _library(code: Any, *others: str) -> bool:
    """Whether a class or function is of Python's library or of these packages."""
    package = (code.__module__ or "").partition(".")[0]
    return package in sys.stdlib_module_names or package in others


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not _ABSENT
    except ValueError:
        return False


def _frozen(kind: type) -> bool:
    return bool(getattr(getattr(kind, "__dataclass_params__", None), "frozen", False))


def _settings(kind: type) -> bool:
    return _frozen(kind) and _library(kind, "unilab")


def _slots(kind: type) -> list[str]:
    slots = (getattr(base, "__slots__", ()) for base in kind.__mro__)
    names = [name for s in slots for name in ((s,) if isinstance(s, str) else s)]
    return [name for name in names if not name.startswith("__")]


def _with(container: Any, contents: dict[Any, Any]) -> Any:
    """The container with other contents; the same object, except for an immutable one."""
    values, kind = list(contents.values()), type(container)
    if isinstance(container, tuple | MethodType) or _frozen(kind):
        held = _contents(container) or {}
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


def _expanded(tensor: Tensor) -> bool:
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in sizes)


def _name(value: Any) -> str:
    """A name of what is not saved but must be there when a state is loaded."""
    value = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(value, slice | range):
        return repr(value)
    named = value if isinstance(value, _CODE) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _key(key: Any, name: str) -> Any:
    """A key as it is saved."""
    if type(key) in _PLAIN:
        return key
    if type(key) is tuple:
        return ("", *(_key(part, name) for part in key))
    if isinstance(key, np.bool_ | np.integer | np.floating):
        return ("numpy", key.dtype.name, key.item())
    if isinstance(key, Enum):
        return (_name(key), key.name)
    if isinstance(key, _CODE):
        return (_name(key),)
    raise _unsaved(key, f"a key of {name}")


def _unsaved(value: Any, name: str) -> ConfigError:
    return ConfigError(
        f"{name} must be a number, text, tensor, array, random generator, or a container or object "
        f"of these, to be saved, got {_name(value)}"
    )


def _not_built(kind: str, now: Any, name: str) -> ConfigError:
    got = "nothing" if now is _ABSENT else _name(now)
    return ConfigError(
        f"{name} must be {kind} when the environment is built, as in the saved episodes, got {got}"
    )


class _Saver:
    """Nodes ``[name of type, contents, ...]``; in these, ``(i,)`` stands for node ``i``."""

    def __init__(self, others: set[int]) -> None:
        self.nodes: list[list[Any]] = []
        self._others = others
        self._seen: dict[int, tuple[int]] = {}
        self._alive: list[Any] = []
        self._storages: dict[int, int] = {}

    def put(self, value: Any, name: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if id(value) not in self._seen:
            self._seen[id(value)] = (len(self.nodes),)
            self._alive.append(value)  # or another object may get its id
            self.nodes.append([_name(value)])
            self.nodes[self._seen[id(value)][0]] += self._parts(value, name)
        return self._seen[id(value)]

    def _parts(self, value: Any, name: str) -> list[Any]:
        if id(value) in self._others:
            return []
        if isinstance(value, Enum):
            return [value.name]
        if isinstance(value, np.bool_ | np.integer | np.floating) and value.nbytes <= 8:
            return [value.item()]
        if isinstance(value, Tensor):
            memory = value.untyped_storage()._cdata
            number = self._storages.setdefault(memory, len(self._storages))
            return [value.detach(), number, value.device.type]
        if isinstance(value, np.ndarray):
            try:
                return [torch.as_tensor(value)]
            except TypeError:
                raise _unsaved(value, name) from None
        if isinstance(value, set | frozenset):
            return [sorted((_key(each, name) for each in value), key=repr)]
        if leaf := _leaf(type(value)):
            return [self.put(leaf[0](value), name)]
        contents = _contents(value)
        if contents is not None:
            if isinstance(value, list | tuple | deque | dict) and getattr(value, "__dict__", None):
                raise _unsaved(value, name)
            items = [(_key(k, name), self.put(v, f"{name}.{k}")) for k, v in contents.items()]
            return [[list(item) for item in items], getattr(value, "maxlen", None)]
        if isinstance(value, _STATELESS) or _settings(type(value)):
            return []
        raise _unsaved(value, name)


_MADE: dict[str, Callable[[Any], Any]] = {
    "builtins.list": lambda _: [],
    "builtins.dict": lambda _: {},
    "builtins.tuple": lambda _: (),
    "builtins.bytearray": lambda _: bytearray(),
    "builtins.set": lambda _: set(),
    "builtins.frozenset": lambda _: frozenset(),
    "collections.deque": lambda maxlen: deque(maxlen=maxlen),
    "collections.OrderedDict": lambda _: OrderedDict(),
    "collections.Counter": lambda _: Counter(),
}
"""What a state can make itself, where the object did not have it when it was built."""


class _Loader:
    """Puts the nodes of a :class:`_Saver` in place of the objects that are there now."""

    def __init__(self, nodes: list[list[Any]], env: ManagerBasedRlEnv) -> None:
        self._nodes = nodes
        self._env = env
        self._done: dict[int, Any] = {}
        self._taken: dict[int, Any] = {}
        self._storages: dict[int, int] = {}
        """Memory of tensors here and in the state: names that shared it may share it no more."""

    def get(self, part: Any, now: Any, name: str) -> Any:
        """What takes the place of ``now``: itself with other contents, if possible."""
        if type(part) is not tuple:
            return part
        (node,) = part
        if len(self._nodes[node]) == 1:  # left out
            return self._left_out(self._nodes[node][0], now, name)
        if node not in self._done:
            self._done[node] = self._value(node, now, name)
        return self._done[node]

    def _value(self, node: int, now: Any, name: str) -> Any:
        kind, *parts = self._nodes[node]
        fits = _name(now) == kind
        if isinstance(parts[0], Tensor):
            self._check_rows(parts[0], now, name)
            how: Callable[..., Any] = self._tensor if len(parts) > 1 else self._array
            return how(*parts, now, fits)
        if fits and isinstance(now, Enum):
            return type(now)[parts[0]]
        if kind.startswith("numpy.") and type(parts[0]) in (bool, int, float):
            return np.dtype(kind.removeprefix("numpy.")).type(parts[0])
        contents, maxlen = (*parts, None, None)[:2]
        value = now
        if not fits or id(now) in self._taken or getattr(now, "maxlen", None) != maxlen:
            if kind not in _MADE:
                raise _not_built(kind, now, name)
            value = _MADE[kind](maxlen)
        immutable = isinstance(value, tuple | frozenset | MethodType) or _frozen(type(value))
        if not immutable:
            self._taken[id(value)] = self._done[node] = value
        if isinstance(value, set | frozenset):
            return self._filled_set(value, contents, name)
        if leaf := _leaf(type(value)):
            leaf[1](value, self.get(contents, _ABSENT, name))
            return value
        held = _contents(value) or {}
        keys = self._keys([key for key, _ in contents], held, name)
        children = [child for _, child in contents]
        new = {
            key: self.get(child, held.get(key, _ABSENT), f"{name}.{key}")
            for key, child in zip(keys, children, strict=True)
        }
        return _with(value, new)

    def _left_out(self, kind: str, now: Any, name: str) -> Any:
        if _name(now) != kind:
            raise _not_built(kind, now, name)
        return now

    def _check_rows(self, state: Tensor, now: Any, name: str) -> None:
        """Refuse a tensor with a row for each environment, of another number of them."""
        num_envs = self._env.num_envs
        if not isinstance(now, Tensor | np.ndarray) or now.shape[:1] != (num_envs,):
            return
        if state.shape[1:] == now.shape[1:] and state.shape[:1] != (num_envs,):
            raise ConfigError(
                f"{name} must have the shape {tuple(now.shape)}, as in this task, got "
                f"{tuple(state.shape)}"
            )

    def _tensor(self, state: Tensor, storage: int, device: str, now: Any, fits: bool) -> Tensor:
        if (
            fits
            and (now.shape, now.dtype, now.device.type) == (state.shape, state.dtype, device)
            and not _expanded(now)
            and self._storages.setdefault(now.untyped_storage()._cdata, storage) == storage
        ):
            return now.copy_(state)
        with torch.inference_mode(False):
            on = self._env.device if device == self._env.device.type else device
            return state.to(on, copy=True)

    def _array(self, state: Tensor, now: Any, fits: bool) -> Any:
        array = state.numpy()
        free = fits and id(now) not in self._taken and now.flags.writeable
        if not free or (now.shape, now.dtype) != (array.shape, array.dtype):
            return array.copy()
        self._taken[id(now)] = now
        now[...] = array
        return now

    def _filled_set(self, now: Any, keys: list[Any], name: str) -> Any:
        values = self._keys(keys, now, name)
        if isinstance(now, frozenset):
            return frozenset(values)
        _fill_set(now, set(values))
        return now

    def _keys(self, keys: list[Any], live: Any, name: str) -> list[Any]:
        """Keys that were saved; members of enums, functions and classes are looked up in live."""
        if all(type(key) is not tuple for key in keys):
            return keys
        known = {_key(key, name): key for key in live}
        return [self._made_key(key, known, name) for key in keys]

    def _made_key(self, key: Any, known: dict[Any, Any], name: str) -> Any:
        if key in known or type(key) is not tuple:
            return known.get(key, key)
        if key[0] == "numpy":
            return np.dtype(key[1]).type(key[2])
        if key[0] != "":
            raise ConfigError(f"{name} must have the key {'.'.join(key)}, as in the saved episodes")
        return tuple(self._made_key(part, known, name) for part in key[1:])
