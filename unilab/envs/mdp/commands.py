"""Command terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import check_fields, check_fits, check_range
from unilab.envs import rotations
from unilab.envs.managers.command import CommandTerm, CommandTermCfg
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = ["UniformVelocityCommand", "UniformVelocityCommandCfg"]

_VELOCITIES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


@dataclass(frozen=True, kw_only=True)
class UniformVelocityCommandCfg(CommandTermCfg):
    """A planar velocity in the root frame, drawn uniformly; or, for a share of the draws, a
    horizontal velocity and a direction to face."""

    @dataclass(frozen=True, kw_only=True)
    class Ranges:
        """Lower and upper bounds of the draws."""

        lin_vel_x: tuple[float, float]
        """m/s, forward."""
        lin_vel_y: tuple[float, float]
        """m/s, to the left."""
        ang_vel_z: tuple[float, float]
        """rad/s, to the left."""
        heading: tuple[float, float] | None = None
        """Direction to face, rad in the world frame; for ``heading_command``."""

        def __post_init__(self) -> None:
            check_fields(self, "ranges")
            for field in fields(self):
                bounds = getattr(self, field.name)
                if bounds is not None:
                    check_range(field.name, bounds)

    ranges: Ranges
    rel_standing_envs: float = 0.0
    """Share of the draws that are zero: stand still."""
    heading_command: bool = False
    """Whether to draw directions to face."""
    rel_heading_envs: float = 1.0
    """Share of the draws that face one: their yaw rate turns towards it, within its range."""
    heading_control_stiffness: float = 1.0
    """Commanded yaw rate per angle left to turn, 1/s."""
    entity_name: str = "robot"
    """The entity that follows the command; needs a free root joint."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rel_standing_envs", "rel_heading_envs"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.heading_command != (self.ranges.heading is not None):
            raise ConfigError(
                "ranges.heading must be given exactly with heading_command=True, got "
                f"{self.ranges.heading} with {self.heading_command}"
            )

    def build(self, env: ManagerBasedRlEnv) -> UniformVelocityCommand:
        return UniformVelocityCommand(self, env)


class UniformVelocityCommand(CommandTerm):
    """``[num_envs, 3]``: forward, left (m/s) and yaw rate (rad/s)."""

    mirror = ("lin_vel_x", "-lin_vel_y", "-ang_vel_z")

    def __init__(self, cfg: UniformVelocityCommandCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self._cfg = cfg
        self._robot = env.scene[cfg.entity_name].data
        self._ranges = {name: getattr(cfg.ranges, name) for name in _VELOCITIES}
        self._bounds = torch.zeros(2, 3, device=env.device)
        self._low, self._span = self._bounds
        self.set_ranges()
        self._command = torch.zeros(env.num_envs, 3, device=env.device)
        self._heading = torch.zeros(env.num_envs, device=env.device)
        self._faces = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self._stale = False

    @property
    def command(self) -> Tensor:
        if self._stale:
            self._steer()
        return self._command

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Current bounds, by name of the configuration's fields."""
        return dict(self._ranges)

    def check_ranges(self, **ranges: tuple[float, float]) -> None:
        """Refuse unknown names, and bounds that are reversed or not finite."""
        for name, bounds in ranges.items():
            if name not in _VELOCITIES:
                raise ConfigError(
                    f"the command has no range {name!r}{did_you_mean(name, _VELOCITIES)}: "
                    f"it has {_VELOCITIES}"
                )
            check_fits(name, bounds, tuple[float, float])
            check_range(name, bounds)

    def set_ranges(self, **ranges: tuple[float, float]) -> None:
        """Change the bounds of later draws, for a curriculum."""
        self.check_ranges(**ranges)
        self._ranges.update(ranges)
        low, high = torch.tensor([self._ranges[name] for name in _VELOCITIES]).T
        self._bounds.copy_(torch.stack((low, high - low)))

    def compute(self) -> None:
        super().compute()
        self._stale = self._cfg.heading_command

    def metrics(self) -> dict[str, Tensor]:
        """``error_vel_xy`` (m/s) and ``error_vel_yaw`` (rad/s): distances from the command."""
        off_xy = self.command[:, :2] - self._robot.root_lin_vel_b[:, :2]
        off_yaw = self.command[:, 2] - self._robot.root_ang_vel_b[:, 2]
        return {
            "error_vel_xy": torch.linalg.vector_norm(off_xy, dim=1),
            "error_vel_yaw": off_yaw.abs(),
        }

    def resample(self, rows: Tensor) -> None:
        draw = torch.rand(rows.shape[0], 4, generator=self._env.generator, device=self._env.device)
        moving = draw[:, 3:] >= self._cfg.rel_standing_envs
        drawn = (self._low + self._span * draw[:, :3]).mul_(moving)
        self._command.index_copy_(0, rows, drawn)
        bounds = self._cfg.ranges.heading
        if bounds is not None:
            draw = draw.new_empty(2, rows.shape[0]).uniform_(generator=self._env.generator)
            faces = (draw[0] < self._cfg.rel_heading_envs) & moving[:, 0]
            self._faces.index_copy_(0, rows, faces)
            self._heading.index_copy_(0, rows, bounds[0] + (bounds[1] - bounds[0]) * draw[1])
            self._stale = True

    def reflect(self, rows: Tensor) -> None:
        self._heading[rows] *= -1.0

    def _steer(self) -> None:
        """Turn the rows that face a direction towards it."""
        heading = rotations.heading(self._env.scene[self._cfg.entity_name].data.root_quat_w)
        left = (self._heading - heading + math.pi).remainder(2.0 * math.pi) - math.pi
        rate = left * self._cfg.heading_control_stiffness
        rate = torch.clamp(rate, self._low[2], self._low[2] + self._span[2])
        yaw = self._command[:, 2]
        yaw.copy_(torch.where(self._faces, rate, yaw))
        self._stale = False
