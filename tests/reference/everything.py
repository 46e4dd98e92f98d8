"""A task that keeps all that an environment may keep from step to step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from unilab.envs import (
    CurriculumTermCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerTermBase,
    RecorderTermCfg,
    RecordingCfg,
    mdp,
)
from unilab.tasks.velocity.go2 import go2_velocity_flat
from unilab.tasks.velocity.velocity_env_cfg import VelocityEnvCfg


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
    """Go2 with all that an environment may keep from step to step."""
    cfg = go2_velocity_flat()
    obs, command = cfg.observations["obs"], cfg.commands["base_velocity"]
    late = {"delay_max_lag": 2, "history_length": 2}
    friction = {"friction_distribution_params": (0.3, 1.2)}
    return replace(
        cfg,
        num_threads=1,
        episode_length_s=0.3,
        init_at_random_ep_len=True,
        observations={
            **cfg.observations,
            "obs": replace(
                obs, terms={**obs.terms, "joint_pos": replace(obs.terms["joint_pos"], **late)}
            ),
        },
        commands={"base_velocity": replace(command, resampling_time_range=(0.05, 0.2))},
        events={
            **cfg.events,
            "push": replace(cfg.events["push"], interval_range_s=(0.05, 0.2)),
            "ground": EventTermCfg(func=mdp.randomize_geom_friction, mode="reset", params=friction),
        },
        curriculum={"stages": CurriculumTermCfg(func=Stages)},
        recorders={"torques": RecorderTermCfg(func=mdp.joint_torques_l2, mode="post_step")},
        recording=RecordingCfg(num_envs=2),
    )
