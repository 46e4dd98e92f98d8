"""A humanoid runs forward without falling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.checks import Bound
from unilab.tasks.suites.gym.contact_env import ContactEnv
from unilab.tasks.suites.gym.gym_env import HealthyCfg, between, check_range


@dataclass(frozen=True, kw_only=True)
class HumanoidCfg(HealthyCfg):
    """``gym/Humanoid-v5``."""

    episode_length_s: float = 15.0
    forward_reward_weight: float = 1.25
    ctrl_cost_weight: float = 0.1
    contact_cost_weight: float = 5e-7
    """Cost of the squared contact forces, summed over the bodies."""
    contact_cost_range: tuple[Bound, Bound] = (-math.inf, 10.0)
    """To which the cost of contacts is clipped."""
    healthy_reward: float = 5.0
    reset_noise_scale: float = 1e-2
    healthy_z_range: tuple[Bound, Bound] = (1.0, 2.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("contact_cost_range", self.contact_cost_range)

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Humanoid:
        """Build the environment."""
        return Humanoid(self, num_envs=num_envs, device=device, seed=seed)


class Humanoid(ContactEnv[HumanoidCfg]):
    """Gymnasium's ``Humanoid-v5``."""

    model = "humanoid.xml"
    decimation = 5
    fields = (*ContactEnv.fields, "cinert", "xipos")
    reward_terms = ("forward", "ctrl", "contact", "survive")

    def __init__(
        self,
        cfg: HumanoidCfg,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        super().__init__(cfg, num_envs=num_envs, device=device, seed=seed)
        mass = torch.from_numpy(self.backend.mj_model.body_mass)
        self._share_of_mass = mass / mass.sum()

    def _x(self) -> Tensor:
        # The centre of mass: a substep behind qpos.
        return self.data["xipos"][:, ::3] @ self._share_of_mass

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (
            data["qpos"][:, 2:],
            data["qvel"],
            # Without the world's rows, and without those of the root's six forces.
            data["cinert"][:, 10:],
            data["cvel"][:, 6:],
            data["qfrc_actuator"][:, 6:],
            data["cfrc_ext"][:, 6:],
        )

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        cost = self.cfg.contact_cost_weight * self.data["cfrc_ext"].square().sum(1)
        contact = -cost.clamp(*self.cfg.contact_cost_range)
        return self._forward(), self._ctrl_cost(action), contact, self._survive()

    def _healthy(self) -> Tensor:
        return between(self.data["qpos"][:, 2], self.cfg.healthy_z_range)


def humanoid_v5() -> HumanoidCfg:
    """Gymnasium's humanoid runs forward (17 joints, 1000 steps of 0.015 s)."""
    return HumanoidCfg()
