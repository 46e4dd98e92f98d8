"""Unitree Go2 stands up from any pose in which it can lie, and keeps standing."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from unilab.backends import MujocoBackend
from unilab.checks import Count
from unilab.envs import (
    EntityCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerBasedRlEnvCfg,
    MetricsTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
    scene_model,
)
from unilab.tasks.robots import model_path

HEIGHT = 0.3
"""Height of the base of a robot that stands, m."""
FALL_S = 0.8
SCENE = SceneCfg(
    model=str(model_path("go2")),
    entities={"robot": EntityCfg(root_body="base", self_collisions=True)},
)


@cache
def after_falls(num_poses: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """``[num_poses, 19]``, poses of the robot (m, quaternion, rad) some time after a fall.

    It falls from 0.5 m, in any orientation and joint pose with equal probability, and holds its
    joints.
    """
    physics = MujocoBackend(scene_model(SCENE), num_poses)
    draw = torch.Generator().manual_seed(seed)
    quat = torch.randn(num_poses, 4, generator=draw)
    low, high = torch.tensor([joint.range for joint in physics.joints[1:]]).T
    joints = low + (high - low) * torch.rand(num_poses, 12, generator=draw)
    start = torch.tensor((0.0, 0.0, 0.5)).expand(num_poses, 3)
    qpos = torch.cat((start, quat / quat.norm(dim=1, keepdim=True), joints), 1).double()
    physics.set_state_tensor(torch.arange(num_poses), qpos, qpos.new_zeros(num_poses, 18))
    physics.step_tensor(joints.double(), round(FALL_S / physics.timestep))
    lying = physics.get_state_views()["qpos"].float()
    physics.close()
    lying[:, :2] = 0.0
    return lying.to(device)


def reset_to_lying(env: ManagerBasedRlEnv, env_ids: Tensor, num_poses: Count, seed: int) -> None:
    """Put the robot at rest where it came to lie after one of :func:`after_falls`."""
    n, robot, terrain = env_ids.shape[0], env.scene["robot"], env.scene.terrain
    fall = torch.randint(num_poses, (n,), generator=env.generator, device=env.device)
    lying = after_falls(num_poses, seed, env.device)[fall]
    pos, quat, joints = lying.split((3, 4, 12), 1)
    robot.write_root_pose(pos if terrain is None else terrain.place(pos, env_ids), quat)
    robot.write_joint_state(joints, torch.zeros_like(joints))


def uprightness(env: ManagerBasedRlEnv) -> Tensor:
    """1 upright, 0.5 on its side, 0 on its back."""
    return 0.5 - 0.5 * env.scene["robot"].data.projected_gravity_b[:, 2]


def rising(env: ManagerBasedRlEnv) -> Tensor:
    """Height of the base as a share of :data:`HEIGHT`, times :func:`uprightness`."""
    height = env.scene["robot"].data.root_pos_w[:, 2]
    return (height / HEIGHT).clamp(0.0, 1.0) * uprightness(env)


def at_home(env: ManagerBasedRlEnv, std: float) -> Tensor:
    """``exp(-mean((q - q_home)^2) / std^2)`` times :func:`rising`, squared."""
    off = mdp.joint_deviation_l2(env) * (-1.0 / (12.0 * std**2))
    return off.exp() * rising(env).square()


def standing(env: ManagerBasedRlEnv) -> Tensor:
    """1 while the base is tilted by less than 26 degrees and higher than 0.25 m."""
    data = env.scene["robot"].data
    return ((data.projected_gravity_b[:, 2] < -0.9) & (data.root_pos_w[:, 2] > 0.25)).float()


def go2_getup() -> ManagerBasedRlEnvCfg:
    """Unitree Go2 stands up from lying anyhow and keeps standing (12 joints, 8 s episodes)."""
    sensed = {
        "base_ang_vel": ObservationTermCfg(
            func=mdp.base_ang_vel, scale=0.25, noise=UniformNoiseCfg(n_min=-0.2, n_max=0.2)
        ),
        "projected_gravity": ObservationTermCfg(
            func=mdp.projected_gravity, noise=UniformNoiseCfg(n_min=-0.05, n_max=0.05)
        ),
        "joint_pos": ObservationTermCfg(
            func=mdp.joint_pos_rel, noise=UniformNoiseCfg(n_min=-0.01, n_max=0.01)
        ),
        "joint_vel": ObservationTermCfg(
            func=mdp.joint_vel_rel, scale=0.05, noise=UniformNoiseCfg(n_min=-1.5, n_max=1.5)
        ),
        "actions": ObservationTermCfg(func=mdp.last_action),
    }
    privileged = {
        "base_lin_vel": ObservationTermCfg(func=mdp.base_lin_vel, scale=2.0),
        "base_height": ObservationTermCfg(func=mdp.base_pos_z, scale=3.0),
    }
    trunk = SceneEntityCfg("robot", body_names=("base",))
    geoms = SceneEntityCfg("robot")
    return ManagerBasedRlEnvCfg(
        mirror={"FL": "FR", "RL": "RR"},
        scene=SCENE,
        decimation=4,
        episode_length_s=8.0,
        # Wide enough to fold a leg under the base and to push the ground away beside it.
        actions={
            "joint_pos": mdp.JointPositionActionCfg(
                scale={".*_hip": 1.0, ".*_thigh": 2.0, ".*_calf": 1.0}
            )
        },
        observations={
            "obs": ObservationGroupCfg(terms=sensed, enable_corruption=True),
            "critic": ObservationGroupCfg(terms={**sensed, **privileged}),
        },
        rewards={
            "upright": RewardTermCfg(func=uprightness, weight=1.0),
            "rising": RewardTermCfg(func=rising, weight=2.0),
            "at_home": RewardTermCfg(func=at_home, weight=2.0, params={"std": 0.7}),
            "joint_vel": RewardTermCfg(func=mdp.joint_vel_l2, weight=-5e-5),
            "torques": RewardTermCfg(func=mdp.joint_torques_l2, weight=-2e-5),
            "action_rate": RewardTermCfg(func=mdp.action_rate_l2, weight=-0.01),
        },
        terminations={"time_out": TerminationTermCfg(func=mdp.time_out, time_out=True)},
        metrics={"standing": MetricsTermCfg(func=standing)},
        events={
            "lying": EventTermCfg(
                func=reset_to_lying, mode="reset", params={"num_poses": 256, "seed": 0}
            ),
            "payload": EventTermCfg(
                func=mdp.randomize_rigid_body_mass,
                mode="startup",
                params={
                    "mass_distribution_params": (-1.0, 2.0),
                    "operation": "add",
                    "asset_cfg": trunk,
                },
            ),
            "friction": EventTermCfg(
                func=mdp.randomize_geom_friction,
                mode="startup",
                params={"friction_distribution_params": (0.4, 1.2), "asset_cfg": geoms},
            ),
            "push": EventTermCfg(
                func=mdp.push_by_setting_velocity,
                mode="interval",
                interval_range_s=(3.0, 5.0),
                params={
                    "velocity_range": {
                        **dict.fromkeys(("x", "y"), (-1.0, 1.0)),
                        **dict.fromkeys(("roll", "pitch"), (-2.0, 2.0)),
                    }
                },
            ),
        },
    )
