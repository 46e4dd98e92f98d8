"""Recorder terms: what only a recorder asks for; observation terms and the like serve as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


def policy_observation(env: ManagerBasedRlEnv, group: str = "obs") -> Tensor:
    """The last observation of a group as it was returned, ``[num_envs, width]``.

    In mode ``pre_step`` it is the one that the action answers, noise, delay and history included.
    """
    groups = env.obs_buf
    if group not in groups:
        raise ConfigError(f"there is no observation group {group!r}{did_you_mean(group, groups)}")
    return groups[group]


def step_reward(env: ManagerBasedRlEnv) -> Tensor:
    """The reward of the last step, ``[num_envs]``; for mode ``post_step``."""
    return env.reward_manager.reward
