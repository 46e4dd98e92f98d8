"""Command terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.envs.managers.command import CommandTerm, CommandTermCfg
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


_VELOCITIES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


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
        for name in _VELOCITIES:
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
        self._ranges = {name: getattr(cfg, name) for name in _VELOCITIES}
        self._low, self._span = torch.zeros(2, 3, device=env.device)
        self.set_ranges()
        self._standing = cfg.rel_standing_envs
        self._command = torch.zeros(env.num_envs, 3, device=env.device)

    @property
    def command(self) -> Tensor:
        return self._command

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Bounds in force, by name of the configuration's fields."""
        return dict(self._ranges)

    def set_ranges(self, **ranges: tuple[float, float]) -> None:
        """Change the bounds of later draws, for a curriculum.

        Args:
            **ranges: new bounds of ``lin_vel_x``, ``lin_vel_y`` or ``ang_vel_z``.

        Raises:
            ConfigError: another name, or reversed bounds.
        """
        for name, (low, high) in ranges.items():
            if name not in _VELOCITIES:
                raise ConfigError(
                    f"the command has no range {name!r}{did_you_mean(name, _VELOCITIES)}: "
                    f"it has {_VELOCITIES}"
                )
            if low > high:
                raise ConfigError(f"{name} is {(low, high)}: expected (low, high)")
        self._ranges.update(ranges)
        low, high = torch.tensor([self._ranges[name] for name in _VELOCITIES]).T
        self._low.copy_(low)
        self._span.copy_(high - low)

    def resample(self, rows: Tensor) -> None:
        draw = torch.rand(rows.shape[0], 4, generator=self._env.generator, device=self._env.device)
        moving = draw[:, 3:] >= self._standing
        drawn = (self._low + self._span * draw[:, :3]).mul_(moving)
        self._command.index_copy_(0, rows, drawn)
