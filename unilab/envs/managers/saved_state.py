"""The state of terms in checkpoints: everything that their objects remember, saved and loaded.

This is every tensor, NumPy array, random generator and plain value (number, flag, text, None) in an
object's attributes, also in lists, tuples, sets, dicts, TensorDicts, modules, helper objects, bound
methods and the variables that a function encloses. What belongs to the environment or to another
term is left out, and so are functions, classes, loggers, locks and unilab's settings. Attributes of
classes and of the environment, and globals, are not found.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unilab.envs.managers.object_contents import (
    ABSENT,
    CODE,
    PLAIN,
    STATELESS,
    contents_of,
    fill_set,
    is_expanded,
    is_frozen,
    is_settings,
    leaf_of,
    shared_ids,
    with_contents,
)
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


def save_state(value: Any, env: ManagerBasedRlEnv, name: str = "state", *left_out: Any) -> Any:
    """The state of an object of ``env`` as nested lists of tensors and plain values.

    Tensors are not copied. Two names of one object are saved as one.

    Args:
        name: the object's, for errors.
        left_out: parts that are not saved, and stay when the state is loaded.
    """
    saver = _Saver(shared_ids(env).union(map(id, left_out)) - {id(value)})
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


def _name(value: Any) -> str:
    """A name of what is not saved but must be there when a state is loaded."""
    value = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(value, slice | range):
        return repr(value)
    named = value if isinstance(value, CODE) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _key(key: Any, name: str) -> Any:
    """A key as it is saved."""
    if type(key) in PLAIN:
        return key
    if type(key) is tuple:
        return ("", *(_key(part, name) for part in key))
    if isinstance(key, np.bool_ | np.integer | np.floating):
        return ("numpy", key.dtype.name, key.item())
    if isinstance(key, Enum):
        return (_name(key), key.name)
    if isinstance(key, CODE):
        return (_name(key),)
    raise _unsaved(key, f"a key of {name}")


def _unsaved(value: Any, name: str) -> ConfigError:
    return ConfigError(
        f"{name} must be a number, text, tensor, array, random generator, or a container or object "
        f"of these, to be saved, got {_name(value)}"
    )


def _not_built(kind: str, now: Any, name: str) -> ConfigError:
    got = "nothing" if now is ABSENT else _name(now)
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
        if kind in PLAIN:
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
        if leaf := leaf_of(type(value)):
            return [self.put(leaf[0](value), name)]
        contents = contents_of(value)
        if contents is not None:
            if isinstance(value, list | tuple | deque | dict) and getattr(value, "__dict__", None):
                raise _unsaved(value, name)
            items = [(_key(k, name), self.put(v, f"{name}.{k}")) for k, v in contents.items()]
            return [[list(item) for item in items], getattr(value, "maxlen", None)]
        if isinstance(value, STATELESS) or is_settings(type(value)):
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
        immutable = isinstance(value, tuple | frozenset | MethodType) or is_frozen(type(value))
        if not immutable:
            self._taken[id(value)] = self._done[node] = value
        if isinstance(value, set | frozenset):
            return self._filled_set(value, contents, name)
        if leaf := leaf_of(type(value)):
            leaf[1](value, self.get(contents, ABSENT, name))
            return value
        held = contents_of(value) or {}
        keys = self._keys([key for key, _ in contents], held, name)
        children = [child for _, child in contents]
        new = {
            key: self.get(child, held.get(key, ABSENT), f"{name}.{key}")
            for key, child in zip(keys, children, strict=True)
        }
        return with_contents(value, new)

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
            and not is_expanded(now)
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
        fill_set(now, set(values))
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
