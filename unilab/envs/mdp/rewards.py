"""Reward terms: ``[num_envs]`` float32 rates, weighted by the task's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import Positive
from unilab.envs import rotations
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.reward import RewardTermCfg
from unilab.envs.managers.term import ManagerTermBase
from unilab.envs.mdp.commands import UniformPoseCommand
from unilab.envs.names import values_of_names
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "action_acc_l2",
    "action_l2",
    "action_rate_l2",
    "ang_vel_xy_l2",
    "electrical_power_cost",
    "flat_orientation_l2",
    "is_alive",
    "is_terminated",
    "joint_acc_l2",
    "joint_deviation_l2",
    "joint_pos_limits",
    "joint_torques_l2",
    "joint_vel_l2",
    "lin_vel_z_l2",
    "orientation_command_error",
    "position_command_error",
    "position_command_error_tanh",
    "track_ang_vel_z_exp",
    "track_lin_vel_xy_exp",
    "upright",
    "variable_posture",
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


def position_command_error(
    env: ManagerBasedRlEnv, command_name: str, asset_cfg: SceneEntityCfg
) -> Tensor:
    """Distance of the one body in ``body_names`` from where a pose command wants it, m."""
    wanted, _ = env.command_manager.get_term(command_name, UniformPoseCommand).pose_w()
    return (wanted - env.scene[asset_cfg.name].data.body_pos_w(asset_cfg)[:, 0]).norm(dim=1)


def position_command_error_tanh(
    env: ManagerBasedRlEnv, std: Positive, command_name: str, asset_cfg: SceneEntityCfg
) -> Tensor:
    """``1 - tanh(distance / std)``, :func:`position_command_error`'s distance."""
    return 1.0 - torch.tanh(position_command_error(env, command_name, asset_cfg) / std)


def orientation_command_error(
    env: ManagerBasedRlEnv, command_name: str, asset_cfg: SceneEntityCfg
) -> Tensor:
    """Angle of the one body in ``body_names`` from the orientation of a pose command, rad."""
    _, wanted = env.command_manager.get_term(command_name, UniformPoseCommand).pose_w()
    quat = env.scene[asset_cfg.name].data.body_quat_w(asset_cfg)[:, 0]
    return rotations.angle_between(wanted, quat)


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


def upright(env: ManagerBasedRlEnv, std: Positive, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """``exp(-sin(tilt)^2 / std^2)`` of the root, or of the one body in ``body_names``.

    As in mjlab.
    """
    entity = env.scene[asset_cfg.name]
    if entity.means_root(asset_cfg):
        return torch.exp(flat_orientation_l2(env, asset_cfg) * (-1.0 / std**2))
    gravity = rotations.gravity_direction(entity.data.body_quat_w(asset_cfg)[:, 0])
    return torch.exp(_sum_sq(gravity[:, :2]) * (-1.0 / std**2))


def joint_torques_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Squared actuator torques during the last substep."""
    torque = asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_torque)
    return _sum_sq(torque)


def electrical_power_cost(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Power that the actuators put into the joints, W: ``sum max(torque * velocity, 0)``.

    Braking returns nothing. As in mjlab.
    """
    data = env.scene[asset_cfg.name].data
    return asset_cfg.joints_of(data.joint_torque * data.joint_vel).clamp(min=0.0).sum(1)


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


class variable_posture(ManagerTermBase):
    """``exp(-mean((q - q_home)^2 / std^2))``, tighter at low than at high commanded speed.

    The speed is ``|v_xy| + |w_z|`` of the command (m/s and rad/s). As in mjlab.

    Args:
        command_name: a velocity command.
        std_standing: rad, by pattern of joint names, below ``walking_threshold``.
        std_walking: the same, from ``walking_threshold``.
        std_running: the same, from ``running_threshold``.
    """

    def __init__(self, cfg: RewardTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        params, asset_cfg = cfg.params, cfg.params["asset_cfg"]
        entity = env.scene[asset_cfg.name]
        joints = asset_cfg.joints_of(torch.arange(len(entity.joints), device=env.device)[None])[0]
        names = [entity.joint_names[i] for i in joints.tolist()]
        stds = [
            values_of_names(params[key], names, f"joint of {entity.name!r}", key)
            for key in ("std_standing", "std_walking", "std_running")
        ]
        if min(map(min, stds)) <= 0.0:
            raise ConfigError(f"standard deviations must be above 0, got {min(map(min, stds))}")
        low, high = params["walking_threshold"], params["running_threshold"]
        if not low <= high:
            raise ConfigError(
                f"walking_threshold must be at most running_threshold {high}, got {low}"
            )
        self._factors = torch.tensor(stds, device=env.device).square_().reciprocal_()
        self._thresholds = torch.tensor((low, high), device=env.device)

    def __call__(
        self,
        env: ManagerBasedRlEnv,
        command_name: str,
        std_standing: dict[str, float],
        std_walking: dict[str, float],
        std_running: dict[str, float],
        walking_threshold: float = 0.5,
        running_threshold: float = 1.5,
        asset_cfg: SceneEntityCfg = _ROBOT,
    ) -> Tensor:
        data = env.scene[asset_cfg.name].data
        error = asset_cfg.joints_of(data.joint_pos - data.default_joint_pos)
        command = env.command_manager.get_command(command_name)
        speed = command[:, :2].norm(dim=1) + command[:, 2].abs()
        gait = torch.bucketize(speed, self._thresholds, right=True)
        return torch.exp(-(error * error * self._factors[gait]).mean(1))


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


class action_acc_l2(ManagerTermBase):
    """Squared second difference of the action: ``a[t] - 2 a[t-1] + a[t-2]``.

    Actions before the episode are 0.
    """

    def __init__(self, cfg: RewardTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self._before_last = torch.zeros_like(env.action_manager.action)

    def __call__(self, env: ManagerBasedRlEnv) -> Tensor:
        action, last = env.action_manager.action, env.action_manager.prev_action
        change = torch.add(action, last, alpha=-2.0).add_(self._before_last)
        self._before_last.copy_(last)
        return _sum_sq(change)

    def reset(self, env_ids: Tensor) -> None:
        self._before_last.index_fill_(0, env_ids, 0.0)


def action_rate_l2(env: ManagerBasedRlEnv) -> Tensor:
    """Squared change of the action since the last step."""
    return _sum_sq(env.action_manager.action - env.action_manager.prev_action)
