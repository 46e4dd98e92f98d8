"""Unitree G1 follows a commanded planar velocity, on flat or rough ground."""

from __future__ import annotations

import math

from unilab.envs import (
    ContactMatch,
    ContactSensorCfg,
    EntityCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
)
from unilab.tasks.robots import model_path
from unilab.tasks.velocity.velocity_env_cfg import VelocityEnvCfg, events, rough, sensed

FEET = ("left", "right")
UPPER_BODY = ("waist_.*", ".*_shoulder_.*", ".*_elbow_.*", ".*_wrist_.*")
HIPS = (".*_hip_yaw_joint", ".*_hip_roll_joint")


def g1_velocity_flat() -> VelocityEnvCfg:
    """Unitree G1 follows a commanded velocity on flat ground (29 joints, 20 s episodes)."""
    command = {"command_name": "base_velocity"}
    heights, velocities = (tuple(f"{foot}_foot_{what}" for foot in FEET) for what in ("pos", "vel"))
    feet = ContactMatch(mode="body", pattern=".*_ankle_roll_link", entity="robot")
    privileged = {
        "base_lin_vel": ObservationTermCfg(func=mdp.base_lin_vel, scale=2.0),
        "base_height": ObservationTermCfg(func=mdp.base_pos_z),
        "foot_heights": ObservationTermCfg(
            func=mdp.sensor_values,
            params={"sensor_names": heights, "component": 2},
            scale=5.0,
            mirror=heights,
        ),
    }
    return VelocityEnvCfg(
        mirror={"left": "right"},
        scene=SceneCfg(
            model=str(model_path("g1")),
            entities={"robot": EntityCfg(root_body="pelvis")},
            sensors={"feet": ContactSensorCfg(primary=feet, track_air_time=True)},
        ),
        decimation=4,
        episode_length_s=20.0,
        actions={
            "joint_pos": mdp.JointPositionActionCfg(
                scale=0.5, delay_max_lag=1, delay_update_period=None
            )
        },
        observations={
            "obs": ObservationGroupCfg(terms=sensed(), enable_corruption=True),
            "critic": ObservationGroupCfg(terms={**sensed(), **privileged}),
        },
        commands={
            "base_velocity": mdp.UniformVelocityCommandCfg(
                resampling_time_range=(5.0, 10.0),
                ranges=mdp.UniformVelocityCommandCfg.Ranges(
                    lin_vel_x=(-0.3, 0.8), lin_vel_y=(-0.3, 0.3), ang_vel_z=(-0.6, 0.6)
                ),
                rel_standing_envs=0.05,
            )
        },
        rewards={
            "alive": RewardTermCfg(func=mdp.is_alive, weight=0.5),
            "track_lin_vel_xy": RewardTermCfg(
                func=mdp.track_lin_vel_xy_exp, weight=1.5, params={"std": 0.5, **command}
            ),
            "track_ang_vel_z": RewardTermCfg(
                func=mdp.track_ang_vel_z_exp, weight=0.75, params={"std": 0.5, **command}
            ),
            "lin_vel_z": RewardTermCfg(func=mdp.lin_vel_z_l2, weight=-0.2),
            "ang_vel_xy": RewardTermCfg(func=mdp.ang_vel_xy_l2, weight=-0.05),
            "flat_orientation": RewardTermCfg(func=mdp.flat_orientation_l2, weight=-1.0),
            "torques": RewardTermCfg(func=mdp.joint_torques_l2, weight=-2e-6),
            "action_rate": RewardTermCfg(func=mdp.action_rate_l2, weight=-0.01),
            "upper_body": RewardTermCfg(
                func=mdp.joint_deviation_l2,
                weight=-0.1,
                params={"asset_cfg": SceneEntityCfg("robot", joint_names=UPPER_BODY)},
            ),
            "hips": RewardTermCfg(
                func=mdp.joint_deviation_l2,
                weight=-0.2,
                params={"asset_cfg": SceneEntityCfg("robot", joint_names=HIPS)},
            ),
            "feet_air_time": RewardTermCfg(
                func=mdp.feet_air_time_positive_biped,
                weight=0.5,
                params={"sensor_name": "feet", "threshold": 0.4, **command},
            ),
            "feet_slide": RewardTermCfg(
                func=mdp.feet_slide,
                weight=-0.1,
                params={"sensor_name": "feet", "velocity_sensor_names": velocities},
            ),
        },
        terminations={
            "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
            "too_low": TerminationTermCfg(
                func=mdp.root_height_below_minimum, params={"minimum_height": 0.45}
            ),
            "tilted": TerminationTermCfg(
                func=mdp.bad_orientation, params={"limit_angle": math.radians(50.0)}
            ),
        },
        events=events(
            trunk="torso_link",
            feet=(".*_foot._collision",),
            payload=(-1.0, 3.0),
            velocity_range={"x": (-0.2, 0.2), "y": (-0.2, 0.2)},
            position_range=(-0.05, 0.05),
        ),
    )


def g1_velocity_rough() -> VelocityEnvCfg:
    """Unitree G1 follows a commanded velocity on generated terrain (29 joints, 20 s episodes)."""
    return rough(g1_velocity_flat())
