"""Checks of configurations: values against annotations, building and overriding dataclasses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

Bound = Annotated[float, "or infinite"]
"""Annotation of a number that may be infinite."""

Positive = Annotated[float, "above 0"]
"""Annotation of a finite number above 0."""

Count = Annotated[int, "at least 1"]
"""Annotation of an integer of at least 1."""

DEVICE_TYPES = ("cpu", "cuda")
"""Devices that terms can run on."""

_REMOVED = {
    "training": ("sim_carrier_device", "inference_transport"),
    "env": ("sim_carrier_device", "manager_torch_device"),
}
"""Keys that ``training.collector_tensor_device`` replaced (ADR-0018)."""

# Numbers end up in float32 tensors, where a larger one would be infinite.
_LARGEST = 3.4028234663852886e38
_WORDS = {
    bool: "True or False",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    NoneType: "None",
    Path: "a path",
    Bound: "a number",
    Positive: "a finite number above 0",
    Count: "an integer of at least 1",
}
T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Build a configuration from a nested mapping; keys that are left out keep their defaults.

    Lists become tuples, integers become floats, and whole floats (``1e6``) become integers where
    the annotation asks for it. ``path`` is the prefix of keys in messages.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path or cls.__name__} must be a table, got {_shown(values)}")
    settings = fields(cls)  # type: ignore[arg-type]
    hints = hints_of(cls)
    known = [field.name for field in settings]
    for key in values:
        if key not in known:
            raise _unknown(key, known, path)
    converted = {
        key: _convert(_join(path, key), value, hints.get(key, Any)) for key, value in values.items()
    }
    for field in settings:
        optional = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if not optional and field.name not in values:
            raise ConfigError(f"{_join(path, field.name)} is missing: give it a value")
    return _construct(path, lambda: cls(**converted))


def replace(config: T, overrides: Mapping[str, Any], path: str = "") -> T:
    """Copy a configuration with some values replaced, which are converted as in :func:`build`.

    Args:
        config: a dataclass; its tables are dicts of values or of further dataclasses.
        overrides: new values, nested or by dotted key: ``{"rewards.action_rate.weight": -0.02}``.
            None in the place of a term takes the term out of its table.
        path: prefix of the keys in messages.
    """
    current = {field.name: getattr(config, field.name) for field in fields(config)}  # type: ignore[arg-type]
    hints = hints_of(type(config))
    changed = {}
    for key, new in _by_key(overrides, ()).items():
        if key not in current:
            raise _unknown(key, current, path)
        changed[key] = _replaced(_join(path, key), current[key], new, hints.get(key, Any))
    return _construct(path, lambda: dataclasses.replace(config, **changed))  # type: ignore[type-var]


def check_fields(config: Any, path: str = "") -> None:
    """Check every field of a configuration against its annotation, nested ones included.

    Fields that were left at their default are not checked, nor those whose annotation says nothing
    about a value (``Any``, a callable). ``path`` is the prefix of names in messages.
    """
    hints = hints_of(config.__class__)
    for field in fields(config):
        value = getattr(config, field.name)
        if value is not field.default:
            check_fits(_join(path, field.name), value, hints.get(field.name, Any))


def check_fits(name: str, value: Any, hint: Any, *, infinite: bool = False) -> None:
    """Check a value against its annotation; ``infinite`` allows infinite numbers."""
    if expected := _expected(value, hint, infinite):
        raise ConfigError(f"{name} must be {expected}, got {_shown(value)}")
    if is_dataclass(value) and not isinstance(value, type):
        if hint is not Any:
            check_fields(value, name)
    elif isinstance(value, Mapping):
        of_key, of_item = _table_hints(hint)
        for key, item in value.items():
            check_fits(f"key of {name}", key, of_key)
            check_fits(f"{name}[{key!r}]", item, of_item, infinite=infinite)


def check_range(name: str, span: tuple[float, float]) -> None:
    """Raise ConfigError for bounds ``(low, high)`` that are reversed or infinite."""
    low, high = span
    if not -_LARGEST <= low <= high <= _LARGEST:
        raise ConfigError(f"{name} must be finite (low, high) with low <= high, got {span}")


def check_clip(name: str, clip: tuple[float, float], largest: float = _LARGEST) -> None:
    """Raise ConfigError for bounds that are reversed, or leave no value of a size up to largest."""
    low, high = clip
    if not (low <= high and low <= largest and high >= -largest):
        raise ConfigError(
            f"{name} must be (low, high) with low <= high, and have a value within {largest:g}, "
            f"got {clip}"
        )


def to_num_envs(value: Any) -> int:
    """Check a number of environments."""
    check_fits("num_envs", value, Count)
    return int(value)


def to_seed(value: Any) -> int | None:
    """Check a seed; None stands for a random one."""
    if value is None:
        return None
    if _expected(value, int) or not 0 <= value < 2**32:
        raise ConfigError(f"seed must be None or an integer from 0 to 2^32 - 1, got {value!r}")
    return int(value)


def refuse_removed(section: str, settings: Any) -> None:
    """Refuse a table of ``training`` or ``env`` with a key that no longer exists."""
    for key in _REMOVED[section]:
        if isinstance(settings, Mapping) and key in settings:
            raise ConfigError(
                f"{section}.{key} was removed: set training.collector_tensor_device, or device of "
                "unilab.make, instead"
            )


def to_device(value: Any) -> torch.device:
    """Check a device that terms can run on, whether or not it exists here."""
    import torch

    try:
        device = torch.device(value) if isinstance(value, str | torch.device) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICE_TYPES:
        raise ConfigError(f"device must be 'cpu', 'cuda' or 'cuda:<n>', got {str(value)!r}")
    return device


def hints_of(annotated: Any) -> dict[str, Any]:
    """Annotations of a class or function; empty if one of them cannot be resolved."""
    # Terms import the environment's class for type checkers only.
    names = None if isinstance(annotated, type) else {"ManagerBasedRlEnv": Any}
    try:
        return get_type_hints(annotated, localns=names, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _convert(name: str, value: Any, hint: Any) -> Any:
    converted = _converted(name, value, hint)
    check_fits(name, converted, hint)
    return converted


def _replaced(name: str, old: Any, new: Any, hint: Any) -> Any:
    if not isinstance(new, Mapping):
        as_before = hint is Any and isinstance(old, tuple) and isinstance(new, list)
        return _convert(name, tuple(new) if as_before else new, hint)
    if is_dataclass(old) and not isinstance(old, type):
        return replace(old, new, name)
    if not isinstance(old, Mapping):
        return _convert(name, new, hint)
    of_item = _table_hints(hint)[1]
    terms = is_dataclass(of_item)
    # Keys of other tables may be patterns, with dots in them.
    whole = old if terms or of_item is Any else new
    changed = dict(old)
    for key, value in _by_key(new, whole).items():
        if terms and key not in old:
            raise _unknown(key, old, name)
        if terms and value is None:
            del changed[key]
        else:
            changed[key] = _replaced(_join(name, key), old.get(key), value, of_item)
    return changed


def _by_key(overrides: Mapping[str, Any], whole: Iterable[str]) -> dict[str, Any]:
    """Overrides by the first part of their dotted keys; keys in ``whole`` are not split."""
    grouped: dict[str, Any] = {}
    for dotted, new in overrides.items():
        key, _, rest = (dotted, "", "") if dotted in whole else dotted.partition(".")
        new = {rest: new} if rest else new
        before = grouped.get(key)
        if isinstance(before, Mapping) and isinstance(new, Mapping):
            new = {**before, **new}
        grouped[key] = new
    return grouped


def _construct(path: str, make: Any) -> Any:
    try:
        return make()
    except ConfigError as error:
        if not path:
            raise
        raise ConfigError(f"{path}: {error}") from error


def _unknown(key: Any, known: Iterable[str], path: str) -> ConfigError:
    options = ", ".join(known) or "no keys"
    return ConfigError(
        f"unknown key {_join(path, str(key))!r}{did_you_mean(key, known)}: "
        f"{path or 'the top level'} has {options}"
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _converted(name: str, value: Any, hint: Any) -> Any:
    """A value in the type of its annotation where that loses nothing."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _converted(name, value, args[0])
    if origin in (Union, UnionType):
        for arm in args:
            converted = _converted(name, value, arm)
            if not _expected(converted, arm):
                return converted
        return value
    if is_dataclass(hint) and isinstance(value, Mapping):
        return build(hint, value, name)  # type: ignore[arg-type]
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin in (tuple, Sequence) and isinstance(value, list | tuple):
        of_items = _hints_of_items(hint, len(value))
        if len(of_items) == len(value):
            pairs = zip(value, of_items, strict=True)
            return tuple(_converted(name, item, of_item) for item, of_item in pairs)
    if origin is dict and isinstance(value, Mapping):
        return {key: _converted(_join(name, key), item, args[1]) for key, item in value.items()}
    return value


def _expected(value: Any, hint: Any, infinite: bool = False) -> str:
    """What a value must be to fit an annotation; empty if it fits."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        wanted = [_expected(value, arm, infinite) for arm in args]
        return "" if "" in wanted else " or ".join(wanted)
    fits = True
    if hint in (float, Bound):
        fits = _is_number(value, infinite or hint == Bound)
    elif hint == Positive:
        fits = _is_number(value, False) and value > 0
    elif hint in (int, Count):
        fits = isinstance(value, Integral) and not isinstance(value, bool)
        fits = fits and (hint != Count or value >= 1)
    elif hint in (bool, str, NoneType, Path) or is_dataclass(hint):
        fits = isinstance(value, hint)
    elif origin is Literal:
        fits = value in args
        return "" if fits else f"one of {', '.join(map(repr, args))}{did_you_mean(value, args)}"
    elif hint is dict or origin is dict:
        fits = isinstance(value, Mapping)
    elif origin in (tuple, list, Sequence):
        value = value.tolist() if hasattr(value, "tolist") else value  # an array, a tensor
        fits = isinstance(value, Sequence) and not isinstance(value, str)
        of_items = _hints_of_items(hint, len(value) if fits else 0)
        fits = fits and len(value) == len(of_items)
        fits = fits and not any(map(_expected, value, of_items, [infinite] * len(of_items)))
    return "" if fits else _WORDS.get(hint) or _type_name(hint)


def _table_hints(hint: Any) -> tuple[Any, Any]:
    """Annotations of the keys and values of a table."""
    arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((get_args(arm) for arm in arms if get_origin(arm) is dict), (Any, Any))


def _hints_of_items(hint: Any, length: int) -> tuple[Any, ...]:
    """Annotations of the items of a sequence; as many as it must have."""
    args = get_args(hint)
    fixed = get_origin(hint) is tuple and args[1:] != (...,)
    return args if fixed else args[:1] * length


def _is_number(value: Any, infinite: bool) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    size: Any = abs(value)
    return bool(size <= _LARGEST) or (infinite and size == math.inf)


def _type_name(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type_name(args[0])
    if origin is None:
        return "..." if hint is ... else getattr(hint, "__name__", str(hint))
    return f"{origin.__name__}[{', '.join(map(_type_name, args))}]"


def _shown(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    if not (callable(value) or is_dataclass(value)) and len(text) <= 60:
        return text
    return f"a value of type {type(value).__name__}"
