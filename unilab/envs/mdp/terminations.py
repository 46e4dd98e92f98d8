"""Termination terms: ``[num_envs]`` bool."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
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
    "terrain_out_of_bounds",
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
    """The root is lower than ``minimum_height`` m above the ground."""
    x, y, z = env.scene[asset_cfg.name].data.root_pos_w.unbind(1)
    return z - env.scene.ground_height(x, y) < minimum_height


def terrain_out_of_bounds(
    env: ManagerBasedRlEnv, distance_buffer: float = 1.0, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """The root is less than ``distance_buffer`` m from the edge of the terrain, or beyond it.

    Never without a terrain, because a plane has no edge.
    """
    root, terrain = env.scene[asset_cfg.name].data.root_pos_w, env.scene.terrain
    if terrain is None:
        return torch.zeros_like(root[:, 0], dtype=torch.bool)
    (x, y), (last_x, last_y) = root[:, :2].abs().unbind(1), terrain.half_size
    return (x > last_x - distance_buffer) | (y > last_y - distance_buffer)


def joint_pos_out_of_limit(
    env: ManagerBasedRlEnv, limit: float, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """A joint is more than ``limit`` (rad or m) from zero."""
    pos = asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_pos)
    return (pos.abs() > limit).any(1)
