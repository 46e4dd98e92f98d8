"""A four-legged robot runs forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.checks import Bound
from unilab.tasks.suites.gym.contact_env import ContactEnv
from unilab.tasks.suites.gym.gym_env import HealthyCfg, check_range


@dataclass(frozen=True, kw_only=True)
class AntCfg(HealthyCfg):
    """``gym/Ant-v5``."""

    episode_length_s: float = 50.0
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    """Cost of the squared contact forces, summed over the bodies."""
    contact_force_range: tuple[Bound, Bound] = (-1.0, 1.0)
    """N and N m, to which contact forces are clipped."""
    reset_noise_scale: float = 0.1
    healthy_z_range: tuple[Bound, Bound] = (0.2, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("contact_force_range", self.contact_force_range)

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Ant:
        """Build the environment."""
        return Ant(self, num_envs=num_envs, device=device, seed=seed)


class Ant(ContactEnv[AntCfg]):
    """Gymnasium's ``Ant-v5``."""

    model = "ant.xml"
    decimation = 5
    reward_terms = ("forward", "ctrl", "contact", "survive")

    def _x(self) -> Tensor:
        # The torso's: a substep behind qpos.
        return self.data["xpos"][:, 3]

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        # Without the world's six forces.
        forces = data["cfrc_ext"][:, 6:].clamp(*self.cfg.contact_force_range)
        return (data["qpos"][:, 2:], data["qvel"], forces)

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        forces = self.data["cfrc_ext"].clamp(*self.cfg.contact_force_range)
        contact = -self.cfg.contact_cost_weight * forces.square().sum(1)
        return self._forward(), self._ctrl_cost(action), contact, self._survive()

    def _healthy(self) -> Tensor:
        low, high = self.cfg.healthy_z_range
        height = self.data["qpos"][:, 2]
        return (height >= low) & (height <= high)

    def _velocity_noise(self, rows: int, scale: float) -> Tensor:
        return self._normal(rows, self.data["qvel"].shape[1], scale)


def ant_v5() -> AntCfg:
    """Gymnasium's four-legged ant runs forward (8 joints, 1000 steps of 0.05 s)."""
    return AntCfg()
