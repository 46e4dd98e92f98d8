"""Markers that terms draw into pictures, films and viewers: arrows, spheres, axes of a frame, and
the robot in another pose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Vector = Sequence[float]
"""Three numbers, where nothing else is said."""
Colour = tuple[float, float, float, float]
"""Red, green, blue and opacity, 0 to 1."""

_AXES: tuple[Colour, ...] = ((0.9, 0.1, 0.1, 1.0), (0.1, 0.75, 0.2, 1.0), (0.15, 0.35, 0.95, 1.0))


@dataclass(frozen=True)
class Arrow:
    """An arrow in the world."""

    start: Vector
    """m."""
    vector: Vector
    """From start to tip, m."""
    rgba: Colour
    width: float = 0.02
    """Radius of the shaft, m."""


@dataclass(frozen=True)
class Sphere:
    """A ball in the world."""

    centre: Vector
    """m."""
    radius: float
    """m."""
    rgba: Colour


@dataclass(frozen=True)
class Ghost:
    """All that moves in the model once more, in another state."""

    qpos: Vector
    """``[nq]``."""
    rgba: Colour = (0.25, 0.55, 1.0, 0.35)


Marker = Arrow | Sphere | Ghost


def axes(origin: Vector, quat: Sequence[float], length: float) -> list[Marker]:
    """The x, y and z axis of a frame as a red, a green and a blue arrow.

    Args:
        origin: m.
        quat: frame to world, w first.
        length: m.

    >>> [arrow.vector for arrow in axes((0, 0, 0), (0, 1, 0, 0), 0.5)]  # upside down
    [(0.5, 0.0, 0.0), (0.0, -0.5, 0.0), (0.0, 0.0, -0.5)]
    """
    w, x, y, z = (float(v) for v in quat)
    columns = (
        (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
        (2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
        (2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)),
    )
    return [
        Arrow(origin, tuple(length * v for v in column), rgba, width=0.06 * length)
        for column, rgba in zip(columns, _AXES, strict=True)
    ]
