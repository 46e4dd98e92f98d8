"""What terms, transforms and other rows see of the beginning and end of episodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from envs.tables import ON_TWINS, TWINS_XML, act, drive, twins, twins_cfg
from torch import Tensor

from unilab.envs import (
    ManagerBasedRlEnv,
    ManagerTermBase,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
)


class travelled(ManagerTermBase):
    """From where the episode began."""

    def __init__(self, cfg: RewardTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self.start = torch.zeros(env.num_envs)

    def __call__(self, env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg) -> Tensor:
        return env.scene["twins"].data.joint_pos[:, 0] - self.start

    def reset(self, env_ids: Tensor) -> None:
        self.start[env_ids] = self._env.scene["twins"].data.joint_pos[env_ids, 0]


def test_reset_of_terms_sees_the_new_state(tmp_path):
    reward = RewardTermCfg(func=travelled, weight=1.0, params=ON_TWINS)
    env = twins(tmp_path, rewards={"travelled": reward})
    drive(env, 5)
    (term,) = (term for term in env.terms if term.name == "travelled")
    began = env.backend.get_state_views()["qpos"].float()
    torch.testing.assert_close(term.func.start, began[:, 0])


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


def test_action_zero_is_the_home_pose_whatever_the_keyframes_controls(tmp_path):
    servos = TWINS_XML.replace("<motor", '<position kp="5"').replace(' ctrl="0.1 -0.1"', "")
    cfg = twins_cfg(tmp_path, actions={"pose": mdp.JointPositionActionCfg(scale=0.5)})
    Path(cfg.scene.model).write_text(servos)
    env = ManagerBasedRlEnv(cfg, num_envs=2, seed=0)
    assert env.action_manager.offset.tolist() == pytest.approx([0.3, 0.2])
