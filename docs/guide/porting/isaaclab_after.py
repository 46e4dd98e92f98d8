"""Unitree Go2 follows a commanded velocity on flat ground."""

import math
import sys

from unilab.cli import main
from unilab.envs import (
    ContactMatch,
    ContactSensorCfg,
    EntityCfg,
    ManagerBasedRlEnvCfg,
    SceneCfg,
    SceneEntityCfg,
    mdp,
)
from unilab.envs import EventTermCfg as EventTerm
from unilab.envs import ObservationGroupCfg as ObsGroup
from unilab.envs import ObservationTermCfg as ObsTerm
from unilab.envs import RewardTermCfg as RewTerm
from unilab.envs import TerminationTermCfg as DoneTerm
from unilab.envs import UniformNoiseCfg as Unoise
from unilab.registry import register
from unilab.tasks.robots import model_path


def contact_forces(body_names):
    return ContactSensorCfg(
        primary=ContactMatch(mode="body", pattern=body_names, entity="robot"),
        fields=("found", "force"),
        force_threshold=1.0,
        track_air_time=True,
    )


def table(cls):
    """The terms in a configuration class and its bases, by name; None takes one out."""
    terms = {}
    for base in reversed(cls.__mro__):
        terms |= {name: term for name, term in vars(base).items() if name[0] != "_"}
    return {name: term for name, term in terms.items() if term is not None}


class CommandsCfg:
    base_velocity = mdp.UniformVelocityCommandCfg(
        resampling_time_range=(10.0, 10.0),
        rel_standing_envs=0.02,
        rel_heading_envs=1.0,
        heading_command=True,
        heading_control_stiffness=0.5,
        ranges=mdp.UniformVelocityCommandCfg.Ranges(
            lin_vel_x=(-1.0, 1.0),
            lin_vel_y=(-1.0, 1.0),
            ang_vel_z=(-1.0, 1.0),
            heading=(-math.pi, math.pi),
        ),
    )


class ActionsCfg:
    joint_pos = mdp.JointPositionActionCfg(
        actuator_names=[".*"], scale=0.25, use_default_offset=True
    )


class PolicyCfg:
    base_lin_vel = ObsTerm(func=mdp.base_lin_vel, noise=Unoise(n_min=-0.1, n_max=0.1))
    base_ang_vel = ObsTerm(func=mdp.base_ang_vel, noise=Unoise(n_min=-0.2, n_max=0.2))
    projected_gravity = ObsTerm(func=mdp.projected_gravity, noise=Unoise(n_min=-0.05, n_max=0.05))
    velocity_commands = ObsTerm(
        func=mdp.generated_commands, params={"command_name": "base_velocity"}
    )
    joint_pos = ObsTerm(func=mdp.joint_pos_rel, noise=Unoise(n_min=-0.01, n_max=0.01))
    joint_vel = ObsTerm(func=mdp.joint_vel_rel, noise=Unoise(n_min=-1.5, n_max=1.5))
    actions = ObsTerm(func=mdp.last_action)


class EventCfg:
    physics_material = EventTerm(
        func=mdp.randomize_geom_friction,
        mode="startup",
        params={
            "asset_cfg": SceneEntityCfg("robot", body_names=".*_foot"),
            "friction_distribution_params": (0.6, 1.2),
        },
    )
    add_base_mass = EventTerm(
        func=mdp.randomize_rigid_body_mass,
        mode="startup",
        params={
            "asset_cfg": SceneEntityCfg("robot", body_names="base"),
            "mass_distribution_params": (-1.0, 3.0),
            "operation": "add",
        },
    )
    reset_base = EventTerm(
        func=mdp.reset_root_state_uniform,
        mode="reset",
        params={
            "pose_range": {"x": (-0.5, 0.5), "y": (-0.5, 0.5), "yaw": (-3.14, 3.14)},
            "velocity_range": {},
        },
    )
    reset_robot_joints = EventTerm(
        func=mdp.reset_joints_by_offset,
        mode="reset",
        params={"position_range": (-0.1, 0.1), "velocity_range": (0.0, 0.0)},
    )
    push_robot = EventTerm(
        func=mdp.push_by_setting_velocity,
        mode="interval",
        interval_range_s=(10.0, 15.0),
        params={"velocity_range": {"x": (-0.5, 0.5), "y": (-0.5, 0.5)}},
    )


class RewardsCfg:
    track_lin_vel_xy_exp = RewTerm(
        func=mdp.track_lin_vel_xy_exp,
        weight=1.5,
        params={"command_name": "base_velocity", "std": math.sqrt(0.25)},
    )
    track_ang_vel_z_exp = RewTerm(
        func=mdp.track_ang_vel_z_exp,
        weight=0.75,
        params={"command_name": "base_velocity", "std": math.sqrt(0.25)},
    )
    lin_vel_z_l2 = RewTerm(func=mdp.lin_vel_z_l2, weight=-2.0)
    ang_vel_xy_l2 = RewTerm(func=mdp.ang_vel_xy_l2, weight=-0.05)
    dof_torques_l2 = RewTerm(func=mdp.joint_torques_l2, weight=-2.0e-4)
    dof_acc_l2 = RewTerm(func=mdp.joint_acc_l2, weight=-2.5e-7)
    action_rate_l2 = RewTerm(func=mdp.action_rate_l2, weight=-0.01)
    flat_orientation_l2 = RewTerm(func=mdp.flat_orientation_l2, weight=-2.5)
    feet_air_time = RewTerm(
        func=mdp.feet_air_time,
        weight=0.25,
        params={
            "sensor_name": "feet",
            "command_name": "base_velocity",
            "threshold": 0.5,
        },
    )


class TerminationsCfg:
    time_out = DoneTerm(func=mdp.time_out, time_out=True)
    base_contact = DoneTerm(
        func=mdp.illegal_contact,
        params={
            "sensor_name": "base",
            "threshold": 1.0,
        },
    )


def velocity():
    """Unitree Go2 follows a commanded velocity on flat ground (ported)."""
    return ManagerBasedRlEnvCfg(
        scene=SceneCfg(
            model=str(model_path("go2")),
            entities={"robot": EntityCfg(root_body="base")},
            sensors={"feet": contact_forces(".*_foot"), "base": contact_forces("base")},
        ),
        observations={"obs": ObsGroup(terms=table(PolicyCfg), enable_corruption=True)},
        actions=table(ActionsCfg),
        commands=table(CommandsCfg),
        rewards=table(RewardsCfg),
        terminations=table(TerminationsCfg),
        events=table(EventCfg),
        decimation=4,
        episode_length_s=20.0,
    )


register("velocity_from_isaaclab", velocity)

if __name__ == "__main__":
    sys.exit(main())
