"""A planar one-legged robot hops forward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.checks import Bound, Positive
from unilab.tasks.suites.gym.gym_env import FallingEnv, HealthyCfg, between


class PlanarLeggedEnv(FallingEnv):
    """Gymnasium's ``Hopper-v5`` and ``Walker2d-v5``, whose torso must stay high and upright."""

    cfg: PlanarLeggedCfg
    decimation = 4

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (data["qpos"][:, 1:], data["qvel"].clamp(-10.0, 10.0))

    def _healthy(self) -> Tensor:
        height, angle = self.data["qpos"][:, 1:3].unbind(1)
        return between(height, self.cfg.healthy_z_range) & between(
            angle, self.cfg.healthy_angle_range
        )


@dataclass(frozen=True, kw_only=True)
class PlanarLeggedCfg(HealthyCfg):
    """Settings of planar legged robots."""

    episode_length_s: Positive = 8.0
    ctrl_cost_weight: float = 1e-3
    reset_noise_scale: float = 5e-3
    healthy_angle_range: tuple[Bound, Bound]
    """rad, angles of the torso at which the robot is healthy."""


class Hopper(PlanarLeggedEnv):
    """Gymnasium's ``Hopper-v5``."""

    cfg: HopperCfg
    model = "envs/mujoco/assets/hopper.xml"

    def _healthy(self) -> Tensor:
        state = torch.cat((self.data["qpos"][:, 2:], self.data["qvel"]), 1)
        return super()._healthy() & between(state, self.cfg.healthy_state_range).all(1)


@dataclass(frozen=True, kw_only=True)
class HopperCfg(PlanarLeggedCfg):
    """``gym/Hopper-v5``."""

    env_class = Hopper
    healthy_z_range: tuple[Bound, Bound] = (0.7, math.inf)
    healthy_angle_range: tuple[Bound, Bound] = (-0.2, 0.2)
    healthy_state_range: tuple[Bound, Bound] = (-100.0, 100.0)
    """m, rad and their rates, for every other coordinate."""


def hopper_v5() -> HopperCfg:
    """Gymnasium's planar hopper hops forward (3 joints, 1000 steps of 0.008 s)."""
    return HopperCfg()
