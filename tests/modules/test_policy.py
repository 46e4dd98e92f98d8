"""The rollout policy over an actor."""

from __future__ import annotations

import itertools

import pytest
import torch
from reference.tiny import ACTION, OBS, tiny_actor
from tensordict import TensorDict
from torchrl.envs import InitTracker, PendulumEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.errors import ConfigError
from unilab.modules import FlashSACActor, FlashSACPolicy

KINDS = [
    ExplorationType.RANDOM,
    ExplorationType.DETERMINISTIC,
    ExplorationType.MODE,
    ExplorationType.MEAN,
]


def held(actor: FlashSACActor, rows: int) -> FlashSACActor:
    """An actor that would hold its present noise."""
    actor.explore(torch.zeros(rows, OBS))
    actor._noise_steps.fill_(10)
    return actor


@pytest.mark.parametrize("kind", KINDS[1:])
def test_any_other_exploration_type_acts_with_the_transformed_mean(kind):
    actor = held(tiny_actor(), 5)
    noise = actor._noise.clone()
    data = TensorDict({"obs": torch.randn(5, OBS)}, [5])
    with set_exploration_type(kind):
        action = FlashSACPolicy(actor)(data)["action"]
    torch.testing.assert_close(action, torch.tanh(actor.get_mean_and_std(data["obs"])[0]))
    assert torch.equal(actor._noise, noise)


@pytest.mark.parametrize("keys", [("is_init",), ("done",), ("is_init", "done")])
def test_noise_is_redrawn_where_the_first_of_is_init_and_done_says_so(keys):
    actor = held(tiny_actor(), 6)
    before = actor._noise.clone()
    reset = torch.tensor([[True], [False]] * 3)
    flags = dict(zip(keys, (reset, ~reset), strict=False))
    with set_exploration_type(ExplorationType.RANDOM):
        FlashSACPolicy(actor)(TensorDict({"obs": torch.zeros(6, OBS), **flags}, [6]))
    assert torch.equal((actor._noise == before).all(-1), ~reset.squeeze(-1))


def test_exploring_an_environment_without_init_tracker_is_refused():
    """Whose ``done`` is False again after a reset, so that noise would run across episode ends."""
    env, policy = PendulumEnv(), FlashSACPolicy(FlashSACActor(1, 1), obs_key="th")
    for made, type_ in itertools.product((env, TransformedEnv(env, InitTracker())), KINDS):
        data = made.reset()
        data["th"] = data["th"].unsqueeze(-1)
        with set_exploration_type(type_):
            if made is env and type_ is ExplorationType.RANDOM:
                with pytest.raises(ConfigError, match="InitTracker"):
                    policy(data)
            else:
                assert policy(data)["action"].shape == (1,)


@pytest.mark.parametrize("batch_size", [[], [4], [2, 3]])
def test_any_batch_shape_goes_through(batch_size):
    data = TensorDict({"obs": torch.randn(*batch_size, OBS)}, batch_size)
    assert FlashSACPolicy(tiny_actor())(data)["action"].shape == (*batch_size, ACTION)


def test_keys_are_those_it_was_given():
    policy = FlashSACPolicy(tiny_actor(), obs_key=("agent", "state"), action_key=("agent", "u"))
    assert policy.in_keys == [("agent", "state")]
    assert policy.out_keys == [("agent", "u")]
    out = policy(TensorDict({"agent": {"state": torch.zeros(4, OBS)}}, [4]))
    assert out["agent", "u"].shape == (4, ACTION)
