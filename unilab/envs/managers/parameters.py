"""What a term is called with, checked against its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from unilab.checks import check_fits, hints_of
from unilab.envs.entity import SceneEntityCfg
from unilab.errors import ConfigError, did_you_mean


def bound_parameters(
    called: Callable[..., Any], title: str, params: Mapping[str, Any], leading: int
) -> dict[str, Any]:
    """Every parameter of a term by name: as given, or its default.

    Args:
        called: the function, or the method that is called.
        title: its name, for messages.
        params: what was given. Names that the signature lacks go to its ``**kwargs``.
        leading: positional arguments that are passed beside them.

    Raises:
        ConfigError: an unknown or missing parameter, or one that is not what its annotation says.
    """
    accepted, others = _accepted(called, leading)
    for key in params:
        if key not in accepted and others is None:
            raise ConfigError(f"{title} has no parameter {key!r}{did_you_mean(key, accepted)}")
    bound: dict[str, Any] = {}
    for key, default in accepted.items():
        if key not in params and default is inspect.Parameter.empty:
            raise ConfigError(f"{title} needs the parameter {key!r}")
        value = bound[key] = params.get(key, default)
        if isinstance(default, SceneEntityCfg) and not isinstance(value, SceneEntityCfg):
            given = repr(value) if isinstance(value, str) else "..."
            raise ConfigError(f"{key} is {value!r}: expected SceneEntityCfg({given})")
    bound.update(params)
    hints = hints_of(called)
    for key, value in params.items():
        if not isinstance(value, SceneEntityCfg):  # whose patterns are resolved
            hint = hints.get(key if key in accepted else str(others), Any)
            check_fits(key, value, hint, infinite=True)
    return bound


def _accepted(called: Callable[..., Any], leading: int) -> tuple[dict[str, Any], str | None]:
    """Defaults of the parameters behind the leading ones, and the name of its ``**kwargs``."""
    defaults: dict[str, Any] = {}
    others: str | None = None
    for name, parameter in inspect.signature(called).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            others = name
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            leading = 0  # it takes those that no name has taken
        elif leading and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            leading -= 1
        else:
            defaults[name] = parameter.default
    return defaults, others
