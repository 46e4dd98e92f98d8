"""Command terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.envs.managers.command import CommandTerm, CommandTermCfg
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class UniformVelocityCommandCfg(CommandTermCfg):
    """A planar velocity in the root frame, drawn uniformly."""

    lin_vel_x: tuple[float, float]
    """m/s, forward."""
    lin_vel_y: tuple[float, float]
    """m/s, to the left."""
    ang_vel_z: tuple[float, float]
    """rad/s, to the left."""
    rel_standing_envs: float = 0.0
    """Share of the draws that are replaced by standing still."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lin_vel_x", "lin_vel_y", "ang_vel_z"):
            low, high = getattr(self, name)
            if low > high:
                raise ConfigError(f"{name} is {(low, high)}: expected (low, high)")
        if not 0.0 <= self.rel_standing_envs <= 1.0:
            raise ConfigError(f"rel_standing_envs is {self.rel_standing_envs}: expected 0 to 1")

    def build(self, env: ManagerBasedRlEnv) -> UniformVelocityCommand:
        return UniformVelocityCommand(self, env)


class UniformVelocityCommand(CommandTerm):
    """``[num_envs, 3]``: forward, left (m/s) and yaw rate (rad/s)."""

    def __init__(self, cfg: UniformVelocityCommandCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        ranges = (cfg.lin_vel_x, cfg.lin_vel_y, cfg.ang_vel_z)
        self._low, high = torch.tensor(ranges, device=env.device).T
        self._span = high - self._low
        self._standing = cfg.rel_standing_envs
        self._command = torch.zeros(env.num_envs, 3, device=env.device)

    @property
    def command(self) -> Tensor:
        return self._command

    def resample(self, rows: Tensor) -> None:
        draw = torch.rand(rows.shape[0], 4, generator=self._env.generator, device=self._env.device)
        moving = draw[:, 3:] >= self._standing
        drawn = (self._low + self._span * draw[:, :3]).mul_(moving)
        self._command.index_copy_(0, rows, drawn)
