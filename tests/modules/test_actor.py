"""The stochastic actor: training pass, exploration, export."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import flashsac as ref
from reference.tiny import ACTION, OBS, arrays, tiny_actor
from tensordict import TensorDict

from unilab.errors import ConfigError
from unilab.modules import FlashSACActor

RANGES = {
    "unit": {},
    "one range": {"action_low": -2.0, "action_high": 3.0},
    "per joint": {"action_low": [-1.0, 0.5], "action_high": [1.0, 4.0]},
}


@pytest.mark.parametrize("training", [True, False])
def test_mean_std_and_statistics_match_the_reference(training):
    actor, obs = tiny_actor().double(), torch.randn(6, OBS, dtype=torch.float64)
    before, stats = arrays(actor), {}
    mean, std = actor.get_mean_and_std(obs, training)
    want_mean, want_log_std = ref.actor_heads(before, obs.numpy(), training, stats)
    np.testing.assert_allclose(mean.detach(), want_mean, rtol=1e-10)
    np.testing.assert_allclose(std.detach(), np.exp(want_log_std), rtol=1e-10)
    after = arrays(actor)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], stats.get(name, value), rtol=1e-12)


@pytest.mark.parametrize("name", RANGES)
def test_action_and_log_prob_match_the_reference(name):
    bounds = RANGES[name]
    actor = tiny_actor(**bounds).double()
    obs = torch.randn(6, OBS, dtype=torch.float64)
    torch.manual_seed(3)
    action, info = actor(obs, training=True)
    torch.manual_seed(3)
    eps = torch.randn(6, ACTION, dtype=torch.float64)
    low, high = (np.asarray(bounds.get(k, d)) for k, d in (("action_low", -1), ("action_high", 1)))
    fresh = arrays(tiny_actor(**bounds).double())
    want, log_prob = ref.sample_action(fresh, obs.numpy(), eps.numpy(), True, {}, low, high)
    np.testing.assert_allclose(action.detach(), want, rtol=1e-9)
    np.testing.assert_allclose(info["log_prob"].squeeze(-1).detach(), log_prob, rtol=1e-9)


@pytest.mark.parametrize("name", RANGES)
def test_actions_fill_their_range_and_stay_inside(name):
    actor = tiny_actor(**RANGES[name])
    low = torch.as_tensor(RANGES[name].get("action_low", -1.0)).expand(ACTION)
    high = torch.as_tensor(RANGES[name].get("action_high", 1.0)).expand(ACTION)
    with torch.no_grad():
        actor.std_head.bias.fill_(5.0)  # the widest noise
        actor.mean_head.bias.zero_()
    actions = torch.cat([actor.explore(torch.randn(512, OBS)) for _ in range(4)])
    assert (actions >= low).all()
    assert (actions <= high).all()
    assert ((actions.amax(0) - actions.amin(0)) / (high - low)).min() > 0.98
    assert actor.action_transform_id == ("tanh" if name == "unit" else "tanh_affine")


def test_deterministic_action_is_the_transformed_mean_and_keeps_the_noise():
    actor, obs = tiny_actor(action_low=-2.0, action_high=3.0), torch.randn(4, OBS)
    actor.explore(obs)
    noise, steps, rng = actor._noise.clone(), actor._noise_steps.clone(), torch.get_rng_state()
    action = actor.explore(obs, dones=torch.ones(4, 1, dtype=torch.bool), deterministic=True)
    mean, _ = actor.get_mean_and_std(obs)
    torch.testing.assert_close(action, 0.5 + 2.5 * torch.tanh(mean))
    assert torch.equal(actor._noise, noise)
    assert torch.equal(actor._noise_steps, steps)
    assert torch.equal(torch.get_rng_state(), rng)


def test_noise_is_held_for_a_zeta_distributed_number_of_steps():
    actor, ticks, rows = tiny_actor(), 400, 256
    torch.manual_seed(0)
    obs = torch.zeros(rows, OBS)
    noise = []
    for _ in range(ticks):
        actor.explore(obs)
        noise.append(actor._noise[:, 0].clone())
    noise = torch.stack(noise)
    lengths = []
    for row in noise.T:
        changes = (row[1:] != row[:-1]).nonzero().squeeze(-1)
        lengths.append(changes.diff())  # whole runs only
    counts = torch.bincount(torch.cat(lengths), minlength=18)[1:].double()
    assert counts[16:].sum() == 0
    share = (counts / counts.sum())[:16].numpy()
    np.testing.assert_allclose(share[:4], ref.zeta_law()[:4], rtol=0.05)
    np.testing.assert_allclose(share, ref.zeta_law(), atol=0.005)
    np.testing.assert_allclose(noise.std(), 1.0, atol=0.05)


def test_noise_is_redrawn_for_the_environments_that_were_reset():
    actor, obs = tiny_actor(), torch.zeros(64, OBS)
    actor.explore(obs)
    actor._noise_steps.fill_(10)  # all would hold
    before = actor._noise.clone()
    dones = torch.zeros(64, 1, dtype=torch.bool)
    dones[::2] = True
    actor.explore(obs, dones=dones)
    same = (actor._noise == before).all(-1)
    assert torch.equal(same, ~dones.squeeze(-1))


def test_a_collector_does_not_copy_the_exploration_state():
    learner, worker = tiny_actor(), tiny_actor()
    worker.explore(torch.zeros(16, OBS))
    TensorDict.from_module(worker).data.update_(TensorDict.from_module(learner).data)
    assert worker._noise.shape == (16, ACTION)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"obs_dim": 0}, "obs_dim"),
        ({"action_dim": 0}, "action_dim"),
        ({"hidden_dim": 0}, "hidden_dim"),
        ({"num_blocks": -1}, "num_blocks"),
        ({"action_low": 1.0}, "action_low"),
        ({"action_high": [1.0, float("nan")]}, "action_high.*nan"),
        ({"action_low": -float("inf")}, "action_low.*inf"),
        ({"action_low": 0.0, "action_high": 1e-45}, "action_low must be below.*float32"),
        ({"action_low": [0.0] * 3}, r"action_low.*\[3\]"),
    ],
)
def test_a_setting_out_of_range_is_refused(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        FlashSACActor(**{"obs_dim": 3, "action_dim": 2, **kwargs})
