"""Nested mappings to config dataclasses and back, with errors that name the full key."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from unilab.errors import ConfigError, did_you_mean

__all__ = ["check_key", "from_dict", "to_dict"]

T = TypeVar("T")


def from_dict(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Builds a config dataclass from a nested mapping; keys left out keep their defaults.

    Args:
        cls: a dataclass whose fields are plain values, ``Literal``, optional, dicts or dataclasses.
        values: e.g. ``OmegaConf.to_container(cfg, resolve=True)``.
        path: prefix of the keys in messages.

    Raises:
        ConfigError: an unknown key, a missing required one, or a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path or cls.__name__}: expected a mapping, got {values!r}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise ConfigError(_unknown(_join(path, str(key)), str(key), fields, path))
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"{_join(path, name)} is missing: give it a value")
    converted = {
        name: _convert(hints[name], value, _join(path, name)) for name, value in values.items()
    }
    return cls(**converted)


def to_dict(cfg: Any) -> dict[str, Any]:
    """A config dataclass as nested plain dicts, ready for JSON and for :func:`from_dict`."""
    return dataclasses.asdict(cfg)


def check_key(cls: type, key: str) -> None:
    """Checks that a dotted key names a field of a config dataclass, or lies inside a dict field.

    Raises:
        ConfigError: it does not; the message has the nearest key of that level.
    """
    current: Any = cls
    path = ""
    for part in key.split("."):
        if not dataclasses.is_dataclass(current):
            if current is dict or typing.get_origin(current) is dict:
                return
            raise ConfigError(f"{key}: {path} is a single value and has no keys below it")
        hints = typing.get_type_hints(current)
        if part not in hints:
            raise ConfigError(_unknown(key, part, hints, path))
        current = _optional(hints[part])
        path = _join(path, part)


def _unknown(key: str, part: str, options: Mapping[str, Any], path: str) -> str:
    near = did_you_mean(part, options)
    return f"unknown key {key!r}{near}: {path or 'the top level'} has {', '.join(options)}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _optional(hint: Any) -> Any:
    """``T`` of ``T | None``; any other hint itself."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not types.NoneType)
    return hint


def _convert(hint: Any, value: Any, path: str) -> Any:
    inner = _optional(hint)
    if inner is not hint:
        return None if value is None else _convert(inner, value, path)
    origin = typing.get_origin(hint)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            near = did_you_mean(str(value), [str(a) for a in allowed])
            raise ConfigError(
                f"{path}={value!r}{near}: must be one of {', '.join(map(str, allowed))}"
            )
        return value
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, path)
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected a mapping, got {value!r}")
        return dict(value)
    # bool is an int to Python, and YAML reads 1e6 as a float: accept whole floats as counts.
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{path}={value!r}: expected {hint.__name__}, got {type(value).__name__}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{path}={value!r}: expected a finite number")
    return value
