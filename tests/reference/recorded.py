"""The pendulum with recorders; importable by a collector process."""

from __future__ import annotations

from dataclasses import replace

from unilab.envs import ManagerBasedRlEnvCfg, RecorderTermCfg, mdp
from unilab.tasks.classic.pendulum_swingup import pendulum_swingup


def recorded_pendulum() -> ManagerBasedRlEnvCfg:
    """The pendulum; its observations and actions are recorded."""
    recorders = {
        "obs": RecorderTermCfg(func=mdp.policy_observation, mode="pre_step"),
        "action": RecorderTermCfg(func=mdp.last_action, mode="pre_step"),
    }
    return replace(pendulum_swingup(), recorders=recorders)
