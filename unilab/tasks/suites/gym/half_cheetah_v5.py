"""A planar cheetah runs as fast as it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.tasks.suites.gym.gym_env import GymEnv, GymEnvCfg


@dataclass(frozen=True, kw_only=True)
class HalfCheetahCfg(GymEnvCfg):
    """``gym/HalfCheetah-v5``."""

    episode_length_s: float = 50.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> HalfCheetah:
        """Build the environment."""
        return HalfCheetah(self, num_envs=num_envs, device=device, seed=seed)


class HalfCheetah(GymEnv[HalfCheetahCfg]):
    """Gymnasium's ``HalfCheetah-v5``."""

    model = "half_cheetah.xml"
    decimation = 5
    reward_terms = ("forward", "ctrl")

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (data["qpos"][:, 1:], data["qvel"])

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        return self._forward(), self._ctrl_cost(action)

    def _velocity_noise(self, rows: int, scale: float) -> Tensor:
        return self._normal(rows, self.data["qvel"].shape[1], scale)


def half_cheetah_v5() -> HalfCheetahCfg:
    """Gymnasium's planar cheetah runs forward (6 joints, 1000 steps of 0.05 s)."""
    return HalfCheetahCfg()
