"""A planar cheetah runs as fast as it can."""

from __future__ import annotations

from dataclasses import dataclass

from unilab.checks import Positive
from unilab.tasks.suites.gym.gym_env import GymEnv, GymEnvCfg


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
