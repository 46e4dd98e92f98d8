"""ADR-0017 C16 and C17 for any action range, and the test helper for custom actors."""

from __future__ import annotations

import math
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.actors import PlainActor
from torch import Tensor
from torchrl.data import Bounded, Composite, Unbounded

from unilab.errors import ActorContractError, ConfigError
from unilab.modules import FlashSACActor, action_range, assert_log_prob_consistent, validate_actor

OBS, ACTION = 3, 2


def squash(low: Tensor, high: Tensor):
    def transform(u: Tensor) -> Tensor:
        return low + 0.5 * (high - low) * (torch.tanh(u) + 1.0)

    return transform


bounds = st.lists(
    st.tuples(st.floats(-50.0, 50.0), st.floats(0.01, 100.0)), min_size=ACTION, max_size=ACTION
)


@settings(max_examples=15, deadline=None)
@given(bounds=bounds, seed=st.integers(0, 1000))
def test_c16_c17_the_built_in_actor_obeys_the_change_of_variables_in_any_range(bounds, seed):
    torch.manual_seed(seed)
    low = torch.tensor([b for b, _ in bounds])
    high = torch.tensor([b + width for b, width in bounds])
    actor = FlashSACActor(OBS, ACTION, 4, 1, action_low=low, action_high=high)
    with torch.no_grad():
        actor.std_head.bias.uniform_(-0.5, 0.2)
        actor.mean_head.bias.uniform_(-0.5, 0.5)
    # The ends as a user writes them; the actor holds their middle and half width in float32.
    assert_log_prob_consistent(actor, squash(low.double(), high.double()), rows=32)


def test_c16_c17_ends_that_float32_cannot_hold_are_consistent():
    torch.manual_seed(0)
    ends = [-1.05, -2.72, -1.57], [1.05, -0.84, 3.49]
    actor = FlashSACActor(7, 3, action_low=ends[0], action_high=ends[1])
    assert_log_prob_consistent(actor, squash(*torch.tensor(ends, dtype=torch.float64)))


@pytest.mark.parametrize("range_", [(-1.0, 1.0), (0.0, 3.0)])
def test_c16_c17_a_custom_actor_obeys_the_change_of_variables(range_):
    low, high = map(torch.tensor, range_)
    actor = PlainActor(OBS, ACTION, low=range_[0], high=range_[1])
    assert_log_prob_consistent(actor, squash(low, high), obs=torch.randn(64, OBS))


class Wrong(PlainActor):
    """Breaks one thing."""

    def __init__(self, what: str) -> None:
        super().__init__(OBS, ACTION, low=-2.0, high=2.0)
        self.what = what
        self.obs_dim = OBS

    def forward(self, obs: Tensor, training: bool):
        action, info = super().forward(obs, training)
        if self.what == "range":
            info["log_prob"] = info["log_prob"] + ACTION * self.scale.log().mean()
        if self.what == "clipped":
            action = action.clamp(-0.01, 0.01)
        if self.what == "joints":
            info["log_prob"] = info["log_prob"] / ACTION
        if self.what == "jacobian":
            normal = torch.distributions.Normal(*self.get_mean_and_std(obs))
            u = torch.atanh(action / 2.0)
            info["log_prob"] = normal.log_prob(u).sum(-1) - self.scale.log().sum()
        if self.what == "sign":
            slope = torch.log(1.0 - (action / 2.0).square()).sum(-1, keepdim=True)
            info["log_prob"] = info["log_prob"] + 2.0 * slope
        if self.what == "some rows":
            info["log_prob"] = info["log_prob"] + torch.where(obs[:, :1] > 0.8, 1.0, 0.0)
        if self.what == "dropout" and training:
            info["log_prob"] = torch.dropout(info["log_prob"], 0.5, train=True)
        if self.what == "elsewhere":
            action = action + 10.0
        return action, info

    def explore(self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False):
        action = super().explore(obs, dones, deterministic)
        return action.clamp(-0.1, 0.1) if self.what == "explore" else action

    def as_export_module(self):
        export = super().as_export_module()
        if self.what == "export":
            export.forward = lambda obs: self.mean(obs)
        return export


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("range", "log_prob is up to 1.39 nats off"),
        ("clipped", "nats off"),
        ("elsewhere", "only 0%"),
        ("explore", r"explore\(obs, deterministic=True\)"),
        ("export", r"as_export_module\(\)\(obs\)"),
    ],
)
def test_an_inconsistency_is_named(what, message):
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=message):
        assert_log_prob_consistent(Wrong(what), lambda u: 2.0 * torch.tanh(u))


@pytest.mark.parametrize("what", ["range", "joints", "jacobian", "sign", "some rows"])
def test_c16_a_wrong_log_prob_is_refused_at_construction(what):
    with pytest.raises(ActorContractError, match=r"Wrong.*C16 log_prob"):
        validate_actor(Wrong(what), obs_dim=OBS, action_dim=ACTION)


class Mixture(Wrong):
    """Not a function of normal numbers alone: which of two normals is drawn too."""

    def forward(self, obs: Tensor, training: bool):
        mean, std = self.get_mean_and_std(obs)
        sides = torch.stack((mean, -mean))
        u = torch.where(torch.rand_like(mean[:, :1]) < 0.5, *sides) + std * torch.randn_like(mean)
        sum_ = torch.distributions.Normal(sides, std).log_prob(u).sum(-1).logsumexp(0)
        return u, {"log_prob": sum_ - math.log(2.0)}

    def explore(self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False):
        return self.mean(obs)

    def as_export_module(self):
        return self.mean


def saturated() -> PlainActor:
    actor = Wrong("")
    with torch.no_grad():
        actor.mean.bias[0] = 8.0
    return actor


@pytest.mark.parametrize("width", [1, 45, 232])
@pytest.mark.parametrize("seed", [0, 1])
def test_c16_the_built_in_actor_is_checked_at_any_width(width, seed):
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validate_actor(FlashSACActor(width, 12), obs_dim=width, action_dim=12)


@pytest.mark.parametrize(
    ("make", "passes"),
    [
        (lambda: Mixture(""), "training=True and training=False"),
        (lambda: Wrong("dropout"), "training=True, "),
        (saturated, "training=True and training=False"),  # float32 does not have the slope of tanh
    ],
)
def test_c16_a_log_prob_that_cannot_be_checked_is_said(make, passes):
    torch.manual_seed(0)
    with pytest.warns(RuntimeWarning, match=f"is not checked with {passes}"):
        validate_actor(make(), obs_dim=OBS, action_dim=ACTION)


def test_the_helper_names_an_actor_that_breaks_the_contract():
    actor = Wrong("")
    actor.lock = threading.Lock()
    with pytest.raises(ActorContractError, match=r"Wrong must be copyable.*lock"):
        assert_log_prob_consistent(actor, torch.tanh)


def test_c16_a_transform_may_mix_joints():
    class Mixed(PlainActor):
        def _transform(self, u: Tensor) -> Tensor:
            return torch.stack((u[..., 0] + u[..., 1] ** 3, 2.0 * u[..., 1]), -1)

        def forward(self, obs: Tensor, training: bool):
            mean, log_std = self._heads(obs)
            u = mean + log_std.exp() * torch.randn_like(mean)
            normal = torch.distributions.Normal(mean, log_std.exp())
            return self._transform(u), {"log_prob": normal.log_prob(u).sum(-1) - math.log(2.0)}

    actor = Mixed(OBS, ACTION)

    def transform(u: Tensor) -> Tensor:
        return actor._transform(u)

    assert_log_prob_consistent(actor, transform, obs=torch.randn(64, OBS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validate_actor(actor, obs_dim=OBS, action_dim=ACTION)


def test_an_actor_of_unknown_width_needs_obs():
    with pytest.raises(AssertionError, match="PlainActor has no obs_dim: pass obs"):
        assert_log_prob_consistent(PlainActor(OBS, ACTION), torch.tanh)


def test_action_range_has_one_number_for_each_joint():
    spec = Bounded(torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 4.0]))
    expected = {"action_low": [-1.0, 0.5], "action_high": [1.0, 4.0]}
    assert action_range(spec) == expected
    assert action_range(spec.expand(7, 2)) == expected
    assert action_range(Bounded(-2.0, 2.0, (5, 3)))["action_high"] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "spec",
    [
        Unbounded((2, 1)),
        Bounded(torch.tensor([[-1.0], [-2.0]]), torch.tensor([[1.0], [1.0]])),
        Bounded(torch.tensor([[-1.0], [-1.0]]), torch.tensor([[1.0], [2.0]])),
        Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.0])),  # a locked joint
        Bounded(torch.tensor([1.0]), torch.tensor([-1.0])),
        Bounded(torch.tensor([math.nan]), torch.tensor([1.0])),
        Composite(action=Bounded(-1.0, 1.0, (3,))),
    ],
)
def test_action_range_refuses_anything_but_the_same_finite_interval_everywhere(spec):
    with pytest.raises(ConfigError, match="action_spec") as error:
        action_range(spec)
    assert "\n" not in str(error.value)
