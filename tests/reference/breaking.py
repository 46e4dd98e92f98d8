"""The pendulum with a reward term that fails; importable by a collector process."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from unilab.envs import ManagerBasedRlEnv, ManagerBasedRlEnvCfg, RewardTermCfg
from unilab.tasks.classic.pendulum_swingup import pendulum_swingup

BREAKS_AT = 1000


def breaking(env: ManagerBasedRlEnv) -> Tensor:
    if env.export_training_state()["control_steps"] == BREAKS_AT:
        raise ZeroDivisionError("this term breaks")
    return env.episode_length.float()


def breaking_pendulum() -> ManagerBasedRlEnvCfg:
    """The pendulum; its reward breaks at tick 1000."""
    cfg = pendulum_swingup()
    return replace(cfg, rewards={"breaking": RewardTermCfg(func=breaking, weight=1.0)})
