"""Reward terms: ``[num_envs]`` float32 rates, weighted by the task's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import Positive
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.reward import RewardTermCfg
from unilab.envs.managers.term import ManagerTermBase

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "action_l2",
    "action_rate_l2",
    "ang_vel_xy_l2",
    "flat_orientation_l2",
    "is_alive",
    "is_terminated",
    "joint_acc_l2",
    "joint_deviation_l2",
    "joint_pos_limits",
    "joint_torques_l2",
    "joint_vel_l2",
    "lin_vel_z_l2",
    "track_ang_vel_z_exp",
    "track_lin_vel_xy_exp",
]

_ROBOT = SceneEntityCfg("robot")


def _sum_sq(value: Tensor) -> Tensor:
    """Sum of a row's squares; a product, because a power is two operations in PyTorch."""
    return (value * value).sum(1)


def is_alive(env: ManagerBasedRlEnv) -> Tensor:
    """1 while the episode has not failed."""
    return (~env.termination_manager.terminated).float()


def is_terminated(env: ManagerBasedRlEnv) -> Tensor:
    """1 on the step that fails; scale the weight by ``1 / step_dt`` for a lump sum."""
    return env.termination_manager.terminated.float()


def track_lin_vel_xy_exp(
    env: ManagerBasedRlEnv, std: Positive, command_name: str, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """``exp(-|v_cmd - v|^2 / std^2)`` of the horizontal velocity in the root frame."""
    velocity = env.scene[asset_cfg.name].data.root_lin_vel_b[:, :2]
    error = env.command_manager.get_command(command_name)[:, :2] - velocity
    return torch.exp(_sum_sq(error) * (-1.0 / std**2))


def track_ang_vel_z_exp(
    env: ManagerBasedRlEnv, std: Positive, command_name: str, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """``exp(-(w_cmd - w)^2 / std^2)`` of the yaw rate in the root frame."""
    rate = env.scene[asset_cfg.name].data.root_ang_vel_b[:, 2]
    error = env.command_manager.get_command(command_name)[:, 2] - rate
    return torch.exp(error * error * (-1.0 / std**2))


def lin_vel_z_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared velocity along the root's vertical axis."""
    upward = env.scene[asset_cfg.name].data.root_lin_vel_b[:, 2]
    return upward * upward


def ang_vel_xy_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared roll and pitch rates of the root."""
    return _sum_sq(env.scene[asset_cfg.name].data.root_ang_vel_b[:, :2])


def flat_orientation_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared sine of the root's tilt."""
    return _sum_sq(env.scene[asset_cfg.name].data.projected_gravity_b[:, :2])


def joint_torques_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared actuator torques during the last substep."""
    torque = asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_torque)
    return _sum_sq(torque)


def joint_vel_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared joint velocities."""
    return _sum_sq(asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_vel))


class joint_acc_l2(ManagerTermBase):
    """Squared joint accelerations: the change of the velocities since the last control step, per
    second; 0 in the first step of an episode.
    """

    def __init__(self, cfg: RewardTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        asset_cfg = cfg.params["asset_cfg"]
        home = asset_cfg.joints_of(env.scene[asset_cfg.name].data.default_joint_pos.unsqueeze(0))
        self._last = home.new_zeros(env.num_envs, home.shape[1])
        self._begun = torch.zeros(env.num_envs, 1, device=env.device)

    def __call__(self, env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
        velocity = asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_vel)
        acceleration = (velocity - self._last) * (self._begun / env.step_dt)
        self._last.copy_(velocity)
        self._begun.fill_(1.0)
        return _sum_sq(acceleration)

    def reset(self, env_ids: Tensor) -> None:
        self._begun.index_fill_(0, env_ids, 0.0)


def joint_deviation_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared distance of the joints from the home pose."""
    data = env.scene[asset_cfg.name].data
    return _sum_sq(asset_cfg.joints_of(data.joint_pos - data.default_joint_pos))


def joint_pos_limits(
    env: ManagerBasedRlEnv, soft_limit_factor: float = 0.95, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """Distance by which joints are past the middle ``soft_limit_factor`` of their range.

    0 for joints without limits.
    """
    data = env.scene[asset_cfg.name].data
    middle = data.joint_pos_limits.mean(1).nan_to_num(0.0)
    half = 0.5 * soft_limit_factor * (data.joint_pos_limits[:, 1] - data.joint_pos_limits[:, 0])
    excess = asset_cfg.joints_of((data.joint_pos - middle).abs() - half)
    return excess.clamp_(min=0.0).sum(1)


def action_l2(env: ManagerBasedRlEnv) -> Tensor:
    """Squared action."""
    return _sum_sq(env.action_manager.action)


def action_rate_l2(env: ManagerBasedRlEnv) -> Tensor:
    """Squared change of the action since the last step."""
    return _sum_sq(env.action_manager.action - env.action_manager.prev_action)
