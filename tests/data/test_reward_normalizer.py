"""Reward normalisation against its float64 rendering."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference.flashsac import RewardScale
from tensordict import TensorDict

from unilab.data import RewardNormalizer
from unilab.errors import ConfigError, NonFiniteError

GAMMA = 0.9


def transitions(reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> TensorDict:
    """``[N, T]`` data as a collector gives it."""
    nested = {
        "reward": torch.as_tensor(reward).unsqueeze(-1),
        "terminated": torch.as_tensor(terminated).unsqueeze(-1),
        "truncated": torch.as_tensor(truncated).unsqueeze(-1),
        "done": torch.as_tensor(terminated | truncated).unsqueeze(-1),
    }
    return TensorDict({"next": nested}, reward.shape)


def random_transitions(num_envs: int, ticks: int, seed: int = 0) -> TensorDict:
    rng = np.random.default_rng(seed)
    shape = (num_envs, ticks)
    return transitions(
        rng.normal(3.0, 2.0, shape), rng.random(shape) < 0.1, rng.random(shape) < 0.1
    )


@settings(max_examples=40, deadline=None)
@given(data=st.data(), num_envs=st.integers(1, 4), ticks=st.integers(1, 8), size=st.integers(1, 3))
def test_scale_matches_the_reference_for_any_batching_of_ticks(data, num_envs, ticks, size):
    shape = (num_envs, ticks)
    reward = data.draw(arrays(np.float64, shape, elements=st.floats(-50, 50, width=32)))
    terminated = data.draw(arrays(np.bool_, shape))
    truncated = data.draw(arrays(np.bool_, shape))
    rewards, reference = RewardNormalizer(GAMMA), RewardScale(GAMMA, num_envs)
    batch = transitions(reward, terminated, truncated)
    for start in range(0, ticks, size):
        rewards.update(batch[:, start : start + size])
    for tick in range(ticks):
        reference.tick(reward[:, tick], terminated[:, tick] | truncated[:, tick])
    assert rewards.scale.item() == pytest.approx(reference.scale, rel=1e-9)
    np.testing.assert_allclose(rewards.state_dict()["returns"], reference.returns, rtol=1e-12)
    assert rewards.state_dict()["mean"].item() == pytest.approx(reference.mean, abs=1e-9)


def test_rewards_are_divided_in_a_copy():
    data = random_transitions(3, 5)
    data["next", "reward"] = data["next", "reward"].float()
    rewards = RewardNormalizer(GAMMA)
    rewards.update(data)
    raw = data["next", "reward"].clone()
    out = rewards.normalize(data)
    assert out["next", "reward"].dtype == torch.float32
    torch.testing.assert_close(out["next", "reward"], raw / rewards.scale.float())
    assert torch.equal(data["next", "reward"], raw)
    assert torch.equal(out["next", "done"], data["next", "done"])


def test_state_round_trip_continues_exactly(tmp_path):
    first, second = random_transitions(3, 5, seed=1), random_transitions(3, 5, seed=2)
    rewards, restored = RewardNormalizer(GAMMA), RewardNormalizer(GAMMA)
    rewards.update(first)
    torch.save(rewards.state_dict(), tmp_path / "state.pt")
    rewards.update(second)
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    restored.update(second)
    for key, value in rewards.state_dict().items():
        assert torch.equal(restored.state_dict()[key], value), key


def test_later_updates_do_not_change_a_saved_state():
    rewards = RewardNormalizer(GAMMA)
    rewards.update(random_transitions(3, 5))
    state = rewards.state_dict()
    before = {k: v.clone() for k, v in state.items()}
    rewards.update(random_transitions(3, 5, seed=1))
    assert all(torch.equal(v, before[k]) for k, v in state.items())


def test_another_number_of_environments_is_refused():
    rewards = RewardNormalizer(GAMMA)
    rewards.update(random_transitions(3, 5))
    with pytest.raises(ConfigError, match=r"3 environments.*15"):
        rewards.update(random_transitions(3, 5).reshape(-1))


def test_a_run_may_resume_with_another_number_of_environments():
    before, after = RewardNormalizer(GAMMA), RewardNormalizer(GAMMA)
    before.update(random_transitions(3, 5))
    after.load_state_dict(before.state_dict())
    after.begin_episodes()
    data = random_transitions(2, 4)
    after.update(data)
    fresh = RewardNormalizer(GAMMA)
    fresh.update(data)
    assert torch.equal(after.state_dict()["returns"], fresh.state_dict()["returns"])
    assert after.state_dict()["count"] == 3 * 5 + 2 * 4
    with pytest.raises(ConfigError, match=r"2 environments.*3"):
        after.update(random_transitions(3, 1))


def test_ticks_without_time_and_flags_and_rewards_of_any_type_give_the_same_scale():
    data = random_transitions(3, 4)
    data["next", "reward"] = data["next", "reward"].round()
    whole, ticks = RewardNormalizer(GAMMA), RewardNormalizer(GAMMA)
    whole.update(data)
    numbers = data.clone()
    for key in ("reward", "done"):
        numbers["next", key] = data["next", key].long()
    for tick in range(4):
        ticks.update(numbers[:, tick])
    assert torch.equal(whole.scale, ticks.scale)
    assert ticks.normalize(numbers)["next", "reward"].dtype == torch.float32


@pytest.mark.parametrize("envs", [[], [2, 2]])
def test_a_collectors_time_dimension_is_known_by_its_name(envs):
    """``[T]`` of an unbatched environment is not one tick of ``T`` environments."""
    flat = random_transitions(4 if envs else 1, 5)
    data = flat.reshape(*envs, 5)
    data.names = [*[None] * len(envs), "time"]
    rewards, want = RewardNormalizer(GAMMA), RewardNormalizer(GAMMA)
    rewards.update(data)
    want.update(flat)
    assert torch.equal(rewards.scale, want.scale)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_reward_that_is_not_finite_is_refused_and_changes_nothing(bad):
    rewards = RewardNormalizer(GAMMA)
    rewards.update(random_transitions(3, 5))
    before = rewards.state_dict()
    data = random_transitions(3, 2)
    data["next", "reward"][1, 1] = bad
    with pytest.raises(NonFiniteError, match=r"reward .*\[1\]"):
        rewards.update(data)
    assert all(torch.equal(v, before[k]) for k, v in rewards.state_dict().items())


@pytest.mark.parametrize("batch_size", [[], [2, 3, 4]])
def test_other_batch_shapes_are_refused(batch_size):
    data = TensorDict(
        {"next": {"reward": torch.zeros(*batch_size, 1), "done": torch.zeros(*batch_size, 1) > 0}},
        batch_size,
    )
    with pytest.raises(ConfigError, match=r"\[N\] or \[N, T\]"):
        RewardNormalizer(GAMMA).update(data)


@pytest.mark.parametrize(("name", "value"), [("gamma", 0.0), ("gamma", 1.01), ("v_max", 0.0)])
def test_a_setting_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        RewardNormalizer(**{"gamma": 0.9, name: value})
