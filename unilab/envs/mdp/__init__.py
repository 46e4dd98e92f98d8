"""MDP terms: pure functions of the environment's tensors, to be named in a task's tables."""

from unilab.envs.managers.action import JointEffortActionCfg, JointPositionActionCfg
from unilab.envs.mdp.commands import UniformVelocityCommand, UniformVelocityCommandCfg
from unilab.envs.mdp.events import (
    push_by_setting_velocity,
    reset_joints_by_offset,
    reset_root_state_uniform,
)
from unilab.envs.mdp.observations import (
    base_ang_vel,
    base_lin_vel,
    base_pos_z,
    generated_commands,
    joint_pos_rel,
    joint_pos_sincos,
    joint_vel_rel,
    last_action,
    projected_gravity,
    sensor_values,
)
from unilab.envs.mdp.rewards import (
    action_l2,
    action_rate_l2,
    ang_vel_xy_l2,
    flat_orientation_l2,
    is_alive,
    is_terminated,
    joint_deviation_l2,
    joint_pos_limits,
    joint_torques_l2,
    joint_vel_l2,
    lin_vel_z_l2,
    track_ang_vel_z_exp,
    track_lin_vel_xy_exp,
)
from unilab.envs.mdp.terminations import (
    bad_orientation,
    joint_pos_out_of_limit,
    root_height_below_minimum,
    time_out,
)

__all__ = [
    "JointEffortActionCfg",
    "JointPositionActionCfg",
    "UniformVelocityCommand",
    "UniformVelocityCommandCfg",
    "action_l2",
    "action_rate_l2",
    "ang_vel_xy_l2",
    "bad_orientation",
    "base_ang_vel",
    "base_lin_vel",
    "base_pos_z",
    "flat_orientation_l2",
    "generated_commands",
    "is_alive",
    "is_terminated",
    "joint_deviation_l2",
    "joint_pos_limits",
    "joint_pos_out_of_limit",
    "joint_pos_rel",
    "joint_pos_sincos",
    "joint_torques_l2",
    "joint_vel_l2",
    "joint_vel_rel",
    "last_action",
    "lin_vel_z_l2",
    "projected_gravity",
    "push_by_setting_velocity",
    "reset_joints_by_offset",
    "reset_root_state_uniform",
    "root_height_below_minimum",
    "sensor_values",
    "time_out",
    "track_ang_vel_z_exp",
    "track_lin_vel_xy_exp",
]
