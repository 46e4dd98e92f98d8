"""Termination terms: ``[num_envs]`` bool."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.termination import nan_detection

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "bad_orientation",
    "joint_pos_out_of_limit",
    "nan_detection",
    "root_height_below_minimum",
    "time_out",
]

_ROBOT = SceneEntityCfg("robot")


def time_out(env: ManagerBasedRlEnv) -> Tensor:
    """The episode has lasted ``episode_length_s``."""
    return env.episode_length >= env.max_episode_length


def bad_orientation(
    env: ManagerBasedRlEnv, limit_angle: float, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """The root is tilted by more than ``limit_angle`` rad."""
    gravity = env.scene[asset_cfg.name].data.projected_gravity_b
    return gravity[:, 2] > -math.cos(limit_angle)


def root_height_below_minimum(
    env: ManagerBasedRlEnv, minimum_height: float, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """The root is lower than ``minimum_height`` m."""
    return env.scene[asset_cfg.name].data.root_pos_w[:, 2] < minimum_height


def joint_pos_out_of_limit(
    env: ManagerBasedRlEnv, limit: float, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """A joint is more than ``limit`` (rad or m) from zero."""
    pos = asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_pos)
    return (pos.abs() > limit).any(1)
