"""Swing a pole up by moving its cart, and balance it at the middle of the rail."""

from __future__ import annotations

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


def balanced(
    env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = SceneEntityCfg("cartpole")
) -> Tensor:
    """0 to 1: the pole upright, the cart at the middle, both slow, little force.

    The product of factors is that of the cartpole of the DeepMind Control Suite (Tassa et al.,
    2018), with Gaussians for its tolerances.
    """
    data = env.scene[asset_cfg.name].data
    position, angle = data.joint_pos.unbind(1)
    upright = 0.5 * (1.0 + angle.cos())
    centred = 0.5 * (1.0 + (-0.575 * position.square()).exp())
    small_force = 0.8 + 0.2 * (1.0 - env.action_manager.action[:, 0].square())
    slow = 0.5 * (1.0 + (-0.092 * data.joint_vel[:, 1].square()).exp())
    return upright * centred * small_force * slow


def cartpole_swingup() -> ManagerBasedRlEnvCfg:
    """Swing a pole up by moving its cart and balance it (2 joints, 10 s episodes)."""
    asset = {"asset_cfg": SceneEntityCfg("cartpole")}
    slider = {"asset_cfg": SceneEntityCfg("cartpole", joint_names=("slider",))}
    hinge = {"asset_cfg": SceneEntityCfg("cartpole", joint_names=("hinge",))}
    return ManagerBasedRlEnvCfg(
        scene=SceneCfg(
            model=str(model_path("cartpole")), entities={"cartpole": EntityCfg(root_body="cart")}
        ),
        decimation=2,
        episode_length_s=10.0,
        actions={"force": mdp.JointEffortActionCfg()},
        observations={
            "obs": ObservationGroupCfg(
                terms={
                    "position": ObservationTermCfg(func=mdp.joint_pos_rel, params=slider),
                    "angle": ObservationTermCfg(func=mdp.joint_pos_sincos, params=hinge),
                    "rates": ObservationTermCfg(
                        func=mdp.joint_vel_rel, params=asset, scale=(0.5, 0.2)
                    ),
                }
            )
        },
        rewards={"balanced": RewardTermCfg(func=balanced, weight=1.0)},
        terminations={"time_out": TerminationTermCfg(func=mdp.time_out, time_out=True)},
        events={
            "hanging": EventTermCfg(
                func=mdp.reset_joints_by_offset,
                mode="reset",
                params={"position_range": (-0.1, 0.1), "velocity_range": (-0.1, 0.1), **asset},
            )
        },
    )
