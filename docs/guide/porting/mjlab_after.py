"""Unitree Go2 follows a commanded velocity on flat ground."""

import math
import sys

import torch

from unilab.cli import main
from unilab.envs import (
    ContactMatch,
    ContactSensorCfg,
    CurriculumTermCfg,
    EntityCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerBasedRlEnvCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
)
from unilab.envs import UniformNoiseCfg as Unoise
from unilab.envs.mdp import JointPositionActionCfg, UniformVelocityCommandCfg
from unilab.registry import register
from unilab.tasks.robots import model_path

FEET = ("FL", "FR", "RL", "RR")
ROBOT = SceneEntityCfg("robot")


def upright(
    env: ManagerBasedRlEnv,
    std: float,
    asset_cfg: SceneEntityCfg = ROBOT,
) -> torch.Tensor:
    asset = env.scene[asset_cfg.name]
    tilt = torch.sum(torch.square(asset.data.projected_gravity_b[:, :2]), dim=1)
    return torch.exp(-tilt / std**2)


def velocity() -> ManagerBasedRlEnvCfg:
    """Unitree Go2 follows a commanded velocity on flat ground (ported)."""
    feet_ground_contact = ContactSensorCfg(
        primary=ContactMatch(mode="geom", pattern=FEET, entity="robot"),
        secondary=ContactMatch(mode="geom", pattern="floor"),
        fields=("found", "force"),
        track_air_time=True,
    )
    actor_terms = {
        "base_lin_vel": ObservationTermCfg(
            func=mdp.sensor_values,
            params={"sensor_names": ("imu_lin_vel",)},
            noise=Unoise(n_min=-0.5, n_max=0.5),
        ),
        "base_ang_vel": ObservationTermCfg(
            func=mdp.sensor_values,
            params={"sensor_names": ("imu_gyro",)},
            noise=Unoise(n_min=-0.2, n_max=0.2),
        ),
        "projected_gravity": ObservationTermCfg(
            func=mdp.projected_gravity, noise=Unoise(n_min=-0.05, n_max=0.05)
        ),
        "joint_pos": ObservationTermCfg(
            func=mdp.joint_pos_rel,
            params={"biased": True},
            noise=Unoise(n_min=-0.01, n_max=0.01),
        ),
        "joint_vel": ObservationTermCfg(
            func=mdp.joint_vel_rel, noise=Unoise(n_min=-1.5, n_max=1.5)
        ),
        "actions": ObservationTermCfg(func=mdp.last_action),
        "command": ObservationTermCfg(
            func=mdp.generated_commands, params={"command_name": "twist"}
        ),
    }
    critic_terms = {
        **actor_terms,
        "joint_pos": ObservationTermCfg(func=mdp.joint_pos_rel),
        "foot_contact_forces": ObservationTermCfg(
            func=mdp.foot_contact_forces, params={"sensor_name": "feet_ground_contact"}
        ),
    }
    return ManagerBasedRlEnvCfg(
        scene=SceneCfg(
            model=str(model_path("go2")),
            entities={"robot": EntityCfg(root_body="base")},
            sensors={"feet_ground_contact": feet_ground_contact},
        ),
        observations={
            "obs": ObservationGroupCfg(terms=actor_terms, enable_corruption=True),
            "critic": ObservationGroupCfg(terms=critic_terms),
        },
        actions={"joint_pos": JointPositionActionCfg(actuator_names=(".*",), scale=0.5)},
        commands={
            "twist": UniformVelocityCommandCfg(
                entity_name="robot",
                resampling_time_range=(3.0, 8.0),
                rel_standing_envs=0.1,
                rel_heading_envs=0.3,
                heading_command=True,
                heading_control_stiffness=0.5,
                ranges=UniformVelocityCommandCfg.Ranges(
                    lin_vel_x=(-1.0, 1.0),
                    lin_vel_y=(-1.0, 1.0),
                    ang_vel_z=(-0.5, 0.5),
                    heading=(-math.pi, math.pi),
                ),
            )
        },
        events={
            "reset_base": EventTermCfg(
                func=mdp.reset_root_state_uniform,
                mode="reset",
                params={"pose_range": {"yaw": (-3.14, 3.14)}, "velocity_range": {}},
            ),
            "push_robot": EventTermCfg(
                func=mdp.push_by_setting_velocity,
                mode="interval",
                interval_range_s=(1.0, 3.0),
                params={"velocity_range": {"x": (-0.5, 0.5), "y": (-0.5, 0.5)}},
            ),
            "foot_friction": EventTermCfg(
                func=mdp.randomize_geom_friction,
                mode="startup",
                params={
                    "asset_cfg": SceneEntityCfg("robot", geom_names=FEET),
                    "operation": "abs",
                    "friction_distribution_params": (0.3, 1.2),
                },
            ),
            "encoder_bias": EventTermCfg(
                func=mdp.randomize_encoder_bias,
                mode="startup",
                params={
                    "asset_cfg": SceneEntityCfg("robot"),
                    "bias_range": (-0.015, 0.015),
                },
            ),
        },
        rewards={
            "track_linear_velocity": RewardTermCfg(
                func=mdp.track_lin_vel_xy_exp,
                weight=2.0,
                params={"command_name": "twist", "std": math.sqrt(0.25)},
            ),
            "track_angular_velocity": RewardTermCfg(
                func=mdp.track_ang_vel_z_exp,
                weight=2.0,
                params={"command_name": "twist", "std": math.sqrt(0.5)},
            ),
            "upright": RewardTermCfg(func=upright, weight=1.0, params={"std": math.sqrt(0.2)}),
            "dof_pos_limits": RewardTermCfg(func=mdp.joint_pos_limits, weight=-1.0),
            "action_rate_l2": RewardTermCfg(func=mdp.action_rate_l2, weight=-0.1),
            "foot_slip": RewardTermCfg(
                func=mdp.feet_slip,
                weight=-0.1,
                params={
                    "sensor_name": "feet_ground_contact",
                    "command_name": "twist",
                    "asset_cfg": SceneEntityCfg("robot", body_names=".*_foot"),
                },
            ),
        },
        terminations={
            "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
            "fell_over": TerminationTermCfg(
                func=mdp.bad_orientation, params={"limit_angle": math.radians(70.0)}
            ),
        },
        curriculum={
            "command_vel": CurriculumTermCfg(
                func=mdp.commands_vel,
                params={
                    "command_name": "twist",
                    "velocity_stages": [
                        {"step": 0, "lin_vel_x": (-1.0, 1.0)},
                        {"step": 5000 * 24, "lin_vel_x": (-1.5, 2.0)},
                    ],
                },
            )
        },
        decimation=4,
        episode_length_s=20.0,
    )


register("velocity_from_mjlab", velocity)

if __name__ == "__main__":
    sys.exit(main())
