"""Swing a torque-limited pendulum up and hold it there."""

from __future__ import annotations

import math

from torch import Tensor

from unilab.envs import (
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
from unilab.tasks.robots import model_path


def upright(
    env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = SceneEntityCfg("pendulum")
) -> Tensor:
    """Height of the bob from 0 (hanging) to 1 (upright), less a little for speed there."""
    data = env.scene[asset_cfg.name].data
    height = 0.5 * (1.0 + data.joint_pos[:, 0].cos())
    return height * (-0.05 * data.joint_vel[:, 0].square()).exp().mul(0.5).add(0.5)


def pendulum_swingup() -> ManagerBasedRlEnvCfg:
    """Swing a torque-limited pendulum up and hold it (1 joint, 10 s episodes)."""
    asset = {"asset_cfg": SceneEntityCfg("pendulum")}
    return ManagerBasedRlEnvCfg(
        scene=SceneCfg(
            model=str(model_path("pendulum")), entities={"pendulum": EntityCfg(root_body="pole")}
        ),
        decimation=2,
        episode_length_s=10.0,
        actions={"torque": mdp.JointEffortActionCfg()},
        observations={
            "obs": ObservationGroupCfg(
                terms={
                    "angle": ObservationTermCfg(func=mdp.joint_pos_sincos, params=asset),
                    "rate": ObservationTermCfg(func=mdp.joint_vel_rel, params=asset, scale=0.25),
                }
            )
        },
        rewards={"upright": RewardTermCfg(func=upright, weight=1.0)},
        terminations={"time_out": TerminationTermCfg(func=mdp.time_out, time_out=True)},
        events={
            "anywhere": EventTermCfg(
                func=mdp.reset_joints_by_offset,
                mode="reset",
                params={
                    "position_range": (-math.pi, math.pi),
                    "velocity_range": (-0.5, 0.5),
                    **asset,
                },
            )
        },
    )
