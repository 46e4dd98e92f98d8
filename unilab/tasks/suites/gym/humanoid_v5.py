"""A humanoid runs forward without falling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unilab.checks import Bound, Positive
from unilab.tasks.suites.gym.contact_env import ContactCostCfg, ContactCostEnv, ContactEnv
from unilab.tasks.suites.gym.gym_env import HealthyCfg, between


class Humanoid(ContactEnv):
    """Gymnasium's humanoid, whose contacts cost nothing."""

    cfg: HumanoidCfg
    model = "envs/mujoco/assets/humanoid.xml"
    fields = (*ContactEnv.fields, "cinert", "xipos")

    @cached_property
    def _share_of_mass(self) -> Tensor:
        mass = torch.from_numpy(self.backend.mj_model.body_mass)
        return mass / mass.sum()

    def _x(self) -> Tensor:
        # The centre of mass: a substep behind qpos.
        return self.data["xipos"][:, ::3] @ self._share_of_mass

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        derived = (data[name] for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext"))
        return (data["qpos"][:, 2:], data["qvel"], *derived)

    def _healthy(self) -> Tensor:
        return between(self.data["qpos"][:, 2], self.cfg.healthy_z_range)


@dataclass(frozen=True, kw_only=True)
class HumanoidCfg(HealthyCfg):
    """Settings of the humanoid."""

    episode_length_s: Positive = 15.0
    forward_reward_weight: float = 1.25
    ctrl_cost_weight: float = 0.1
    healthy_reward: float = 5.0
    reset_noise_scale: float = 1e-2
    healthy_z_range: tuple[Bound, Bound] = (1.0, 2.0)


class HumanoidV5(ContactCostEnv, Humanoid):
    """Gymnasium's ``Humanoid-v5``."""

    cfg: HumanoidV5Cfg

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        qpos, qvel, inertias, velocities, actuation, forces = super()._observation(data)
        # Without the world's rows, and without those of the root's six forces.
        derived = (inertias[:, 10:], velocities[:, 6:], actuation[:, 6:], forces[:, 6:])
        return (qpos, qvel, *derived)

    def _contact_cost(self) -> Tensor:
        cost = self.cfg.contact_cost_weight * self.data["cfrc_ext"].square().sum(1)
        return cost.clamp(*self.cfg.contact_cost_range)


@dataclass(frozen=True, kw_only=True)
class HumanoidV5Cfg(HumanoidCfg, ContactCostCfg):
    """``gym/Humanoid-v5``."""

    env_class = HumanoidV5
    contact_cost_weight: float = 5e-7
    contact_cost_range: tuple[Bound, Bound] = (-math.inf, 10.0)
    """Bounds of the cost of contacts."""


def humanoid_v5() -> HumanoidV5Cfg:
    """Gymnasium's humanoid runs forward (17 joints, 1000 steps of 0.015 s)."""
    return HumanoidV5Cfg()
