"""The environment under TorchRL's own code (0001-C5, 0011-C1)."""

import pytest
import torch
from envs.tables import act, assert_bitwise_equal, go2, physics_state, twins
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import (
    Compose,
    EnvBase,
    InitTracker,
    MultiAction,
    RewardSum,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)

from unilab.errors import CapabilityError


def test_c1_passes_check_env_specs(tmp_path):
    check_env_specs(twins(tmp_path))


def test_the_collector_runs_over_resets_into_a_replay_buffer():
    env = go2(4, episode_length_s=0.08)  # 4 steps
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    collector = Collector(env, None, frames_per_batch=24, total_frames=72)
    batches = []
    for data in collector:
        batches.append(data)
        buffer.extend(data.reshape(-1))
    collector.shutdown()
    assert [b.shape for b in batches] == [(4, 6)] * 3
    data = torch.cat(batches, 1)
    done = data["next", "done"][..., 0]
    assert int(done.sum()) == 4 * 4
    # Within an episode the next observation is the following root; after its end it is not.
    same = (data["critic"][:, 1:] == data["next", "critic"][:, :-1]).all(-1)
    assert torch.equal(same, ~done[:, :-1])
    assert buffer.sample()["obs"].shape == (8, 45)


def test_transforms_see_episodes_begin_and_end(tmp_path):
    env = TransformedEnv(twins(tmp_path, 3), Compose(StepCounter(), RewardSum(), InitTracker()))
    check_env_specs(env)
    data = env.rollout(11, break_when_any_done=False)
    assert data["step_count"][0, :, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]
    assert data["is_init"][0, :, 0].nonzero().flatten().tolist() == [0, 5, 10]
    sums = data["next", "episode_reward"]
    torch.testing.assert_close(sums[:, 4], data["next", "reward"][:, :5].sum(1))
    torch.testing.assert_close(sums[:, 9], data["next", "reward"][:, 5:10].sum(1))


@pytest.mark.parametrize("extra", [None, "mine", ("mine", "deep")])
def test_step_and_maybe_reset_equals_torchrls(extra):
    """Falls end single rows, time limits end all."""
    results = []
    for body in (type(go2())._step_and_maybe_reset, EnvBase._step_and_maybe_reset):
        env = go2(4, episode_length_s=0.12)
        draw = torch.Generator().manual_seed(0)
        root, seen = env.reset(), []
        for step in range(14):
            root.set("action", torch.rand(env.action_spec.shape, generator=draw) * 2 - 1)
            if extra:
                root.set(extra, torch.full((4, 2, 3), float(step + 1)))
            if step == 8:
                env.backend.get_state_views()["qpos"][0, 2] = 0.1
            data, root = body(env, root)
            seen.append((data.clone(), root.clone()))
        results.append(seen)
    ends = {int(data["next", "done"].sum()) for data, _ in results[0]}
    assert ends == {0, 1, 3, 4}
    for own, theirs in zip(*results, strict=True):
        for mine, other in zip(own, theirs, strict=True):
            assert_bitwise_equal(mine, other)


def test_a_network_can_be_trained_on_what_is_returned():
    """Neither inference mode, in which terms run, nor a gradient of the action is in it."""
    env = go2(4, episode_length_s=0.06)
    root = env.reset()
    for _ in range(4):
        root.set("action", torch.zeros(4, 12, requires_grad=True) * 1.0)
        data, root = env.step_and_maybe_reset(root)
        for value in data["next"].values():
            assert not value.is_inference()
            assert not value.requires_grad
    layer = torch.nn.Linear(45, 1)
    (layer(data["next", "obs"]) * data["next", "reward"]).sum().backward()
    assert layer.weight.grad is not None


def test_pytorchs_threads_are_as_before_after_a_step_and_after_a_failure(tmp_path):
    env = twins(tmp_path)
    outside = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        root = env.reset()
        assert torch.get_num_threads() == 2
        env.step(root.set("action", torch.zeros(4, 2)))
        assert torch.get_num_threads() == 2
        env.backend.get_state_views()["qpos"][0] = torch.nan
        with pytest.raises(FloatingPointError):
            env.step(root)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(outside)


def test_step_mask_that_leaves_environments_out_is_refused(tmp_path):
    env = twins(tmp_path, num_envs=2)
    root, before = env.reset(), physics_state(env)
    with pytest.raises(CapabilityError, match=r"_step.*\[1\].*break_when_any_done=False"):
        env.step(act(env, root.clone()).set("_step", torch.tensor([True, False])))
    assert torch.equal(physics_state(env), before)
    env.step(act(env, root).set("_step", torch.ones(2, dtype=torch.bool)))
    assert env.episode_length.tolist() == [1, 1]


def test_a_chunk_of_actions_is_a_step_each(tmp_path):
    chunks = MultiAction(dim=1, stack_rewards=True, stack_observations=False)
    env = TransformedEnv(twins(tmp_path, num_envs=2), chunks)
    after = env.step(env.reset().set("action", torch.zeros(2, 4, 2)))["next"]
    assert after["reward"].shape == (2, 4, 1)
    assert env.base_env.episode_length.tolist() == [4, 4]
