"""The terrain of a running environment: its heights, and the tile of each robot."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from unilab.backends import SimBackend
from unilab.envs.terrains.generator import TerrainGeneratorCfg
from unilab.errors import ConfigError

_FOOTPRINT = 0.5
"""Robots are placed on the highest ground within this distance of their root, m."""


class Terrain:
    """A height field and the tile that each environment starts its episodes on.

    Environments are divided evenly among the columns, and at first among the rows up to
    ``max_init_terrain_level``.
    """

    def __init__(self, cfg: TerrainGeneratorCfg, num_envs: int, device: torch.device) -> None:
        self.cfg = cfg
        self.generated = cfg.generate()
        self.kinds = cfg.kinds
        """Kind of each column."""
        self.heights = torch.from_numpy(self.generated.heights).to(device)
        """``[ny, nx]`` float32 m."""
        self.origins = torch.from_numpy(self.generated.origins).to(device)
        """``[num_rows, num_cols, 3]`` m, the middle of each tile."""
        envs = torch.arange(num_envs, device=device)
        last = cfg.max_init_terrain_level
        self._levels = envs % (cfg.num_rows if last is None else last + 1)
        self.types = envs * cfg.num_cols // num_envs
        """``[num_envs]`` int64, column of each environment's tile."""
        ny, nx = self.heights.shape
        self._first = -0.5 * (nx - 1) * cfg.horizontal_scale, -0.5 * (ny - 1) * cfg.horizontal_scale
        self.half_size = -self._first[0], -self._first[1]
        """Distance of the field's edges from the origin along x and y, m."""
        kinds = [self.kinds[i] for i in self.types.tolist()]
        members = [[1.0] * num_envs, *([k == kind for k in kinds] for kind in dict.fromkeys(kinds))]
        shares = torch.tensor(members, dtype=torch.float32, device=device)
        self._shares = shares / shares.sum(1, keepdim=True)
        self._groups = ["mean", *dict.fromkeys(kinds)]
        self._flat = self.heights.flatten()
        self._highest = _highest_around(
            self.heights, max(1, math.ceil(_FOOTPRINT / cfg.horizontal_scale - 1e-6))
        )

    @property
    def levels(self) -> Tensor:
        """``[num_envs]`` int64, row of each environment's tile; a curriculum writes into it.

        The environment saves it, and restores it if a reset is refused.
        """
        return self._levels

    @property
    def env_origins(self) -> Tensor:
        """``[num_envs, 3]`` m, the middle of each environment's tile."""
        return self.origins[self.levels, self.types]

    def height(self, x: Tensor, y: Tensor) -> Tensor:
        """Height of the ground at points of the world, m, in the shape of ``x`` and ``y``.

        Beyond the edges it is the height of the edge, at NaN it is NaN. Grid cells are two
        triangles, as in MuJoCo.
        """
        ny, nx = self.heights.shape
        scale = 1.0 / self.cfg.horizontal_scale
        # Points in cells, then the corner below and the position in the cell.
        x = ((x - self._first[0]) * scale).clamp_(0.0, nx - 1.0)
        y = ((y - self._first[1]) * scale).clamp_(0.0, ny - 1.0)
        column, row = x.floor().clamp_(max=nx - 2.0), y.floor().clamp_(max=ny - 2.0)
        x -= column
        y -= row
        corner = row.mul_(nx).add_(column).nan_to_num_().long()
        far = torch.maximum(x, y)
        near = torch.minimum(x, y)
        # The diagonal runs from this corner to the opposite one; the third is on the point's side.
        third = corner + torch.where(x > y, 1, nx)
        a, b, c = (self._flat.take(at) for at in (corner, third, corner + (nx + 1)))
        return a.add_((b - a).mul_(far)).add_((c - b).mul_(near))

    def spawn_height(self, xy: Tensor) -> Tensor:
        """Highest ground ``[n]`` within half a metre of points ``[n, 2]`` of the world, m.

        It is NaN at NaN.
        """
        ny, nx = self.heights.shape
        cell = self.cfg.horizontal_scale
        column = ((xy[:, 0] - self._first[0]) / cell).round().clamp(0, nx - 1).nan_to_num().long()
        row = ((xy[:, 1] - self._first[1]) / cell).round().clamp(0, ny - 1).nan_to_num().long()
        return torch.where(xy.isnan().any(1), math.nan, self._highest[row, column])

    def place(self, pos: Tensor, rows: Tensor) -> Tensor:
        """Positions ``[n, 3]`` relative to the tiles of environments ``[n]``, in the world.

        z is above the highest ground near the point, so that robots do not start inside it.
        """
        xy = pos[:, :2] + self.env_origins[rows, :2]
        return torch.cat((xy, (pos[:, 2] + self.spawn_height(xy)).unsqueeze(1)), 1)

    def update_env_origins(
        self, env_ids: Tensor, move_up: Tensor, move_down: Tensor, generator: torch.Generator
    ) -> None:
        """Move environments ``[n]`` a row up or down by masks ``[n]``, as in Isaac Lab.

        Those that leave the hardest row draw any row.
        """
        moved = self.levels[env_ids] + move_up.long() - move_down.long()
        drawn = torch.randint(
            self.cfg.num_rows, moved.shape, generator=generator, device=moved.device
        )
        moved = torch.where(moved >= self.cfg.num_rows, drawn, moved.clamp(min=0))
        self.levels.index_copy_(0, env_ids, moved)

    def __str__(self) -> str:
        (x, y), cfg = self.cfg.size, self.cfg
        tiles = f"{cfg.num_rows} levels x {cfg.num_cols} columns of {x:g} x {y:g} m"
        rows = [("tiles", f"{tiles}, a point every {cfg.horizontal_scale:g} m")]
        for kind in cfg.sub_terrains:
            columns = [i for i, name in enumerate(self.kinds) if name == kind]
            rows.append((kind, f"columns {columns[0]} to {columns[-1]}"))
        return "\n".join(["terrain", *(f"  {name:<28} {shown}" for name, shown in rows)])

    def spread_levels(self, saved: Tensor) -> None:
        """Take over levels ``[n]`` of as many or of other environments, evenly.

        Levels beyond the last row become the last.
        """
        n = self.levels.shape[0]
        at = (2 * torch.arange(n) + 1) * saved.shape[0] // (2 * n)
        self.levels.copy_(saved[at.to(saved.device)].clamp(max=self.cfg.num_rows - 1))

    def mean_levels(self) -> dict[str, Tensor]:
        """Mean level of all environments, ``mean``, and of those on each kind of terrain."""
        means = (self._shares @ self.levels.float()).unbind()
        return dict(zip(self._groups, means, strict=True))


def check_ground(terrain: Terrain | None, backend: SimBackend) -> None:
    """Refuse a backend whose generated ground is not the configuration's."""
    found, wanted = backend.ground, None if terrain is None else terrain.generated
    if wanted is None or found is None:
        same = wanted is None and found is None
    else:
        heights, cell = found
        # MuJoCo stretches fields to a height of at least 1 mm.
        same = (
            heights.shape == wanted.heights.shape
            and math.isclose(cell, wanted.cell, rel_tol=1e-6)
            and np.allclose(heights, wanted.heights, rtol=0.0, atol=1.1e-3)
        )
    if not same:
        shown = "no terrain" if found is None else "{1} x {0} points".format(*found[0].shape)
        raise ConfigError(
            f"the backend's ground must be that of scene.terrain, got {shown} and "
            f"{'no terrain' if terrain is None else terrain.cfg}: make it from "
            "scene_model(cfg.scene)"
        )


def _highest_around(heights: Tensor, reach: int) -> Tensor:
    """Largest height within ``reach`` grid points along x and y."""
    padded = torch.nn.functional.pad(heights[None, None], (reach,) * 4, value=-np.inf)
    wide = torch.nn.functional.max_pool2d(padded, (1, 2 * reach + 1), 1)
    return torch.nn.functional.max_pool2d(wide, (2 * reach + 1, 1), 1)[0, 0]
