"""What terms, transforms and other rows see of the beginning and end of episodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from envs.tables import ON_TWINS, TWINS_XML, act, twins, twins_cfg
from torch import Tensor

from unilab.envs import (
    CommandTerm,
    CommandTermCfg,
    ManagerBasedRlEnv,
    ManagerTermBase,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
)


class Goal(CommandTerm):
    """Where the joints were when it was drawn."""

    def __init__(self, cfg: GoalCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self.drawn = torch.zeros(env.num_envs, 2)

    @property
    def command(self) -> Tensor:
        return self.drawn

    def resample(self, rows: Tensor) -> None:
        self.drawn[rows] = self._env.scene["twins"].data.joint_pos[rows]


@dataclass(frozen=True, kw_only=True)
class GoalCfg(CommandTermCfg):
    resampling_time_range: tuple[float, float] = (9.0, 9.0)

    def build(self, env: ManagerBasedRlEnv) -> Goal:
        return Goal(self, env)


class travelled(ManagerTermBase):
    """From where the episode began."""

    def __init__(self, cfg: RewardTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self.start = torch.zeros(env.num_envs)

    def __call__(self, env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg) -> Tensor:
        return env.scene["twins"].data.joint_pos[:, 0] - self.start

    def reset(self, env_ids: Tensor) -> None:
        self.start[env_ids] = self._env.scene["twins"].data.joint_pos[env_ids, 0]


class smoothed(ManagerTermBase):
    """Joint velocities through a low pass; advances whenever it is called."""

    def __init__(self, cfg: ObservationTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self.value = torch.zeros(env.num_envs, 2)

    def __call__(self, env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg) -> Tensor:
        self.value = self.value + 0.2 * (env.scene["twins"].data.joint_vel - self.value)
        return self.value

    def reset(self, env_ids: Tensor) -> None:
        self.value[env_ids] = 0.0


def test_reset_of_terms_sees_the_new_state(tmp_path):
    env = twins(
        tmp_path,
        commands={"goal": GoalCfg()},
        rewards={"travelled": RewardTermCfg(func=travelled, weight=1.0, params=ON_TWINS)},
    )
    root = env.reset()
    for _ in range(3):
        for _ in range(5):
            _, root = env.step_and_maybe_reset(act(env, root, 0.4))
        began = env.backend.get_state_views()["qpos"].float()
        torch.testing.assert_close(env.command_manager.get_command("goal"), began)
        term = next(term for term in env.terms if term.name == "travelled")
        torch.testing.assert_close(term.func.start, began[:, 0])


def test_c9_a_reset_does_not_change_the_memory_of_other_rows(tmp_path):
    terms = {"slow": ObservationTermCfg(func=smoothed, params=ON_TWINS)}
    runs = []
    for resets in (False, True):
        env = twins(
            tmp_path, episode_length_s=9.0, observations={"obs": ObservationGroupCfg(terms=terms)}
        )
        root, shown = env.reset(), []
        for tick in range(8):
            root = env.step(act(env, root, 0.5))["next"].exclude("reward")
            shown.append(root["obs"][1:].clone())
            if resets and tick % 2:
                root = env.reset(root.set("_reset", torch.tensor([1, 0, 0, 0]).bool()))
                assert root["obs"][0].any()  # the first of the new episode, from a memory of 0
        runs.append(torch.stack(shown))
    assert torch.equal(*runs)


def test_env_ids_keep_the_flags_of_other_rows(tmp_path):
    env = twins(tmp_path, terminations={"now": TerminationTermCfg(func=mdp.time_out)})
    root = env.reset()
    for _ in range(5):
        root = env.step(act(env, root))["next"].exclude("reward")
    assert root["done"].all()
    begun = env.reset(env_ids=torch.tensor([2]))
    for flag in ("done", "terminated"):
        assert begun[flag].flatten().tolist() == [True, True, False, True]
    begun = env.reset(env_ids=torch.tensor([0, 1]))
    assert begun["done"].flatten().tolist() == [False, False, False, True]
    assert not env.reset()["done"].any()


def test_set_seed_redraws_the_first_episode_lengths(tmp_path):
    env = twins(tmp_path, num_envs=32, episode_length_s=1.0, init_at_random_ep_len=True)
    env.reset()
    env.set_seed(5)
    env.reset()
    first = env.episode_length.clone()
    assert len(first.unique()) > 5
    env.reset()
    assert not env.episode_length.any()
    env.set_seed(5)
    env.reset()
    assert torch.equal(env.episode_length, first)


def test_action_zero_is_the_home_pose_whatever_the_keyframes_controls(tmp_path):
    servos = TWINS_XML.replace("<motor", '<position kp="5"').replace(' ctrl="0.1 -0.1"', "")
    cfg = twins_cfg(tmp_path, actions={"pose": mdp.JointPositionActionCfg(scale=0.5)})
    Path(cfg.scene.model).write_text(servos)
    env = ManagerBasedRlEnv(cfg, num_envs=2, seed=0)
    assert env.action_manager.offset.tolist() == pytest.approx([0.3, 0.2])
    actions = {"pose": mdp.JointPositionActionCfg(use_default_offset=False)}
    cfg = twins_cfg(tmp_path, actions=actions)
    Path(cfg.scene.model).write_text(servos)
    assert ManagerBasedRlEnv(cfg, num_envs=2).action_manager.offset.tolist() == [0.0, 0.0]


def test_construction_draws_nothing(tmp_path):
    env = twins(tmp_path, commands={"goal": GoalCfg(resampling_time_range=(1.0, 9.0))})
    fresh = torch.Generator().manual_seed(0)
    assert torch.equal(env.generator.get_state(), fresh.get_state())
