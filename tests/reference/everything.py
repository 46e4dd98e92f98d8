"""A task that keeps all that an environment may keep from step to step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from unilab.envs import (
    ContactMatch,
    ContactSensorCfg,
    CurriculumTermCfg,
    DCMotorCfg,
    EventTermCfg,
    GaussianNoiseCfg,
    ManagerBasedRlEnv,
    ManagerTermBase,
    MetricsTermCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RecordingCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
)
from unilab.tasks.velocity.go2 import go2_velocity_flat
from unilab.tasks.velocity.velocity_env_cfg import VelocityEnvCfg

MOTORS = DCMotorCfg(
    joint_names_expr="F._.*",
    stiffness=30.0,
    damping=0.6,
    saturation_effort=24.0,
    velocity_limit=25.0,
    delay_max_lag=3,
)
LEGS = SceneEntityCfg("robot", joint_names=("F._.*",), body_names=("base", "FL_calf"))
SHARE = (0.9, 1.1)
FRICTION = {
    "friction_distribution_params": (0.3, 1.2),
    "asset_cfg": SceneEntityCfg("robot", geom_names=("FL", "FR")),
}
RANDOMIZED = {
    mdp.randomize_geom_friction: FRICTION,
    mdp.randomize_rigid_body_mass: {
        "mass_distribution_params": SHARE,
        "operation": "scale",
        "asset_cfg": LEGS,
    },
    mdp.randomize_rigid_body_com: {"com_range": {"x": (-0.03, 0.03)}, "asset_cfg": LEGS},
    mdp.randomize_joint_parameters: {
        "friction_distribution_params": SHARE,
        "armature_distribution_params": SHARE,
        "damping_distribution_params": SHARE,
        "asset_cfg": LEGS,
    },
    mdp.randomize_actuator_gains: {
        "stiffness_distribution_params": SHARE,
        "damping_distribution_params": SHARE,
        "distribution": "log_uniform",
        "asset_cfg": LEGS,
    },
    mdp.randomize_physics_scene_gravity: {
        "gravity_distribution_params": ((0.0, 0.0, -0.1), (0.0, 0.0, 0.1))
    },
    mdp.randomize_encoder_bias: {"bias_range": (-0.01, 0.01), "asset_cfg": LEGS},
}
FEET = SceneEntityCfg("robot", body_names=".*_foot")
WRENCH = {
    "force_range": (-5.0, 5.0),
    "torque_range": {"z": (-1.0, 1.0)},
    "asset_cfg": SceneEntityCfg("robot", body_names=("base", "FL_calf")),
    "duration_s": (0.05, 0.15),
}
ERROR = GaussianNoiseCfg(std=0.5)
RECORDED = {
    "pre_step": mdp.policy_observation,
    "post_step": mdp.last_action,
    "post_reset": mdp.base_lin_vel,
    "pre_reset": mdp.base_ang_vel,
}


class Stages(ManagerTermBase):
    """Heavier action penalties and faster commands with each ended episode."""

    def __init__(self, cfg: CurriculumTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self.ended = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)

    def __call__(self, env: ManagerBasedRlEnv, env_ids: torch.Tensor) -> float:
        self.ended[env_ids] += 1
        mean = float(self.ended.float().mean())
        env.reward_manager.set_weight("action_rate", -0.01 * (1.0 + mean))
        env.command_manager.get_term("base_velocity").set_ranges(lin_vel_x=(-mean, mean))
        return mean

    def state_dict(self) -> dict[str, Any]:
        return {"mean": float(self.ended.float().mean())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ended.fill_(round(state["mean"]))


def go2_with_everything() -> VelocityEnvCfg:
    """Go2 with every manager, and events of all kinds at resets and in between."""
    cfg = go2_velocity_flat()
    obs, command = cfg.observations["obs"], cfg.commands["base_velocity"]
    late = {"delay_max_lag": 2, "history_length": 2}
    terms = {
        **obs.terms,
        "joint_pos": replace(obs.terms["joint_pos"], **late),
        "joint_vel": replace(obs.terms["joint_vel"], noise=ERROR, bias=ERROR),
        "air_time": ObservationTermCfg(func=mdp.foot_air_time, params={"sensor_name": "feet"}),
        "forces": ObservationTermCfg(
            func=mdp.foot_contact_forces, params={"sensor_name": "calves"}
        ),
        "heights": ObservationTermCfg(func=mdp.foot_height, params={"asset_cfg": FEET}),
    }
    feet = cfg.scene.sensors["feet"]
    legs = ContactMatch(mode="subtree", pattern=".*_calf", entity="robot")
    calves = ContactSensorCfg(
        primary=legs, fields=("found", "force"), track_air_time=True, history_length=2
    )
    landing = {"sensor_name": "calves"}
    swing = {"sensor_name": "feet", "target_height": 0.1, "asset_cfg": FEET}
    events = {
        func.__name__: EventTermCfg(func=func, mode="reset", params=params)
        for func, params in RANDOMIZED.items()
    }
    robot = replace(cfg.scene.entities["robot"], actuators={"front": MOTORS})
    return replace(
        cfg,
        scene=replace(
            cfg.scene,
            entities={"robot": robot},
            sensors={"feet": replace(feet, history_length=3), "calves": calves},
        ),
        num_threads=1,
        episode_length_s=0.3,  # 15 steps
        init_at_random_ep_len=True,
        observations={**cfg.observations, "obs": replace(obs, terms=terms)},
        actions={
            "rear": replace(
                cfg.actions["joint_pos"],
                actuator_names=("R.*",),
                delay_max_lag=3,
                delay_update_period=2,
            ),
            "front": mdp.RelativeJointPositionActionCfg(
                actuator_names=("F._.*_joint",), scale=0.3, clip={"F._thigh": (-0.2, 0.25)}
            ),
        },
        commands={
            "base_velocity": replace(
                command,
                resampling_time_range=(0.05, 0.2),
                heading_command=True,
                ranges=replace(command.ranges, heading=(-3.0, 3.0)),
            )
        },
        events={
            **cfg.events,
            **events,
            "wrench": EventTermCfg(
                func=mdp.apply_external_force_torque, mode="reset", params=WRENCH
            ),
            "push": replace(cfg.events["push"], interval_range_s=(0.05, 0.2)),
        },
        rewards={
            **cfg.rewards,
            "action_acc": RewardTermCfg(func=mdp.action_acc_l2, weight=-0.01),
            "landing": RewardTermCfg(func=mdp.soft_landing, weight=-1e-3, params=landing),
            "swing": RewardTermCfg(func=mdp.feet_swing_height, weight=-0.1, params=swing),
        },
        terminations={**cfg.terminations, "diverged": TerminationTermCfg(func=mdp.nan_detection)},
        metrics={"speed": MetricsTermCfg(func=mdp.joint_vel_l2)},
        curriculum={"stages": CurriculumTermCfg(func=Stages)},
        recorders={mode: RecorderTermCfg(func=func, mode=mode) for mode, func in RECORDED.items()},
        recording=RecordingCfg(num_envs=2),
    )
