"""Values as their annotations say: one check for every configuration and every term's parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import torch

from unilab.errors import ConfigError

Bound = Annotated[float, "or infinite"]
"""Annotation of a number that may be infinite."""

Positive = Annotated[float, "above 0"]
"""Annotation of a finite number that is more than 0."""

# Numbers end in float32 tensors, where a larger one would be infinite.
_LARGEST = torch.finfo(torch.float32).max
_PLAIN = {
    bool: ("True or False", "flags"),
    int: ("an integer", "integers"),
    float: ("a finite number", "finite numbers"),
    str: ("a string", "strings"),
    NoneType: ("None", "None"),
    Path: ("a path", "paths"),
}


def check_fields(config: Any, path: str = "") -> None:
    """Refuse a configuration with a value that is not what its field says, however deep.

    Types, lengths and whether numbers are finite; what else a value must be, its owner checks. A
    field that was left at its default is not looked at, nor one whose annotation says nothing of
    this kind (``Any``, a callable).

    Args:
        config: a dataclass.
        path: where it is, for messages.

    Raises:
        ConfigError: names the field and what it must be.
    """
    hints = _hints_of_class(config.__class__)
    for field in fields(config):
        value = getattr(config, field.name)
        if value is not field.default:
            where = f"{path}.{field.name}" if path else field.name
            check_fits(where, value, hints.get(field.name, Any))


def check_fits(what: str, value: Any, hint: Any, *, infinite: bool = False, end: str = "") -> None:
    """Refuse a value that is not what its annotation says; see :func:`check_fields`.

    Args:
        what: its name, for messages.
        value: what was given.
        hint: the annotation.
        infinite: whether numbers may be.
        end: of the message.

    Raises:
        ConfigError: names the value and what it must be.
    """
    if hint is Any:
        return
    if expected := _expected(value, hint, infinite):
        raise ConfigError(f"{what} is {_shown(value)}: expected {expected}{end}")
    if is_dataclass(value) and not isinstance(value, type):
        check_fields(value, what)
    elif isinstance(value, Mapping):
        arms = [arm for arm in _arms(hint) if get_origin(arm) is dict]
        for key, item in value.items() if arms else ():
            of_key, of_item = get_args(arms[0])
            if wanted := _expected(key, of_key, infinite):
                raise ConfigError(f"{what} has the key {key!r}: expected {wanted}")
            where = f"{what}[{key!r}]"
            end = ", or leave it out" if item is None else ""
            check_fits(where, item, of_item, infinite=infinite, end=end)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says; see :func:`check_fields`."""
    return not _expected(value, hint)


def check_range(what: str, span: tuple[float, float]) -> None:
    """Refuse bounds to draw between that are reversed, or infinite.

    Args:
        what: their name, for messages.
        span: two numbers.

    Raises:
        ConfigError: names them.
    """
    low, high = span
    if not -_LARGEST <= low <= high <= _LARGEST:
        wrong = "reversed" if low > high else "not finite"
        raise ConfigError(f"{what} is {span}, which is {wrong}: expected (low, high)")


def to_num_envs(value: Any) -> int:
    """A number of environments.

    Raises:
        ConfigError: it is no integer, less than 1, or more than the simulator counts.
    """
    if _expected(value, int) or not 1 <= value < 2**31:
        raise ConfigError(f"num_envs is {value!r}: give an integer of at least 1, below 2^31")
    return int(value)


def to_seed(value: Any) -> int | None:
    """A seed; None leaves it open.

    Raises:
        ConfigError: it is no integer, negative or too large.
    """
    if value is not None and (_expected(value, int) or not 0 <= value < 2**32):
        raise ConfigError(f"seed is {value!r}: give an integer from 0 to {2**32 - 1}, or None")
    return None if value is None else int(value)


def to_device(value: Any) -> torch.device:
    """A device that terms can run on; whether it is there is not looked at.

    Raises:
        ConfigError: it is no device, or of another kind.
    """
    try:
        device = torch.device(value) if isinstance(value, str | torch.device) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {str(value)!r}: give 'cpu', 'cuda' or 'cuda:<n>'")
    return device


def hints_of(annotated: Any) -> dict[str, Any]:
    """The annotations of a class or function; none if one of them cannot be resolved."""
    # Terms import the environment's class for type checkers alone.
    names = None if isinstance(annotated, type) else {"ManagerBasedRlEnv": Any}
    try:
        return get_type_hints(annotated, localns=names, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


@lru_cache(maxsize=256)
def _hints_of_class(kind: type) -> dict[str, Any]:
    """Kept: a task has many configurations of few classes."""
    return hints_of(kind)


def _expected(value: Any, hint: Any, infinite: bool = False) -> str:
    """What a value must be to fit an annotation; empty if it fits."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        fits = _is_number(value, infinite=hint == Bound) and (hint == Bound or value > 0)
        return "" if fits else _named(hint)
    if origin in (Union, UnionType):
        wanted = [_expected(value, arm, infinite) for arm in args]
        return "" if "" in wanted else " or ".join(wanted)
    fits = True
    if hint is float:
        fits = _is_number(value, infinite)
    elif hint is int:
        fits = isinstance(value, Integral) and not isinstance(value, bool)
    elif hint in (bool, str, NoneType, Path) or is_dataclass(hint):
        fits = isinstance(value, hint)
    elif origin is dict:
        fits = isinstance(value, Mapping)
    elif origin in (tuple, list, Sequence):
        value = value.tolist() if hasattr(value, "tolist") else value  # an array, a tensor
        fits = isinstance(value, Sequence) and not isinstance(value, str)
        of_items = args if _counts(hint) else args[:1] * (len(value) if fits else 0)
        fits = fits and len(value) == len(of_items)
        fits = fits and not any(map(_expected, value, of_items, [infinite] * len(of_items)))
    return "" if fits else _named(hint)


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _counts(hint: Any) -> bool:
    """Whether an annotation says how many items there are."""
    return get_origin(hint) is tuple and get_args(hint)[1:] != (...,)


def _is_number(value: Any, infinite: bool) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    size: Any = abs(value)
    return bool(size <= _LARGEST) or (infinite and size == math.inf)


def _named(hint: Any, plural: bool = False) -> str:
    """An annotation in words."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint][plural]
    if origin is Annotated:
        if hint == Bound:
            return "numbers" if plural else "a number"
        return "finite numbers above 0" if plural else "a finite number above 0"
    if origin is dict:
        of_items = "" if args[1] is Any else f" of {_named(args[1], plural=True)} by name"
        return f"dicts{of_items}" if plural else f"a dict{of_items}"
    if origin in (tuple, list, Sequence):
        several = _named(args[0], plural=True)
        if not _counts(hint):
            return f"tuples of {several}" if plural else f"a tuple of {several}"
        return f"tuples of {len(args)} {several}" if plural else f"{len(args)} {several}"
    return getattr(hint, "__name__", "values")


def _shown(value: Any) -> str:
    """What was given, in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    if not (callable(value) or is_dataclass(value)) and len(text) <= 60:
        return text
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"
