"""Planar robots run, hop and walk forward: half cheetah, hopper and walker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.checks import Bound, Positive
from unilab.tasks.suites.gym.gym_env import FallingEnv, GymEnv, GymEnvCfg, HealthyCfg, between


class HalfCheetah(GymEnv):
    """Gymnasium's ``HalfCheetah-v5``."""

    model = "envs/mujoco/assets/half_cheetah.xml"
    decimation = 5
    normal_velocities = True


@dataclass(frozen=True, kw_only=True)
class HalfCheetahCfg(GymEnvCfg):
    """``gym/HalfCheetah-v5``."""

    env_class = HalfCheetah
    episode_length_s: Positive = 50.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1


def half_cheetah_v5() -> HalfCheetahCfg:
    """Gymnasium's planar cheetah runs forward (6 joints, 1000 steps of 0.05 s)."""
    return HalfCheetahCfg()


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


class Walker2d(PlanarLeggedEnv):
    """Gymnasium's ``Walker2d-v5``."""

    model = "envs/mujoco/assets/walker2d_v5.xml"


@dataclass(frozen=True, kw_only=True)
class Walker2dCfg(PlanarLeggedCfg):
    """``gym/Walker2d-v5``."""

    env_class = Walker2d
    healthy_z_range: tuple[Bound, Bound] = (0.8, 2.0)
    healthy_angle_range: tuple[Bound, Bound] = (-1.0, 1.0)


def walker2d_v5() -> Walker2dCfg:
    """Gymnasium's planar biped walks forward (6 joints, 1000 steps of 0.008 s)."""
    return Walker2dCfg()
