"""Unitree Go2 follows a commanded planar velocity, on flat or rough ground."""

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
    TerminationTermCfg,
    mdp,
)
from unilab.tasks.robots import model_path
from unilab.tasks.velocity.velocity_env_cfg import VelocityEnvCfg, events, rough, sensed

FEET = ("FL", "FR", "RL", "RR")


def go2_velocity_flat() -> VelocityEnvCfg:
    """Unitree Go2 follows a commanded velocity on flat ground (12 joints, 20 s episodes)."""
    command = {"command_name": "base_velocity"}
    velocities = tuple(f"{foot}_foot_vel" for foot in FEET)
    feet = ContactMatch(mode="geom", pattern=FEET, entity="robot")
    privileged = {
        "base_lin_vel": ObservationTermCfg(func=mdp.base_lin_vel, scale=2.0),
        "base_height": ObservationTermCfg(func=mdp.base_pos_z, scale=3.0),
    }
    return VelocityEnvCfg(
        mirror={"FL": "FR", "RL": "RR"},
        scene=SceneCfg(
            model=str(model_path("go2")),
            entities={"robot": EntityCfg(root_body="base")},
            sensors={"feet": ContactSensorCfg(primary=feet, track_air_time=True)},
        ),
        decimation=4,
        episode_length_s=20.0,
        actions={
            "joint_pos": mdp.JointPositionActionCfg(
                scale=0.6, delay_max_lag=1, delay_update_period=None
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
                    lin_vel_x=(-0.6, 1.0), lin_vel_y=(-0.4, 0.4), ang_vel_z=(-0.8, 0.8)
                ),
                rel_standing_envs=0.05,
            )
        },
        rewards={
            "track_lin_vel_xy": RewardTermCfg(
                func=mdp.track_lin_vel_xy_exp, weight=1.5, params={"std": 0.5, **command}
            ),
            "track_ang_vel_z": RewardTermCfg(
                func=mdp.track_ang_vel_z_exp, weight=0.75, params={"std": 0.5, **command}
            ),
            "lin_vel_z": RewardTermCfg(func=mdp.lin_vel_z_l2, weight=-0.5),
            "ang_vel_xy": RewardTermCfg(func=mdp.ang_vel_xy_l2, weight=-0.02),
            "flat_orientation": RewardTermCfg(func=mdp.flat_orientation_l2, weight=-1.0),
            "torques": RewardTermCfg(func=mdp.joint_torques_l2, weight=-1e-4),
            "action_rate": RewardTermCfg(func=mdp.action_rate_l2, weight=-0.01),
            "pose": RewardTermCfg(func=mdp.joint_deviation_l2, weight=-0.05),
            "feet_air_time": RewardTermCfg(
                func=mdp.feet_air_time,
                weight=0.5,
                params={"sensor_name": "feet", "threshold": 0.2, **command},
            ),
            "feet_slide": RewardTermCfg(
                func=mdp.feet_slide,
                weight=-0.05,
                params={"sensor_name": "feet", "velocity_sensor_names": velocities},
            ),
        },
        terminations={
            "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
            "too_low": TerminationTermCfg(
                func=mdp.root_height_below_minimum, params={"minimum_height": 0.15}
            ),
            "tilted": TerminationTermCfg(
                func=mdp.bad_orientation, params={"limit_angle": math.radians(60.0)}
            ),
        },
        events=events(
            trunk="base",
            feet=FEET,
            payload=(-1.0, 2.0),
            velocity_range={"x": (-0.3, 0.3), "y": (-0.3, 0.3), "yaw": (-0.3, 0.3)},
            position_range=(-0.1, 0.1),
        ),
    )


def go2_velocity_rough() -> VelocityEnvCfg:
    """Unitree Go2 follows a commanded velocity on generated terrain (12 joints, 20 s episodes)."""
    return rough(go2_velocity_flat())
