"""A planar one-legged robot hops forward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.checks import Bound
from unilab.tasks.suites.gym.gym_env import FallingEnv, HealthyCfg, between, check_range


@dataclass(frozen=True, kw_only=True)
class HopperCfg(HealthyCfg):
    """``gym/Hopper-v5``."""

    episode_length_s: float = 8.0
    ctrl_cost_weight: float = 1e-3
    reset_noise_scale: float = 5e-3
    healthy_z_range: tuple[Bound, Bound] = (0.7, math.inf)
    healthy_angle_range: tuple[Bound, Bound] = (-0.2, 0.2)
    """rad, angles of the torso at which the robot is healthy."""
    healthy_state_range: tuple[Bound, Bound] = (-100.0, 100.0)
    """m, rad and their rates, for every other coordinate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("healthy_angle_range", self.healthy_angle_range)
        check_range("healthy_state_range", self.healthy_state_range)

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Hopper:
        """Build the environment."""
        return Hopper(self, num_envs=num_envs, device=device, seed=seed)


class Hopper(FallingEnv[HopperCfg]):
    """Gymnasium's ``Hopper-v5``."""

    model = "hopper.xml"
    decimation = 4
    reward_terms = ("forward", "ctrl", "survive")

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (data["qpos"][:, 1:], data["qvel"].clamp(-10.0, 10.0))

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        return self._forward(), self._ctrl_cost(action), self._survive()

    def _healthy(self) -> Tensor:
        cfg, qpos = self.cfg, self.data["qpos"]
        state = torch.cat((qpos[:, 2:], self.data["qvel"]), 1)
        return (
            between(qpos[:, 1], cfg.healthy_z_range)
            & between(qpos[:, 2], cfg.healthy_angle_range)
            & between(state, cfg.healthy_state_range).all(1)
        )


def hopper_v5() -> HopperCfg:
    """Gymnasium's planar hopper hops forward (3 joints, 1000 steps of 0.008 s)."""
    return HopperCfg()
