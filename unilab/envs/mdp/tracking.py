"""Observations, rewards and terminations of a robot that follows a reference motion.

Names are as in mjlab and BeyondMimic. Each reads a :class:`~unilab.envs.mdp.MotionCommand`; ``std``
is in the unit of the error, and ``body_names`` are patterns of some of the command's bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import Positive
from unilab.envs import rotations
from unilab.envs.mdp.motion_command import MotionCommand
from unilab.envs.names import Patterns

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "bad_anchor_ori",
    "bad_anchor_pos_z_only",
    "bad_motion_body_pos_z_only",
    "motion_anchor_ori_b",
    "motion_anchor_pos_b",
    "motion_ended",
    "motion_global_anchor_orientation_error_exp",
    "motion_global_anchor_position_error_exp",
    "motion_global_body_angular_velocity_error_exp",
    "motion_global_body_linear_velocity_error_exp",
    "motion_relative_body_orientation_error_exp",
    "motion_relative_body_position_error_exp",
    "robot_body_ori_b",
    "robot_body_pos_b",
]


def _motion(env: ManagerBasedRlEnv, command_name: str) -> MotionCommand:
    return env.command_manager.get_term(command_name, MotionCommand)


def motion_anchor_pos_b(env: ManagerBasedRlEnv, command_name: str) -> Tensor:
    """Position of the reference's anchor in the robot's anchor frame, ``[num_envs, 3]`` m."""
    motion = _motion(env, command_name)
    away = motion.anchor_pos_w - motion.robot_anchor_pos_w
    return rotations.rotate_inverse(motion.robot_anchor_quat_w, away)


def motion_anchor_ori_b(env: ManagerBasedRlEnv, command_name: str) -> Tensor:
    """Orientation of the reference's anchor in the robot's anchor frame, ``[num_envs, 6]``: two
    columns of the rotation matrix."""
    motion = _motion(env, command_name)
    into = rotations.inverse(motion.robot_anchor_quat_w)
    return rotations.first_columns(rotations.multiply(into, motion.anchor_quat_w))


def robot_body_pos_b(env: ManagerBasedRlEnv, command_name: str) -> Tensor:
    """Positions of the robot's bodies in its anchor frame, ``[num_envs, 3 * bodies]`` m."""
    motion = _motion(env, command_name)
    arms = motion.robot_body_pos_w - motion.robot_anchor_pos_w.unsqueeze(1)
    into = rotations.inverse(motion.robot_anchor_quat_w)
    return rotations.rotate_each(into, arms).flatten(1)


def robot_body_ori_b(env: ManagerBasedRlEnv, command_name: str) -> Tensor:
    """Orientations of the robot's bodies in its anchor frame, ``[num_envs, 6 * bodies]``."""
    motion = _motion(env, command_name)
    into = rotations.inverse(motion.robot_anchor_quat_w)
    relative = rotations.multiply_each(into, motion.robot_body_quat_w)
    return rotations.first_columns(relative).flatten(1)


def _kernel(squared: Tensor, std: float) -> Tensor:
    """``exp(-e^2 / std^2)`` of squared errors ``[num_envs, bodies]``, averaged over the bodies."""
    return torch.exp(squared.mean(1) * (-1.0 / std**2))


def _square_sum(error: Tensor) -> Tensor:
    return (error * error).sum(-1)


def motion_global_anchor_position_error_exp(
    env: ManagerBasedRlEnv, command_name: str, std: Positive
) -> Tensor:
    """``exp(-e^2 / std^2)`` of the anchor's distance from the reference's, m."""
    motion = _motion(env, command_name)
    return torch.exp(_square_sum(motion.anchor_pos_w - motion.robot_anchor_pos_w) * (-1 / std**2))


def motion_global_anchor_orientation_error_exp(
    env: ManagerBasedRlEnv, command_name: str, std: Positive
) -> Tensor:
    """``exp(-e^2 / std^2)`` of the angle between the anchor and the reference's, rad."""
    motion = _motion(env, command_name)
    angle = rotations.angle_between(motion.anchor_quat_w, motion.robot_anchor_quat_w)
    return torch.exp(angle * angle * (-1.0 / std**2))


def motion_relative_body_position_error_exp(
    env: ManagerBasedRlEnv, command_name: str, std: Positive, body_names: Patterns | None = None
) -> Tensor:
    """``exp(-mean(e^2) / std^2)`` of the bodies' distances (m) from the reference, which is moved
    to the robot's anchor."""
    motion = _motion(env, command_name)
    squared = _square_sum(motion.body_pos_error)
    return _kernel(motion.select(body_names, squared), std)


def motion_relative_body_orientation_error_exp(
    env: ManagerBasedRlEnv, command_name: str, std: Positive, body_names: Patterns | None = None
) -> Tensor:
    """The same of the angles between the bodies and the reference, which is turned to the robot's
    heading, rad."""
    motion = _motion(env, command_name)
    angle = motion.body_rot_error
    return _kernel(motion.select(body_names, angle * angle), std)


def motion_global_body_linear_velocity_error_exp(
    env: ManagerBasedRlEnv, command_name: str, std: Positive, body_names: Patterns | None = None
) -> Tensor:
    """The same of the differences between the bodies' velocities and the reference's, m/s."""
    motion = _motion(env, command_name)
    squared = _square_sum(motion.body_lin_vel_w - motion.robot_body_lin_vel_w)
    return _kernel(motion.select(body_names, squared), std)


def motion_global_body_angular_velocity_error_exp(
    env: ManagerBasedRlEnv, command_name: str, std: Positive, body_names: Patterns | None = None
) -> Tensor:
    """The same of the differences between the bodies' angular velocities and the reference's,
    rad/s."""
    motion = _motion(env, command_name)
    squared = _square_sum(motion.body_ang_vel_w - motion.robot_body_ang_vel_w)
    return _kernel(motion.select(body_names, squared), std)


def bad_anchor_pos_z_only(env: ManagerBasedRlEnv, command_name: str, threshold: Positive) -> Tensor:
    """The anchor's height is more than ``threshold`` m from the reference's."""
    motion = _motion(env, command_name)
    return (motion.anchor_pos_w - motion.robot_anchor_pos_w)[:, 2].abs() > threshold


def bad_anchor_ori(env: ManagerBasedRlEnv, command_name: str, threshold: Positive) -> Tensor:
    """The vertical components of gravity in the frames of the anchor and of the reference's differ
    by more than ``threshold``."""
    motion = _motion(env, command_name)
    # Gravity's is 2 (x^2 + y^2) - 1.
    wanted, own = (
        _square_sum(quat[:, 1:3]) for quat in (motion.anchor_quat_w, motion.robot_anchor_quat_w)
    )
    return 2.0 * (wanted - own).abs() > threshold


def bad_motion_body_pos_z_only(
    env: ManagerBasedRlEnv,
    command_name: str,
    threshold: Positive,
    body_names: Patterns | None = None,
) -> Tensor:
    """A body's height is more than ``threshold`` m from the reference's, which is moved to the
    robot's anchor."""
    motion = _motion(env, command_name)
    off = motion.body_pos_error[..., 2].abs()
    return (motion.select(body_names, off) > threshold).any(1)


def motion_ended(env: ManagerBasedRlEnv, command_name: str) -> Tensor:
    """The robot has had its control step for the last frame; a time-out."""
    motion = _motion(env, command_name)
    return motion.frame[:, 0] >= motion.last_frame
