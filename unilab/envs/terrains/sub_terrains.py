"""Kinds of terrain: functions from a difficulty to the heights of one tile.

A ``_range`` has the values of difficulty 0 and 1, in this order, and is linear between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from unilab.checks import Positive, check_fields, check_range
from unilab.errors import ConfigError

Range = tuple[float, float]


@dataclass(frozen=True)
class Tile:
    """The grid points of one tile: every ``cell`` m, half a cell from the edges."""

    size: tuple[float, float]
    """m along x and y."""
    cell: float
    """m between grid points."""

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """x ``[1, nx]`` and y ``[ny, 1]`` of the grid points, m from the tile's centre."""
        x, y = (
            (np.arange(round(length / self.cell)) + 0.5) * self.cell - 0.5 * length
            for length in self.size
        )
        return x[None, :], y[:, None]

    @property
    def from_edge(self) -> np.ndarray:
        """``[ny, nx]`` m, distance of the grid points from the nearest edge."""
        x, y = self.points
        return np.minimum(0.5 * self.size[0] - np.abs(x), 0.5 * self.size[1] - np.abs(y))

    def from_platform(self, width: float) -> np.ndarray:
        """``[ny, nx]`` m, distance from a square of that width in the middle; negative in it."""
        x, y = self.points
        return np.maximum(np.abs(x), np.abs(y)) - 0.5 * width


@dataclass(frozen=True, kw_only=True)
class SubTerrainCfg(ABC):
    """One kind of terrain. A kind of your own is a subclass with :meth:`heights`."""

    proportion: Positive = 1.0
    """Share of the columns, relative to the other kinds."""
    platform_width: Positive = 2.0
    """Side of the square in the middle of the tile where robots start, m."""

    horizontal: ClassVar[tuple[str, ...]] = ()
    """Fields that are lengths along the ground: at least a cell, and at most the way from the
    platform to the edge of the tile."""

    def __post_init__(self) -> None:
        check_fields(self)
        for field in fields(self):
            if field.name.endswith("_range"):
                low, high = bounds = getattr(self, field.name)
                check_range(field.name, (min(bounds), max(bounds)))
                if min(low, high) < 0.0:
                    raise ConfigError(f"{field.name} must be at least 0, got {bounds}")

    def check_fits(self, tile: Tile) -> None:
        """Refuse lengths that the tile cannot hold or its grid cannot show."""
        if self.platform_width >= min(tile.size):
            raise ConfigError(
                f"platform_width must be less than the tile's size {tile.size}, got "
                f"{self.platform_width}"
            )
        room = 0.5 * (min(tile.size) - self.platform_width)
        for name in self.horizontal:
            value = getattr(self, name)
            least, most = (f(value) if isinstance(value, tuple) else value for f in (min, max))
            if most > room * (1.0 + 1e-6):
                raise ConfigError(
                    f"{name} must be at most {room:g} m, from the platform to the edge of the "
                    f"tile, got {value}"
                )
            if least < tile.cell * (1.0 - 1e-6):
                raise ConfigError(
                    f"{name} must be at least horizontal_scale, {tile.cell} m, got {value}: it "
                    "would not show"
                )

    @abstractmethod
    def heights(self, difficulty: float, tile: Tile, rng: np.random.Generator) -> np.ndarray:
        """Heights ``[ny, nx]`` of the tile's grid points, m.

        Args:
            difficulty: in [0, 1].
            rng: the only source of randomness.
        """


def _at(bounds: Range, difficulty: float) -> float:
    return bounds[0] + difficulty * (bounds[1] - bounds[0])


@dataclass(frozen=True, kw_only=True)
class HfPyramidSlopedTerrainCfg(SubTerrainCfg):
    """Slopes that rise from all edges to the platform, or, inverted, fall to it."""

    slope_range: Range
    """Rise per length, tan of the angle."""
    inverted: bool = False
    """Whether the platform is at the bottom, so that robots walk up."""

    def heights(self, difficulty: float, tile: Tile, rng: np.random.Generator) -> np.ndarray:
        run = 0.5 * (min(tile.size) - self.platform_width)
        rise = _at(self.slope_range, difficulty) * np.minimum(tile.from_edge, run)
        return -rise if self.inverted else rise


@dataclass(frozen=True, kw_only=True)
class HfPyramidStairsTerrainCfg(SubTerrainCfg):
    """Stairs that rise from all edges to the platform, or, inverted, fall to it.

    A height field has no vertical faces: a riser is one cell deep.
    """

    step_height_range: Range
    """m."""
    step_width: Positive = 0.3
    """m, rounded to whole cells."""
    inverted: bool = False
    """Whether the platform is at the bottom, so that robots walk up."""

    horizontal: ClassVar = ("step_width",)

    def heights(self, difficulty: float, tile: Tile, rng: np.random.Generator) -> np.ndarray:
        width = round(self.step_width / tile.cell) * tile.cell
        run = 0.5 * (min(tile.size) - self.platform_width)
        steps = np.floor(np.minimum(tile.from_edge, run) / width + 1e-6)
        rise = _at(self.step_height_range, difficulty) * steps
        return -rise if self.inverted else rise


@dataclass(frozen=True, kw_only=True)
class HfRandomUniformTerrainCfg(SubTerrainCfg):
    """Uneven ground: the height of every grid point is drawn."""

    amplitude_range: Range
    """Largest height above and depth below the mean, m."""

    def heights(self, difficulty: float, tile: Tile, rng: np.random.Generator) -> np.ndarray:
        x, y = tile.points
        return _at(self.amplitude_range, difficulty) * rng.uniform(-1.0, 1.0, (y.size, x.size))


@dataclass(frozen=True, kw_only=True)
class HfSteppingStonesTerrainCfg(SubTerrainCfg):
    """Square stones with holes between them, around the platform."""

    stone_width_range: Range
    """m, rounded to whole cells."""
    stone_distance_range: Range
    """Width of the holes, m, rounded to whole cells."""
    holes_depth: Positive = 1.0
    """m."""

    horizontal: ClassVar = ("stone_width_range", "stone_distance_range")

    def heights(self, difficulty: float, tile: Tile, rng: np.random.Generator) -> np.ndarray:
        stone, hole = (
            round(_at(bounds, difficulty) / tile.cell)
            for bounds in (self.stone_width_range, self.stone_distance_range)
        )
        x, y = tile.points
        first = rng.integers(stone + hole, size=2)
        on_x, on_y = (
            (np.arange(n) + start) % (stone + hole) < stone
            for n, start in zip((x.size, y.size), first, strict=True)
        )
        stands = (on_x[None, :] & on_y[:, None]) | (tile.from_platform(self.platform_width) < 0.0)
        return np.where(stands, 0.0, -self.holes_depth)


@dataclass(frozen=True, kw_only=True)
class HfGapTerrainCfg(SubTerrainCfg):
    """A ditch around the platform."""

    gap_width_range: Range
    """m, rounded to whole cells."""
    gap_depth: Positive = 1.0
    """m."""

    horizontal: ClassVar = ("gap_width_range",)

    def heights(self, difficulty: float, tile: Tile, rng: np.random.Generator) -> np.ndarray:
        width = round(_at(self.gap_width_range, difficulty) / tile.cell) * tile.cell
        away = tile.from_platform(self.platform_width)
        return np.where((away > 0.0) & (away < width), -self.gap_depth, 0.0)
