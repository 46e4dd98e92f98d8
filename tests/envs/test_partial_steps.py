"""TorchRL's ``_step`` masks: physics advances all environments together."""

import pytest
import torch
from envs.tables import act, physics_state, twins
from tensordict import TensorDict
from torchrl.envs import ConditionalSkip, MultiAction, TransformedEnv

from unilab.errors import CapabilityError


def test_a_mask_that_leaves_environments_out_is_refused_before_physics_moves(tmp_path):
    env = twins(tmp_path, num_envs=2)
    root, before = env.reset(), physics_state(env)
    with pytest.raises(CapabilityError, match=r"_step.*\[1\].*break_when_all_done"):
        env.step(act(env, root.clone()).set("_step", torch.tensor([True, False])))
    skipping = TransformedEnv(env, ConditionalSkip(cond=lambda td: torch.tensor([False, True])))
    with pytest.raises(CapabilityError, match="_step"):
        skipping.step(TensorDict({"action": torch.zeros(2, 2)}, [2]))
    assert torch.equal(physics_state(env), before)
    env.step(act(env, root))


def test_a_mask_of_all_environments_is_a_step(tmp_path):
    env = twins(tmp_path, num_envs=2)
    env.step(act(env, env.reset()).set("_step", torch.ones(2, dtype=torch.bool)))
    assert env.episode_length.tolist() == [1, 1]


def test_a_chunk_of_actions_is_a_step_each(tmp_path):
    chunks = MultiAction(dim=1, stack_rewards=True, stack_observations=False)
    env = TransformedEnv(twins(tmp_path, num_envs=2), chunks)
    after = env.step(env.reset().set("action", torch.zeros(2, 4, 2)))["next"]
    assert after["reward"].shape == (2, 4, 1)
    assert env.base_env.episode_length.tolist() == [4, 4]
