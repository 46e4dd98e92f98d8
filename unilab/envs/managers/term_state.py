"""The state of terms: everything that their objects remember, found, saved and restored.

This is every tensor, NumPy array, random generator (of PyTorch, NumPy or ``random``) and plain
value (number, flag, text, bytes, enum member, None) in an object's attributes, also in lists,
tuples, dicts, TensorDicts, modules and helper objects, and sets of plain values. What belongs to
the environment or to another term is left out, and so are frozen dataclasses without tensors, which
are settings.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from types import SimpleNamespace
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

_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.Generator: (
        lambda generator: generator.bit_generator.state,
        lambda generator, state: setattr(generator.bit_generator, "state", _native(state)),
    ),
    np.random.RandomState: (
        lambda generator: generator.get_state(legacy=False),
        lambda generator, state: generator.set_state(_native(state)),
    ),
    random.Random: (
        random.Random.getstate,
        lambda generator, state: generator.setstate(_native(state)),
    ),
}
"""How to read and set the state of a random generator, by its type."""
_OPAQUE = (
    Tensor,
    np.ndarray,
    TorchEnv,
    SimBackend,
    EntityScene,
    Entity,
    EntityData,
    SceneEntityCfg,
    Enum,
    type,
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_FIXED = (np.generic, frozenset, Enum)
"""Immutable values that are saved as plain ones or a set."""
_ABSENT = object()


def save_state(value: Any, env: ManagerBasedRlEnv) -> Any:
    """The state of an object of ``env`` as nested dicts and lists of tensors and plain values.

    Tensors are not copied. Other values are left out, or None in a list.
    """
    return _saved(value, _shared(env) - {id(value)})


def load_state(value: Any, state: Any, env: ManagerBasedRlEnv, name: str = "state") -> None:
    """Load what :func:`save_state` returned into an object that was built in the same way.

    ``name`` is the object's, for errors. An error may leave some values loaded.
    """
    with torch.inference_mode():  # its tensors may be inference tensors
        _loaded(value, state, _shared(env) - {id(value)}, env, name)


class StateSnapshot:
    """The state of some objects of ``env`` as it is now; parameters of modules are left out."""

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
        if isinstance(value, _PLAIN) or id(value) in self._found or id(value) in others:
            return
        if _is_leaf(value):
            if not isinstance(value, nn.Parameter):
                self._found[id(value)] = (value, _copy(value))
            return
        contents = _contents(value)
        if contents is not None:
            self._found[id(value)] = (value, contents)
            for child in contents.values():
                self._find(child, others)

    def restore(self) -> None:
        """Restore this state."""
        with torch.inference_mode():
            for value, saved in self._found.values():
                _write(value, saved) if _is_leaf(value) else _with(value, saved)

    def restore_but(self, rows: Tensor) -> None:
        """Restore this state, except for the rows ``[n]`` of tensors ``[num_envs, ...]``.

        Values without rows (numbers, lengths of lists, other tensors) are restored, generators are
        not. If ``rows`` are all rows, values that were None or absent keep what was made since.
        """
        done: dict[int, Any] = {}
        with torch.inference_mode():
            for root in self._roots:
                self._merged(root, root, rows, done)

    def _merged(self, old: Any, new: Any, rows: Tensor, done: dict[int, Any]) -> Any:
        """The old value with the rows of the new one."""
        whole = rows.shape[0] == self._num_envs
        if id(old) in done:
            return done[id(old)]
        if id(old) not in self._found or type(old) in _GENERATORS:
            made = old is None and whole and not isinstance(new, _PLAIN) and new is not _ABSENT
            return new if made else old
        _, saved = self._found[id(old)]
        if isinstance(old, set):
            _write(old, saved)
            return old
        if isinstance(old, Tensor | np.ndarray):
            if (
                type(new) is type(old)
                and new.shape[:1] == (self._num_envs,)
                and (new.shape, new.dtype) == (saved.shape, saved.dtype)
            ):
                at: Any = rows if isinstance(old, Tensor) else rows.cpu().numpy()
                saved = _copy(saved)
                saved[at] = new[at]
                if new is not old:
                    return saved
            _write(old, saved)
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
    standard = kind.__module__.partition(".")[0] in sys.stdlib_module_names  # loggers, locks, ...
    if isinstance(value, _OPAQUE) or (standard and kind is not SimpleNamespace):
        return None
    slots = _slots(kind)
    if not slots and not hasattr(value, "__dict__"):
        return None
    held: dict[Hashable, Any] = {n: getattr(value, n) for n in slots if hasattr(value, n)}
    held |= getattr(value, "__dict__", {})
    settings = getattr(kind, "__dataclass_params__", None)
    if settings is not None and settings.frozen:
        return held if any(isinstance(child, Tensor) for child in held.values()) else None
    return held


def _slots(kind: type) -> list[str]:
    slots = (getattr(base, "__slots__", ()) for base in kind.__mro__)
    names = [name for s in slots for name in ((s,) if isinstance(s, str) else s)]
    return [name for name in names if not name.startswith("__")]


def _with(container: Any, contents: dict[Any, Any]) -> Any:
    """The container with other contents; the same object, except for a tuple."""
    values = list(contents.values())
    if isinstance(container, tuple):
        if all(a is b for a, b in zip(container, values, strict=True)):
            return container
        kind: Any = type(container)
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    if isinstance(container, list | deque):
        container.clear()
        container.extend(values)
        return container
    slots = [] if isinstance(container, dict) else _slots(type(container))
    for name in slots:
        if name in contents:
            object.__setattr__(container, name, contents[name])  # frozen ones too
    held = container if isinstance(container, dict) else getattr(container, "__dict__", {})
    held.clear()
    held.update((name, value) for name, value in contents.items() if name not in slots)
    return container


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | set) or type(value) in _GENERATORS


def _copy(leaf: Any) -> Any:
    if type(leaf) in _GENERATORS:
        return _GENERATORS[type(leaf)][0](leaf)
    return leaf.clone() if isinstance(leaf, Tensor) else leaf.copy()


def _native(state: Any) -> Any:
    """A generator's saved state with arrays and tuples in place of tensors and lists."""
    if isinstance(state, dict):
        return {key: _native(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return tuple(map(_native, state))
    return state.cpu().numpy() if isinstance(state, Tensor) else state


def _write(leaf: Any, saved: Any) -> None:
    if type(leaf) in _GENERATORS:
        _GENERATORS[type(leaf)][1](leaf, saved)
    elif isinstance(leaf, set):
        leaf.clear()
        leaf.update(saved)
    elif isinstance(leaf, Tensor):
        # An expanded tensor cannot have been written to.
        if all(stride or size < 2 for stride, size in zip(leaf.stride(), leaf.shape, strict=True)):
            leaf.copy_(saved)
    elif leaf.flags.writeable:
        leaf[...] = saved


def _saved(value: Any, others: set[int]) -> Any:
    if isinstance(value, np.generic | Enum):
        value = value.item() if isinstance(value, np.generic) else value.value
        return value if isinstance(value, _PLAIN) else _ABSENT
    if isinstance(value, _PLAIN):
        return value
    if id(value) in others:
        return _ABSENT
    if type(value) in _GENERATORS:
        return _saved(_copy(value), set())
    if isinstance(value, set | frozenset):
        items = {_saved(item, set()) if isinstance(item, np.generic) else item for item in value}
        return items if all(type(item) in _PLAIN for item in items) else _ABSENT
    if isinstance(value, Tensor | np.ndarray):
        return torch.as_tensor(value).detach()
    contents = _contents(value)
    if contents is None:
        return _ABSENT
    others = others | {id(value)}  # an object may hold itself
    saved = {key: _saved(child, others) for key, child in contents.items()}
    if isinstance(value, list | tuple | deque):
        return [None if child is _ABSENT else child for child in saved.values()]
    return {key: child for key, child in saved.items() if child is not _ABSENT}


def _loaded(now: Any, state: Any, others: set[int], env: ManagerBasedRlEnv, name: str) -> Any:
    """What takes the place of ``now``, itself with new contents if possible."""
    if id(now) in others and not isinstance(now, _PLAIN):
        return now
    if type(now) in _GENERATORS or (isinstance(now, set) and isinstance(state, set)):
        _write(now, state)
        return now
    if isinstance(now, Tensor | np.ndarray):
        if not isinstance(state, Tensor) or _other_rows(state, now, env.num_envs):
            got = tuple(state.shape) if isinstance(state, Tensor) else repr(state)
            raise ConfigError(
                f"{name} must have the shape {tuple(now.shape)}, as in this task, got {got}"
            )
        if state.shape != now.shape:  # it changes with time
            copied = state.to(env.device, copy=True)
            return copied if isinstance(now, Tensor) else copied.cpu().numpy()
        with torch.no_grad():
            _write(now, state if isinstance(now, Tensor) else state.numpy())
        return now
    made = (
        isinstance(now, (*_PLAIN, *_FIXED)) or now is _ABSENT
    )  # later than when the object was built
    contents = {} if made else _contents(now)
    if contents is None:
        return now
    if isinstance(state, Tensor):
        return state.to(env.device, copy=True)
    if isinstance(now, _FIXED) and isinstance(state, (*_PLAIN, set)) and state is not None:
        kind: Any = type(now)
        return kind(state)
    if not isinstance(state, dict | list):
        return state.copy() if isinstance(state, set) else state
    others = others | {id(now)}
    items = state.items() if isinstance(state, dict) else enumerate(state)
    new = {
        key: _loaded(contents.get(key, _ABSENT), child, others, env, f"{name}.{key}")
        for key, child in items
    }
    if isinstance(now, dict):  # what is never saved stays, and so does the order
        kept = {k: v for k, v in contents.items() if k in new or _saved(v, others) is _ABSENT}
        new = kept | new
    if isinstance(now, list | tuple | deque | dict):
        if isinstance(now, tuple) and len(now) != len(new):
            return type(now)(new.values())
        return _with(now, new)
    if made:
        return new if isinstance(state, dict) else list(new.values())
    return _with(now, contents | new)


def _other_rows(state: Tensor, now: Any, num_envs: int) -> bool:
    """Whether a tensor with a row for each environment belongs to another number of them."""
    rows = now.shape[:1] == (num_envs,) and state.ndim == now.ndim
    return rows and state.shape[1:] == now.shape[1:] and len(state) != num_envs
