"""The Gaussian actor and its normaliser: distribution, export, what is saved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Normal
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.errors import ConfigError
from unilab.modules import (
    FlashSACActorSpec,
    GaussianActor,
    GaussianPolicy,
    ObsNormalizer,
    ValueNetwork,
    actor_semantics,
    assert_log_prob_consistent,
    build_actor,
)

OBS, ACTION = 5, 2
RANGE = {"action_low": [-1.0, 0.5], "action_high": [1.0, 4.0]}


def seen(**kwargs: object) -> GaussianActor:
    """A small actor that has seen observations far from mean 0 and variance 1."""
    torch.manual_seed(0)
    actor = GaussianActor(OBS, ACTION, [8, 8], **kwargs)
    torch.nn.init.orthogonal_(actor.mean_head.weight)
    if actor.normalizer is not None:
        actor.normalizer.update(3.0 + 5.0 * torch.randn(100, OBS))
    return actor


def numpy_mean(actor: GaussianActor, obs: np.ndarray) -> np.ndarray:
    """The mean from the state dict alone, in float64."""
    p = {k: v.double().numpy() for k, v in actor.state_dict().items()}
    x = (obs - p["normalizer.running_mean"]) / np.sqrt(p["normalizer.running_var"] + 1e-4)
    for layer in ("hidden.0", "hidden.2"):
        x = x @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]
        x = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    return x @ p["mean_head.weight"].T + p["mean_head.bias"]


def test_the_mean_is_an_mlp_of_the_normalised_observation():
    actor, obs = seen(), 3.0 + 5.0 * torch.randn(7, OBS)
    exported = actor.as_export_module()(obs)
    np.testing.assert_allclose(exported.detach(), numpy_mean(actor, obs.double().numpy()), 1e-4)
    assert torch.equal(exported, actor.explore(obs, deterministic=True))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("init_std", [0.7, None])
@pytest.mark.parametrize("bounds", [{}, RANGE])
def test_it_keeps_the_contract_and_its_log_prob_is_the_density_of_its_actions(
    layer_norm, init_std, bounds
):
    kwargs = {"hidden_dims": [8], "layer_norm": layer_norm, "init_std": init_std, **bounds}
    spec = FlashSACActorSpec(builder="unilab.modules:GaussianActor", kwargs=kwargs)
    assert actor_semantics(build_actor(spec, obs_dim=OBS, action_dim=ACTION))["kwargs"] == kwargs
    low, high = (torch.tensor(ends, dtype=torch.float64) for ends in RANGE.values())
    squash = (lambda u: low + (high - low) * (torch.tanh(u) + 1) / 2) if bounds else (lambda u: u)
    actor = seen(layer_norm=layer_norm, init_std=init_std, **bounds)
    assert actor.action_transform_id == ("tanh_affine" if bounds else "none")
    assert_log_prob_consistent(actor, squash, obs=3.0 + 5.0 * torch.randn(64, OBS))


def test_exploration_has_the_mean_and_std_of_the_distribution():
    actor, obs = seen(init_std=0.3), torch.randn(1, OBS)
    actions = actor.explore(obs.expand(20_000, -1))
    mean, std = actor.get_mean_and_std(obs)
    torch.testing.assert_close(actions.mean(0), mean[0], atol=0.02, rtol=0)
    torch.testing.assert_close(actions.std(0), std[0], atol=0.01, rtol=0)
    torch.testing.assert_close(std, torch.full_like(std, 0.3))


@pytest.mark.parametrize("batch_size", [[], [6], [2, 3]])
def test_the_policy_writes_actions_and_their_log_density(batch_size):
    actor = seen(init_std=0.3)
    policy = GaussianPolicy(actor)
    assert policy.actor is actor
    assert set(policy.parameters()) == set(actor.parameters())
    data = TensorDict({"obs": torch.randn(*batch_size, OBS)}, batch_size)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        action = policy(data.clone())["action"]
    obs = data["obs"].reshape(-1, OBS)
    assert torch.equal(action.reshape(-1, ACTION), actor.explore(obs, deterministic=True))
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        data = policy(data)
    assert not torch.equal(data["action"], action)
    wanted = Normal(action, 0.3).log_prob(data["action"]).sum(-1)
    torch.testing.assert_close(data["action_log_prob"], wanted)


def test_the_policy_refuses_an_actor_that_transforms_its_actions():
    with pytest.raises(ConfigError, match=r"action_transform_id.*tanh_affine"):
        GaussianPolicy(seen(**RANGE))


def test_an_actor_records_how_to_build_it_again():
    actor = seen(init_std=None, **RANGE)
    semantics = actor_semantics(actor)
    spec = FlashSACActorSpec(builder=semantics["builder"], kwargs=semantics["kwargs"])
    again = build_actor(spec, obs_dim=OBS, action_dim=ACTION)
    assert actor_semantics(again) == semantics
    again.load_state_dict(actor.state_dict())  # the normaliser's statistics too
    obs = torch.randn(4, OBS)
    assert torch.equal(
        again.explore(obs, deterministic=True), actor.explore(obs, deterministic=True)
    )


def test_statistics_of_batches_are_those_of_all_their_rows():
    torch.manual_seed(0)
    normalizer = ObsNormalizer(3)
    batches = [1e3 * torch.randn(3) + torch.randn(rows, 4, 3) for rows in (1, 7, 30)]
    for batch in batches:
        before = normalizer(batch)
        assert torch.equal(before, normalizer(batch))  # reading moves nothing
        normalizer.update(batch)
    rows = torch.cat([batch.reshape(-1, 3) for batch in batches]).double()
    mean, var = rows.mean(0), rows.var(0, correction=0)
    assert normalizer.count == len(rows)
    torch.testing.assert_close(normalizer.running_mean.double(), mean, rtol=1e-5, atol=0)
    torch.testing.assert_close(normalizer.running_var.double(), var, rtol=1e-4, atol=0)
    normal = normalizer(rows.float())
    torch.testing.assert_close(normal.mean(0), torch.zeros(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(normal.std(0, correction=0), torch.ones(3), rtol=0, atol=1e-3)


def test_a_column_that_never_changed_stays_finite():
    normalizer = ObsNormalizer(1)
    normalizer.update(torch.full((10, 1), 2.0))
    assert normalizer(torch.tensor([[2.01]])).item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"obs_dim": 0}, "obs_dim"),
        ({"hidden_dims": []}, "hidden_dims"),
        ({"hidden_dims": [8, 0]}, "hidden_dims"),
        ({"activation": "gelu2"}, "activation.*gelu2"),
    ],
)
@pytest.mark.parametrize("network", [GaussianActor, ValueNetwork])
def test_a_setting_that_no_network_can_have_is_refused(network, kwargs, name):
    sizes = {"obs_dim": 3} | ({"action_dim": 2} if network is GaussianActor else {})
    with pytest.raises(ConfigError, match=name):
        network(**{**sizes, **kwargs})


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"init_std": 0.0}, "init_std"),
        ({"action_low": -1.0}, "action_high.*None"),
        ({"action_low": 1.0, "action_high": 1.0}, "action_low"),
    ],
)
def test_a_distribution_that_cannot_be_is_refused(kwargs, name):
    with pytest.raises(ConfigError, match=name):
        GaussianActor(3, 2, **kwargs)
