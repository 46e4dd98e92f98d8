"""Metric terms: ``[num_envs]`` float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.term import reads

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_ROBOT = SceneEntityCfg("robot")


@reads("root_lin_vel_b")
def error_vel_xy(
    env: ManagerBasedRlEnv, command_name: str, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """Distance of the horizontal velocity from the command, m/s."""
    velocity = env.scene[asset_cfg.name].data.root_lin_vel_b[:, :2]
    return (env.command_manager.get_command(command_name)[:, :2] - velocity).norm(dim=1)


@reads("root_ang_vel_b")
def error_vel_yaw(
    env: ManagerBasedRlEnv, command_name: str, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """Distance of the yaw rate from the command, rad/s."""
    rate = env.scene[asset_cfg.name].data.root_ang_vel_b[:, 2]
    return (env.command_manager.get_command(command_name)[:, 2] - rate).abs()
