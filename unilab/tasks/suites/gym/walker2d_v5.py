"""A planar biped walks forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.checks import Bound
from unilab.tasks.suites.gym.gym_env import FallingEnv, HealthyCfg, between, check_range


@dataclass(frozen=True, kw_only=True)
class Walker2dCfg(HealthyCfg):
    """``gym/Walker2d-v5``."""

    episode_length_s: float = 8.0
    ctrl_cost_weight: float = 1e-3
    reset_noise_scale: float = 5e-3
    healthy_z_range: tuple[Bound, Bound] = (0.8, 2.0)
    healthy_angle_range: tuple[Bound, Bound] = (-1.0, 1.0)
    """rad, angles of the torso at which the robot is healthy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("healthy_angle_range", self.healthy_angle_range)

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Walker2d:
        """Build the environment."""
        return Walker2d(self, num_envs=num_envs, device=device, seed=seed)


class Walker2d(FallingEnv[Walker2dCfg]):
    """Gymnasium's ``Walker2d-v5``."""

    model = "walker2d_v5.xml"
    decimation = 4
    reward_terms = ("forward", "ctrl", "survive")

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (data["qpos"][:, 1:], data["qvel"].clamp(-10.0, 10.0))

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        return self._forward(), self._ctrl_cost(action), self._survive()

    def _healthy(self) -> Tensor:
        height, angle = self.data["qpos"][:, 1:3].unbind(1)
        return between(height, self.cfg.healthy_z_range) & between(
            angle, self.cfg.healthy_angle_range
        )


def walker2d_v5() -> Walker2dCfg:
    """Gymnasium's planar biped walks forward (6 joints, 1000 steps of 0.008 s)."""
    return Walker2dCfg()
