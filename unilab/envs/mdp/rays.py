"""Ray casts as an observation: patterns of rays, and their distances to what they meet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unilab.checks import Count, Positive, check_fields, check_range
from unilab.envs import rotations
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.observation import ObservationTermCfg
from unilab.envs.managers.term import ManagerTermBase
from unilab.envs.mdp.observations import grid_points
from unilab.errors import ConfigError
from unilab.markers import Marker, Sphere

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = ["GridPatternCfg", "LidarPatternCfg", "ray_distances"]

_ROBOT = SceneEntityCfg("robot")


@dataclass(frozen=True, kw_only=True)
class GridPatternCfg:
    """Parallel rays from a grid around the sensor, ordered as those of ``height_scan``."""

    size: tuple[Positive, Positive]
    """Along x and y, m."""
    resolution: Positive
    """Distance between rays, m."""
    direction: tuple[float, float, float] = (0.0, 0.0, -1.0)

    def __post_init__(self) -> None:
        check_fields(self, "pattern")
        if not any(self.direction):
            raise ConfigError(f"direction must have a length, got {self.direction}")

    def rays(self) -> tuple[Tensor, Tensor]:
        """Starts (m) and unit directions in the sensor's frame, ``[rays, 3]`` each."""
        x, y = grid_points(*self.size, self.resolution)
        direction = torch.tensor(self.direction)
        start = torch.stack((x, y, torch.zeros_like(x)), 1)
        return start, (direction / direction.norm()).expand_as(start)


@dataclass(frozen=True, kw_only=True)
class LidarPatternCfg:
    """Rays from one point, channel by channel, each from right to left. As in Isaac Lab."""

    channels: Count
    """Rays above each other."""
    vertical_fov_range: tuple[float, float]
    """Elevation of the lowest and the highest channel, degrees."""
    horizontal_fov_range: tuple[float, float] = (-180.0, 180.0)
    """Of each channel, degrees; a whole turn has no ray twice."""
    horizontal_res: Positive
    """Largest angle between rays of a channel, degrees."""

    def __post_init__(self) -> None:
        check_fields(self, "pattern")
        check_range("vertical_fov_range", self.vertical_fov_range)
        check_range("horizontal_fov_range", self.horizontal_fov_range)

    def rays(self) -> tuple[Tensor, Tensor]:
        """Starts (m) and unit directions in the sensor's frame, ``[rays, 3]`` each."""
        first, last = self.horizontal_fov_range
        steps = math.ceil((last - first) / self.horizontal_res - 1e-9)
        across = torch.linspace(first, last, steps + 1).deg2rad()
        if math.isclose(last - first, 360.0):
            across = across[:-1]
        up = torch.linspace(*self.vertical_fov_range, self.channels).deg2rad()
        up, across = (angles.flatten() for angles in torch.meshgrid(up, across, indexing="ij"))
        direction = (up.cos() * across.cos(), up.cos() * across.sin(), up.sin())
        return torch.zeros(len(up), 3), torch.stack(direction, 1)


class ray_distances(ManagerTermBase):
    """Distances from a sensor on the root, or on the one body in ``body_names``, to the nearest
    geom along each ray of a pattern, ``[num_envs, rays]`` m; ``max_distance`` where a ray meets
    nothing nearer.

    Rays meet all visible geoms, whether or not these collide, but not those of the entities in
    ``exclude``.

    Args:
        offset: from the body to the sensor, m, turned like the pattern.
        ray_alignment: what turns the pattern: the whole orientation of the body, its yaw, or
            nothing.
    """

    def __init__(self, cfg: ObservationTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        start, self._direction = (v.to(env.device) for v in cfg.params["pattern"].rays())
        self._start = start + torch.tensor(cfg.params["offset"], device=env.device)

    def __call__(
        self,
        env: ManagerBasedRlEnv,
        pattern: GridPatternCfg | LidarPatternCfg,
        max_distance: Positive,
        offset: tuple[float, float, float] = (0.0, 0.0, 0.0),
        ray_alignment: Literal["base", "yaw", "world"] = "yaw",
        exclude: tuple[str, ...] = ("robot",),
        asset_cfg: SceneEntityCfg = _ROBOT,
    ) -> Tensor:
        start, direction = self._rays(ray_alignment, asset_cfg)
        return env.scene.cast_rays(start, direction, exclude).clamp(max=max_distance)

    def _rays(self, alignment: str, asset_cfg: SceneEntityCfg) -> tuple[Tensor, Tensor]:
        """Starts and directions in the world frame, ``[num_envs, rays, 3]`` each."""
        entity = self._env.scene[asset_cfg.name]
        data = entity.data
        if entity.means_root(asset_cfg):
            pos, quat = data.root_pos_w, data.root_quat_w
        else:
            pos, quat = data.body_pos_w(asset_cfg)[:, 0], data.body_quat_w(asset_cfg)[:, 0]
        if alignment == "world":
            quat = rotations.of_yaw(torch.zeros_like(quat[:, 0]))
        elif alignment == "yaw":
            quat = rotations.of_yaw(rotations.heading(quat))
        start, direction = (
            rotations.rotate_each(quat, value.expand(len(quat), -1, -1))
            for value in (self._start, self._direction)
        )
        return pos.unsqueeze(1) + start, direction

    def debug_draw(self, row: int) -> list[Marker]:
        """A red ball where each ray meets something."""
        params = self.cfg.params
        start, direction = self._rays(params["ray_alignment"], params["asset_cfg"])
        distance = self(self._env, **params)[row].unsqueeze(1)
        hits = (start[row] + distance * direction[row])[distance[:, 0] < params["max_distance"]]
        return [Sphere(hit, 0.015, (0.9, 0.1, 0.1, 1.0)) for hit in hits.tolist()]
