"""The generator of a terrain, and its top view."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unilab.checks import Count, Positive, check_fields, to_seed
from unilab.envs.terrains.sub_terrains import SubTerrainCfg, Tile
from unilab.errors import ConfigError

_MOST_POINTS = 2**24
"""Grid points are numbered in float32, which counts no further."""
_HIGHEST = 1000.0
"""m; float32 is exact to 0.1 mm there."""


@dataclass(frozen=True, kw_only=True)
class TerrainGeneratorCfg:
    """Tiles in a grid: difficulty grows along x, by rows; kinds change along y, by columns.

    The grid is centred on the world's origin. The tiles depend on these settings alone.
    """

    sub_terrains: dict[str, SubTerrainCfg]
    """Kinds of terrain by name, in the order of their columns."""
    size: tuple[Positive, Positive] = (8.0, 8.0)
    """Size of a tile along x and y, m."""
    num_rows: Count = 10
    """Levels of difficulty."""
    num_cols: Count = 10
    """Columns, divided among the kinds by their proportions."""
    difficulty_range: tuple[float, float] = (0.0, 1.0)
    """Difficulty of the first and the last row, in [0, 1]."""
    border_width: float = 4.0
    """Flat ground around the grid, m."""
    horizontal_scale: Positive = 0.1
    """Distance between grid points, m."""
    max_init_terrain_level: int | None = None
    """Highest row that robots start training in; None: all rows."""
    seed: int = 0
    """Seed of what the kinds draw."""

    def __post_init__(self) -> None:
        check_fields(self, "terrain")
        to_seed(self.seed)
        if not self.sub_terrains:
            raise ConfigError("sub_terrains must have at least one kind of terrain, got none")
        low, high = self.difficulty_range
        if not 0.0 <= low <= high <= 1.0:
            raise ConfigError(
                f"difficulty_range must be (low, high) in [0, 1], got {self.difficulty_range}"
            )
        last = self.num_rows - 1
        if self.max_init_terrain_level is not None and not 0 <= self.max_init_terrain_level <= last:
            raise ConfigError(
                f"max_init_terrain_level must be in [0, {last}], the rows, got "
                f"{self.max_init_terrain_level}"
            )
        if self.border_width < 0.0:
            raise ConfigError(f"border_width must be at least 0 m, got {self.border_width}")
        for name in ("size", "border_width"):
            self._check_whole_cells(name)
        nx, ny = self._points()
        if min(nx, ny) < 2:
            raise ConfigError(
                f"horizontal_scale must give 2 grid points along x and y, got {nx} x {ny} with "
                f"{self.horizontal_scale} m"
            )
        if nx * ny > _MOST_POINTS:
            raise ConfigError(
                f"the terrain must have at most {_MOST_POINTS} grid points, got {nx} x {ny}: "
                "increase horizontal_scale, or make fewer or smaller tiles"
            )
        missing = set(self.sub_terrains) - set(self.kinds)
        if missing:
            raise ConfigError(
                f"num_cols must give every kind a column, got {self.num_cols}, which leaves none "
                f"for {sorted(missing)}: increase it, or the proportion of these"
            )
        for name, kind in self.sub_terrains.items():
            try:
                kind.check_fits(self.tile)
            except ConfigError as error:
                raise ConfigError(f"sub_terrains[{name!r}]: {error}") from error

    def _check_whole_cells(self, name: str) -> None:
        value = getattr(self, name)
        for length in value if isinstance(value, tuple) else (value,):
            cells = length / self.horizontal_scale
            if not math.isclose(cells, round(cells), abs_tol=1e-6):
                raise ConfigError(
                    f"{name} must be a multiple of horizontal_scale, {self.horizontal_scale} m, "
                    f"got {value}"
                )

    def _points(self) -> tuple[int, int]:
        """Grid points along x and y."""
        border = round(self.border_width / self.horizontal_scale)
        nx, ny = (round(length / self.horizontal_scale) for length in self.size)
        return nx * self.num_rows + 2 * border, ny * self.num_cols + 2 * border

    @property
    def tile(self) -> Tile:
        return Tile(self.size, self.horizontal_scale)

    @property
    def kinds(self) -> list[str]:
        """Kind of each column."""
        shares = np.cumsum([kind.proportion for kind in self.sub_terrains.values()])
        middles = (np.arange(self.num_cols) + 0.5) / self.num_cols * shares[-1]
        return [list(self.sub_terrains)[i] for i in np.searchsorted(shares, middles)]

    def generate(self) -> GeneratedTerrain:
        """All tiles in one height field."""
        border = round(self.border_width / self.horizontal_scale)
        nx, ny = self._points()
        heights = np.zeros((ny, nx), np.float32)
        tile = self.tile
        wide, high = (round(length / tile.cell) for length in self.size)
        origins = np.zeros((self.num_rows, self.num_cols, 3), np.float32)
        for row, difficulty in enumerate(np.linspace(*self.difficulty_range, self.num_rows)):
            for column, name in enumerate(self.kinds):
                kind, rng = self.sub_terrains[name], np.random.default_rng((self.seed, row, column))
                made = _heights(name, kind, float(difficulty), tile, rng)
                y, x = border + column * high, border + row * wide
                heights[y : y + high, x : x + wide] = made
                origins[row, column] = (
                    (row + 0.5 - 0.5 * self.num_rows) * self.size[0],
                    (column + 0.5 - 0.5 * self.num_cols) * self.size[1],
                    made[high // 2, wide // 2],
                )
        return GeneratedTerrain(heights, tile.cell, origins)


def _heights(
    name: str, kind: SubTerrainCfg, difficulty: float, tile: Tile, rng: np.random.Generator
) -> np.ndarray:
    """Heights of one tile, checked."""
    label = f"heights of sub_terrains[{name!r}] at difficulty {difficulty:g}"
    shape = tuple(round(length / tile.cell) for length in reversed(tile.size))
    try:
        made = kind.heights(difficulty, tile, rng)
    except Exception as error:
        raise ConfigError(f"{label} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, np.ndarray) or made.dtype.kind not in "iuf" or made.shape != shape:
        of = f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else repr(made)[:80]
        raise ConfigError(f"{label} must be an array of numbers [ny, nx] = {shape}, got {of}")
    if not np.isfinite(made).all():
        raise ConfigError(
            f"{label} must be finite, got {np.isnan(made).sum()} NaN and "
            f"{np.isinf(made).sum()} infinite"
        )
    if np.abs(made).max() > _HIGHEST:
        raise ConfigError(f"{label} must be within {_HIGHEST:g} m, got {np.abs(made).max():g}")
    return made


@dataclass(frozen=True, eq=False)
class GeneratedTerrain:
    """A height field around the world's origin, and the middles of its tiles."""

    heights: np.ndarray
    """``[ny, nx]`` float32 m, of grid points along y and x."""
    cell: float
    """Distance between grid points, m."""
    origins: np.ndarray
    """``[num_rows, num_cols, 3]`` float32 m: the middles of the tiles, on the ground."""

    def top_view(self) -> np.ndarray:
        """Picture ``[ny, nx, 3]`` uint8 from above, lit from the left: one pixel a grid point.

        x points right, so that tiles get harder to the right, and y up. High ground is light brown,
        low ground blue, holes are dark.
        """
        height = self.heights.astype(np.float64)
        low, high = np.percentile(height, (1.0, 99.0))
        level = np.clip((height - low) / max(high - low, 1e-6), 0.0, 1.0)[..., None]
        colour = (1.0 - level) * (0.25, 0.42, 0.62) + level * (0.93, 0.86, 0.70)
        along_y, along_x = np.gradient(height, self.cell)
        shade = (1.0 + 0.8 * along_x - 0.5 * along_y) / np.sqrt(1.0 + along_x**2 + along_y**2)
        lit = colour * np.clip(0.3 + 0.7 * shade, 0.15, 1.15)[..., None]
        return (np.clip(lit[::-1], 0.0, 1.0) * 255.0).astype(np.uint8)
