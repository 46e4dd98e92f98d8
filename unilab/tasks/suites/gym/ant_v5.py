"""A four-legged robot runs forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from unilab.checks import Bound, Positive
from unilab.tasks.suites.gym.contact_env import ContactCostCfg, ContactCostEnv
from unilab.tasks.suites.gym.gym_env import FallingEnv, HealthyCfg


class Ant(FallingEnv):
    """Gymnasium's ant without contact forces."""

    cfg: AntCfg
    model = "envs/mujoco/assets/ant.xml"
    decimation = 5
    fields: ClassVar[tuple[str, ...]] = ("xpos",)
    normal_velocities = True

    def _x(self) -> Tensor:
        # The torso's: a substep behind qpos.
        return self.data["xpos"][:, 3]

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (data["qpos"][:, 2:], data["qvel"])

    def _healthy(self) -> Tensor:
        low, high = self.cfg.healthy_z_range
        height = self.data["qpos"][:, 2]
        return (height >= low) & (height <= high)


@dataclass(frozen=True, kw_only=True)
class AntCfg(HealthyCfg):
    """Settings of the ant."""

    episode_length_s: Positive = 50.0
    ctrl_cost_weight: float = 0.5
    reset_noise_scale: float = 0.1
    healthy_z_range: tuple[Bound, Bound] = (0.2, 1.0)


class AntV5(ContactCostEnv, Ant):
    """Gymnasium's ``Ant-v5``."""

    cfg: AntV5Cfg

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        # Without the world's six forces.
        forces = data["cfrc_ext"][:, 6:].clamp(*self.cfg.contact_force_range)
        return (*super()._observation(data), forces)

    def _contact_cost(self) -> Tensor:
        forces = self.data["cfrc_ext"].clamp(*self.cfg.contact_force_range)
        return self.cfg.contact_cost_weight * forces.square().sum(1)


@dataclass(frozen=True, kw_only=True)
class AntV5Cfg(AntCfg, ContactCostCfg):
    """``gym/Ant-v5``."""

    env_class = AntV5
    contact_cost_weight: float = 5e-4
    contact_force_range: tuple[Bound, Bound] = (-1.0, 1.0)
    """Bounds of the contact forces, N and N m."""


def ant_v5() -> AntV5Cfg:
    """Gymnasium's four-legged ant runs forward (8 joints, 1000 steps of 0.05 s)."""
    return AntV5Cfg()
