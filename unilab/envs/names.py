"""Parts found by patterns of their names, and values given by pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from unilab.backends.base import ActuatorInfo
from unilab.errors import ConfigError, did_you_mean

Patterns = str | Sequence[str]
"""Regular expressions, one or several, each matched against whole names."""
T = TypeVar("T")


def find_names(
    patterns: Patterns, names: Sequence[str], what: str, other_names: Sequence[str] = ()
) -> list[int]:
    """Indices of the names that match any pattern as a whole, in the order of ``names``.

    A pattern that matches none of them may match ``other_names`` of the same parts.
    """
    if not patterns:
        raise ConfigError(f"names of a {what} must be one of {list(names)}, got {patterns!r}")
    found: set[int] = set()
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        try:
            hits = [i for i, name in enumerate(names) if re.fullmatch(pattern, name)]
            hits = hits or [i for i, name in enumerate(other_names) if re.fullmatch(pattern, name)]
        except re.error as error:
            raise ConfigError(
                f"pattern {pattern!r} of a {what} must be a regular expression: {error}"
            ) from None
        if not hits:
            raise ConfigError(
                f"pattern {pattern!r} matches no {what}{did_you_mean(pattern, names)}; "
                f"there are {list(names)}"
            )
        found.update(hits)
    return sorted(found)


def find_actuators(patterns: Patterns, actuators: Sequence[ActuatorInfo], what: str) -> list[int]:
    """Indices of the actuators whose names or, if none match, whose joints' names match."""
    names = [actuator.name for actuator in actuators]
    return find_names(patterns, names, what, [actuator.joint or "" for actuator in actuators])


def values_of_names(
    value: T | Mapping[str, T],
    names: Sequence[str],
    what: str,
    label: str,
    other_names: Sequence[str] = (),
    default: T | None = None,
) -> list[T]:
    """The value of each part: one for all, or given by patterns, which must not overlap.

    Args:
        names, what, other_names: the parts, as in :func:`find_names`.
        label: the setting, for errors.
        default: of parts that no pattern matches; None makes them an error.
    """
    if not isinstance(value, Mapping):
        return [value] * len(names)
    owner: dict[int, str] = {}
    for pattern in value:
        for i in find_names([pattern], names, what, other_names):
            if i in owner:
                raise ConfigError(
                    f"{label} must give {names[i]!r} one value, got two, by {owner[i]!r} and by "
                    f"{pattern!r}"
                )
            owner[i] = pattern
    missing = [name for i, name in enumerate(names) if i not in owner]
    if missing and default is None:
        raise ConfigError(f"{label} must cover {missing}, got {list(value)}")
    values = (value[owner[i]] if i in owner else default for i in range(len(names)))
    return [each for each in values if each is not None]
