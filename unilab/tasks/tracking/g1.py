"""Unitree G1 follows a reference motion, such as one retargeted from a human."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unilab.envs import (
    ContactMatch,
    ContactSensorCfg,
    EntityCfg,
    EventTermCfg,
    ManagerBasedRlEnvCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
)
from unilab.tasks.robots import model_path
from unilab.tasks.tracking.make_g1_steps import PATH

BODIES = (
    "pelvis",
    "torso_link",
    ".*_hip_roll_link",
    ".*_knee_link",
    ".*_ankle_roll_link",
    ".*_shoulder_roll_link",
    ".*_elbow_link",
    ".*_wrist_yaw_link",
)
ENDS = (".*_ankle_roll_link", ".*_wrist_yaw_link")
MOTION = {"command_name": "motion"}
VELOCITY_RANGE = {
    **dict.fromkeys(("x", "y"), (-0.5, 0.5)),
    "z": (-0.2, 0.2),
    **dict.fromkeys(("roll", "pitch"), (-0.52, 0.52)),
    "yaw": (-0.78, 0.78),
}
"""Of starts and pushes, m/s and rad/s."""
ACTION_SCALE = {
    ".*_hip_(pitch|yaw)|waist_yaw": 2.2,
    ".*_hip_roll|.*_knee": 1.4,
    ".*_ankle_.*|waist_(roll|pitch)": 1.75,
    ".*_shoulder_.*|.*_elbow|.*_wrist_roll": 1.75,
    ".*_wrist_(pitch|yaw)": 0.3,
}
"""The effort limit over the stiffness, rad: an action of 1 is four of BeyondMimic, because actions
are bounded here."""


def g1_motion_tracking() -> ManagerBasedRlEnvCfg:
    """Unitree G1 follows a reference motion, here a squat and steps (29 joints, 10 s episodes)."""
    trunk = SceneEntityCfg("robot", body_names="torso_link")
    tree = ContactMatch(mode="subtree", pattern="pelvis", entity="robot")
    return ManagerBasedRlEnvCfg(
        scene=SceneCfg(
            model=str(model_path("g1")),
            entities={"robot": EntityCfg(root_body="pelvis", self_collisions=True)},
            sensors={"self": ContactSensorCfg(primary=tree, secondary=tree)},
        ),
        decimation=4,
        episode_length_s=10.0,
        actions={"joint_pos": mdp.JointPositionActionCfg(scale=ACTION_SCALE)},
        commands={
            "motion": mdp.MotionCommandCfg(
                motion_file=str(PATH),
                anchor_body_name="torso_link",
                body_names=BODIES,
                pose_range={
                    **dict.fromkeys(("x", "y"), (-0.05, 0.05)),
                    "z": (-0.01, 0.01),
                    **dict.fromkeys(("roll", "pitch"), (-0.1, 0.1)),
                    "yaw": (-0.2, 0.2),
                },
                velocity_range=VELOCITY_RANGE,
                joint_position_range=(-0.1, 0.1),
            )
        },
        observations={
            "obs": ObservationGroupCfg(terms=_observations(), enable_corruption=True),
            "critic": ObservationGroupCfg(
                terms={
                    **_observations(),
                    "body_pos": ObservationTermCfg(func=mdp.robot_body_pos_b, params=MOTION),
                    "body_ori": ObservationTermCfg(func=mdp.robot_body_ori_b, params=MOTION),
                }
            ),
        },
        rewards={
            "anchor_pos": RewardTermCfg(
                func=mdp.motion_global_anchor_position_error_exp,
                weight=0.5,
                params={"std": 0.3, **MOTION},
            ),
            "anchor_ori": RewardTermCfg(
                func=mdp.motion_global_anchor_orientation_error_exp,
                weight=0.5,
                params={"std": 0.4, **MOTION},
            ),
            "body_pos": RewardTermCfg(
                func=mdp.motion_relative_body_position_error_exp,
                weight=1.0,
                params={"std": 0.3, **MOTION},
            ),
            "body_ori": RewardTermCfg(
                func=mdp.motion_relative_body_orientation_error_exp,
                weight=1.0,
                params={"std": 0.4, **MOTION},
            ),
            "body_lin_vel": RewardTermCfg(
                func=mdp.motion_global_body_linear_velocity_error_exp,
                weight=1.0,
                params={"std": 1.0, **MOTION},
            ),
            "body_ang_vel": RewardTermCfg(
                func=mdp.motion_global_body_angular_velocity_error_exp,
                weight=1.0,
                params={"std": 3.14, **MOTION},
            ),
            "action_rate": RewardTermCfg(func=mdp.action_rate_l2, weight=-0.05),
            "joint_limit": RewardTermCfg(func=mdp.joint_pos_limits, weight=-10.0),
            "self_collisions": RewardTermCfg(
                func=mdp.self_collision_cost, weight=-1.0, params={"sensor_name": "self"}
            ),
        },
        terminations={
            "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
            "motion_ended": TerminationTermCfg(func=mdp.motion_ended, params=MOTION, time_out=True),
            "anchor_pos": TerminationTermCfg(
                func=mdp.bad_anchor_pos_z_only, params={"threshold": 0.25, **MOTION}
            ),
            "anchor_ori": TerminationTermCfg(
                func=mdp.bad_anchor_ori, params={"threshold": 0.8, **MOTION}
            ),
            "ee_body_pos": TerminationTermCfg(
                func=mdp.bad_motion_body_pos_z_only,
                params={"threshold": 0.25, "body_names": ENDS, **MOTION},
            ),
        },
        events={
            "com": EventTermCfg(
                func=mdp.randomize_rigid_body_com,
                mode="startup",
                params={
                    "com_range": {"x": (-0.025, 0.025), "y": (-0.05, 0.05), "z": (-0.05, 0.05)},
                    "asset_cfg": trunk,
                },
            ),
            "foot_friction": EventTermCfg(
                func=mdp.randomize_geom_friction,
                mode="startup",
                params={
                    "friction_distribution_params": (0.3, 1.2),
                    "asset_cfg": SceneEntityCfg("robot", geom_names=(".*_foot._collision",)),
                },
            ),
            "encoder_bias": EventTermCfg(
                func=mdp.randomize_encoder_bias,
                mode="startup",
                params={"bias_range": (-0.01, 0.01)},
            ),
            "push": EventTermCfg(
                func=mdp.push_by_setting_velocity,
                mode="interval",
                interval_range_s=(1.0, 3.0),
                params={"velocity_range": VELOCITY_RANGE},
            ),
        },
    )


def g1_motion_tracking_deploy() -> ManagerBasedRlEnvCfg:
    """Unitree G1 follows a motion by what its own sensors measure (29 joints, 10 s episodes)."""
    cfg = g1_motion_tracking()
    obs = cfg.observations["obs"]
    unknown = ("motion_anchor_pos_b", "base_lin_vel")
    terms = {name: term for name, term in obs.terms.items() if name not in unknown}
    return replace(cfg, observations={**cfg.observations, "obs": replace(obs, terms=terms)})


def _observations() -> dict[str, ObservationTermCfg]:
    """The motion and what the robot feels, noisy."""
    noisy: dict[str, tuple[Callable[..., Any], float, dict[str, Any]]] = {
        "motion_anchor_pos_b": (mdp.motion_anchor_pos_b, 0.25, MOTION),
        "motion_anchor_ori_b": (mdp.motion_anchor_ori_b, 0.05, MOTION),
        "base_lin_vel": (mdp.base_lin_vel, 0.5, {}),
        "base_ang_vel": (mdp.base_ang_vel, 0.2, {}),
        "joint_pos": (mdp.joint_pos_rel, 0.01, {"biased": True}),
        "joint_vel": (mdp.joint_vel_rel, 0.5, {}),
    }
    return {
        "command": ObservationTermCfg(func=mdp.generated_commands, params=MOTION),
        **{
            name: ObservationTermCfg(
                func=func, params=params, noise=UniformNoiseCfg(n_min=-size, n_max=size)
            )
            for name, (func, size, params) in noisy.items()
        },
        "actions": ObservationTermCfg(func=mdp.last_action),
    }
