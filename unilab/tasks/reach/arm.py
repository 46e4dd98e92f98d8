"""An arm of 6 joints moves its tool to commanded poses."""

from __future__ import annotations

import math

from unilab.envs import (
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


def arm_reach() -> ManagerBasedRlEnvCfg:
    """An arm moves its tool to commanded poses, hand down (6 joints, 12 s episodes)."""
    noise = UniformNoiseCfg(n_min=-0.01, n_max=0.01)
    tool = {
        "command_name": "ee_pose",
        "asset_cfg": SceneEntityCfg("robot", body_names=("tool_tip",)),
    }
    return ManagerBasedRlEnvCfg(
        scene=SceneCfg(
            model=str(model_path("arm")), entities={"robot": EntityCfg(root_body="base")}
        ),
        decimation=4,
        episode_length_s=12.0,
        # From the home pose, far enough for every command.
        actions={
            "joint_pos": mdp.JointPositionActionCfg(
                scale={"(shoulder|elbow|wrist).*": 1.2, "tool_roll": 2.5}
            )
        },
        observations={
            "obs": ObservationGroupCfg(
                terms={
                    "joint_pos": ObservationTermCfg(func=mdp.joint_pos_rel, noise=noise),
                    "joint_vel": ObservationTermCfg(func=mdp.joint_vel_rel, scale=0.2, noise=noise),
                    "command": ObservationTermCfg(
                        func=mdp.generated_commands, params={"command_name": "ee_pose"}
                    ),
                    "actions": ObservationTermCfg(func=mdp.last_action),
                },
                enable_corruption=True,
            )
        },
        commands={
            "ee_pose": mdp.UniformPoseCommandCfg(
                body_name="tool_tip",
                resampling_time_range=(4.0, 4.0),
                ranges=mdp.UniformPoseCommandCfg.Ranges(
                    pos_x=(0.3, 0.55),
                    pos_y=(-0.25, 0.25),
                    pos_z=(0.1, 0.45),
                    pitch=(math.pi, math.pi),
                    yaw=(-0.5 * math.pi, 0.5 * math.pi),
                ),
            )
        },
        rewards={
            "position_tracking": RewardTermCfg(
                func=mdp.position_command_error, weight=-2.0, params=tool
            ),
            "position_tracking_fine_grained": RewardTermCfg(
                func=mdp.position_command_error_tanh, weight=1.0, params={"std": 0.1, **tool}
            ),
            "orientation_tracking": RewardTermCfg(
                func=mdp.orientation_command_error, weight=-1.0, params=tool
            ),
            "action_rate": RewardTermCfg(func=mdp.action_rate_l2, weight=-0.01),
            "joint_vel": RewardTermCfg(func=mdp.joint_vel_l2, weight=-0.001),
        },
        terminations={"time_out": TerminationTermCfg(func=mdp.time_out, time_out=True)},
        events={
            "reset_joints": EventTermCfg(
                func=mdp.reset_joints_by_offset,
                mode="reset",
                params={"position_range": (-0.5, 0.5), "velocity_range": (0.0, 0.0)},
            )
        },
    )
