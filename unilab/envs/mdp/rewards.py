"""Reward terms: ``[num_envs]`` float32 rates, weighted by the task's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.term import reads

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_ROBOT = SceneEntityCfg("robot")


def _sum_sq(value: Tensor) -> Tensor:
    """Sum of a row's squares; a product, because a power is two operations to PyTorch."""
    return (value * value).sum(1)


def is_alive(env: ManagerBasedRlEnv) -> Tensor:
    """1 while the episode has not failed."""
    return (~env.termination_manager.terminated).float()


def is_terminated(env: ManagerBasedRlEnv) -> Tensor:
    """1 on the step that fails; scale the weight by ``1 / step_dt`` for a lump sum."""
    return env.termination_manager.terminated.float()


@reads("root_lin_vel_b")
def track_lin_vel_xy_exp(
    env: ManagerBasedRlEnv, std: float, command_name: str, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """``exp(-|v_cmd - v|^2 / std^2)`` of the horizontal velocity in the root frame."""
    velocity = env.scene[asset_cfg.name].data.root_lin_vel_b[:, :2]
    error = env.command_manager.get_command(command_name)[:, :2] - velocity
    return torch.exp(_sum_sq(error) * (-1.0 / std**2))


@reads("root_ang_vel_b")
def track_ang_vel_z_exp(
    env: ManagerBasedRlEnv, std: float, command_name: str, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """``exp(-(w_cmd - w)^2 / std^2)`` of the yaw rate in the root frame."""
    rate = env.scene[asset_cfg.name].data.root_ang_vel_b[:, 2]
    error = env.command_manager.get_command(command_name)[:, 2] - rate
    return torch.exp(error * error * (-1.0 / std**2))


@reads("root_lin_vel_b")
def lin_vel_z_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared velocity along the root's vertical axis."""
    upward = env.scene[asset_cfg.name].data.root_lin_vel_b[:, 2]
    return upward * upward


@reads("root_ang_vel_b")
def ang_vel_xy_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared roll and pitch rates of the root."""
    return _sum_sq(env.scene[asset_cfg.name].data.root_ang_vel_b[:, :2])


@reads("projected_gravity_b")
def flat_orientation_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared sine of the root's tilt."""
    return _sum_sq(env.scene[asset_cfg.name].data.projected_gravity_b[:, :2])


@reads("joint_torque")
def joint_torques_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared actuator torques during the last substep."""
    torque = asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_torque)
    return _sum_sq(torque)


@reads("joint_vel")
def joint_vel_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared joint velocities."""
    return _sum_sq(asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_vel))


@reads("joint_pos")
def joint_deviation_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared distance of the joints from the home pose."""
    data = env.scene[asset_cfg.name].data
    return _sum_sq(asset_cfg.joints_of(data.joint_pos - data.default_joint_pos))


@reads("joint_pos")
def joint_pos_limits(
    env: ManagerBasedRlEnv, soft_limit_factor: float = 0.95, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """Distance by which joints are past the middle ``soft_limit_factor`` of their range."""
    data = env.scene[asset_cfg.name].data
    middle = data.joint_pos_limits.mean(1)
    half = 0.5 * soft_limit_factor * (data.joint_pos_limits[:, 1] - data.joint_pos_limits[:, 0])
    excess = asset_cfg.joints_of((data.joint_pos - middle).abs() - half)
    return excess.clamp_(min=0.0).sum(1)


def action_l2(env: ManagerBasedRlEnv) -> Tensor:
    """Squared action."""
    return _sum_sq(env.action_manager.action)


def action_rate_l2(env: ManagerBasedRlEnv) -> Tensor:
    """Squared change of the action since the last step."""
    return _sum_sq(env.action_manager.action - env.action_manager.prev_action)
