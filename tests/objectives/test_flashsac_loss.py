"""FlashSACLoss as a TorchRL loss module."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from reference.actors import PlainActor
from reference.tiny import ACTION, CRITIC_OBS, OBS, tiny_actor, tiny_batch, tiny_critic, tiny_loss
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Unbounded

from unilab.errors import ConfigError
from unilab.modules import FlashSACActor, FlashSACCritic
from unilab.objectives import FlashSACLoss
from unilab.trainers import FlashSACLearner

LOSSES = ["loss_actor", "loss_qvalue", "loss_alpha"]


def test_sum_of_losses_gives_each_parameter_the_gradient_of_its_own_loss_only():
    together, apart = tiny_loss(torch.float64), tiny_loss(torch.float64)
    batch = tiny_batch(dtype=torch.float64)
    torch.manual_seed(0)
    out = together(batch)
    sum(out[key] for key in LOSSES).backward()
    torch.manual_seed(0)
    loss_actor, info = apart.actor_loss(batch)
    loss_alpha, _ = apart.alpha_loss(info["entropy"])
    loss_qvalue, _ = apart.qvalue_loss(batch)
    owners = {"actor": loss_actor, "critic": loss_qvalue, "log_alpha": loss_alpha}
    for owner, own_loss in owners.items():
        own = [p for n, p in apart.named_parameters() if n.split(".")[0] == owner]
        summed = [p.grad for n, p in together.named_parameters() if n.split(".")[0] == owner]
        for grad, want in zip(
            summed, torch.autograd.grad(own_loss, own, retain_graph=True), strict=True
        ):
            assert want.abs().max() > 0 or want.numel() == 0
            torch.testing.assert_close(grad, want)


def test_actor_network_is_the_policy_over_the_optimised_actor():
    loss = tiny_loss()
    loss.set_keys(obs="state", action="u")
    policy = loss.actor_network
    assert policy.actor is loss.actor
    assert (policy.in_keys, policy.out_keys) == (["state"], ["u"])


def test_out_keys_are_the_entries_of_the_output():
    loss = tiny_loss()
    out = loss(tiny_batch())
    assert set(out.keys()) == set(loss.out_keys)
    assert out.batch_size == torch.Size([])
    assert all(value.shape == () for value in out.values())
    grad = {key for key, value in out.items() if value.requires_grad}
    assert grad == set(LOSSES)


def test_set_keys_renames_every_entry():
    names = {
        "obs": ("agent", "state"),
        "critic_obs": "privileged",
        "action": "u",
        "reward": "r",
        "terminated": "fell",
        "steps_to_next_obs": "horizon",
    }
    batch = tiny_batch()
    batch["steps_to_next_obs"] = torch.full((8, 1), 2)
    renamed = TensorDict(
        {
            ("agent", "state"): batch["obs"],
            "privileged": batch["critic"],
            "u": batch["action"],
            "horizon": batch["steps_to_next_obs"],
            ("next", "agent", "state"): batch["next", "obs"],
            ("next", "privileged"): batch["next", "critic"],
            ("next", "r"): batch["next", "reward"],
            ("next", "fell"): batch["next", "terminated"],
        },
        batch.batch_size,
    )
    loss, other = tiny_loss(), tiny_loss()
    other.set_keys(**names)
    torch.manual_seed(0)
    want = loss(batch)
    torch.manual_seed(0)
    got = other(renamed)
    for key in loss.out_keys:
        torch.testing.assert_close(got[key], want[key], rtol=0, atol=0)


class Undispatched(FlashSACLoss):
    def forward(self, data: TensorDict) -> TensorDict:
        return super().forward(data)


@pytest.mark.parametrize("kind", [FlashSACLoss, Undispatched])
def test_keyword_arguments_give_the_same_losses_as_a_tensordict(kind):
    loss, batch = tiny_loss(), tiny_batch()
    other = kind(tiny_actor(), tiny_critic())
    other.load_state_dict(loss.state_dict())
    torch.manual_seed(0)
    want = loss(batch)
    torch.manual_seed(0)
    got = other(
        obs=batch["obs"],
        critic=batch["critic"],
        action=batch["action"],
        next_obs=batch["next", "obs"],
        next_critic=batch["next", "critic"],
        next_reward=batch["next", "reward"],
        next_terminated=batch["next", "terminated"],
    )
    for key, value in zip(loss.out_keys, got, strict=True):
        torch.testing.assert_close(value, want[key], rtol=0, atol=0)


def qvalue_loss(batch: TensorDict, gamma: float = 0.9) -> Tensor:
    torch.manual_seed(0)
    return tiny_loss(torch.float64, gamma=gamma).qvalue_loss(batch)[0]


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_discount_is_gamma_to_the_steps_that_multistep_wrote(shape):
    batch = tiny_batch(dtype=torch.float64)
    one_step = qvalue_loss(batch, gamma=0.9**3)
    batch["steps_to_next_obs"] = torch.full(shape, 3)
    torch.testing.assert_close(qvalue_loss(batch), one_step)
    batch["steps_to_next_obs"] = torch.ones(shape, dtype=torch.long)
    torch.testing.assert_close(qvalue_loss(batch), qvalue_loss(tiny_batch(dtype=torch.float64)))


def test_truncation_does_not_cut_the_bootstrap_and_termination_does():
    batch = tiny_batch(dtype=torch.float64)
    want = qvalue_loss(batch)
    batch["next", "truncated"] = ~batch["next", "truncated"]
    batch["next", "done"] = torch.ones_like(batch["next", "done"])
    torch.testing.assert_close(qvalue_loss(batch), want, rtol=0, atol=0)
    batch["next", "terminated"] = torch.ones_like(batch["next", "terminated"])
    assert (qvalue_loss(batch) - want).abs() > 1e-3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float64])
def test_flags_and_rewards_may_be_of_any_type(dtype):
    losses, signed = [], torch.int64 if dtype is torch.uint8 else dtype
    for as_numbers in (False, True):
        batch = tiny_batch()
        reward = batch["next", "reward"].round()
        batch["next", "reward"] = reward.to(signed) if as_numbers else reward
        if as_numbers:
            batch["next", "terminated"] = batch["next", "terminated"].to(dtype)
        torch.manual_seed(0)
        losses.append(tiny_loss(gamma=0.9).qvalue_loss(batch)[0])
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 0.0),
        ("gamma", 1.1),
        ("gamma", float("nan")),
        ("alpha_init", 0.0),
        ("alpha_init", float("inf")),
        ("target_entropy", float("nan")),
        ("target_entropy_sigma", float("inf")),
        ("bc_alpha", float("inf")),
        ("target_entropy_sigma", -0.1),
        ("min_alpha", 0.0),
        ("min_alpha", 0.02),
        ("max_alpha", 0.005),
        ("bc_alpha", -1.0),
        ("bc_alpha", float("nan")),
    ],
)
def test_a_setting_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        tiny_loss(**{name: value})


def test_actor_and_critic_of_other_action_widths_are_refused():
    actor = FlashSACActor(OBS, ACTION + 1, hidden_dim=4)
    with pytest.raises(ConfigError, match=r"action_dim.*3 and 2"):
        FlashSACLoss(actor, tiny_critic())


@pytest.mark.parametrize("spec", [Bounded(-1.0, 1.0, (ACTION + 1,)), Unbounded((ACTION,))])
def test_an_action_spec_without_the_range_of_each_action_is_refused(spec):
    with pytest.raises(ConfigError, match="action_spec"):
        FlashSACLoss(PlainActor(OBS, ACTION), tiny_critic(), action_spec=spec)


ASKED = 0.5 * ACTION * math.log(2 * math.pi * math.e * 0.15**2)
NARROW = Bounded(-0.4, 0.4, (5, ACTION))


@pytest.mark.parametrize(
    ("actor", "settings", "want"),
    [
        (tiny_actor(), {}, ASKED),
        (tiny_actor(action_low=[-1, 0], action_high=[3, 1]), {}, ASKED),
        (tiny_actor(action_low=-0.4, action_high=0.4), {}, ASKED + ACTION * math.log(0.4)),
        (tiny_actor(), {"action_spec": NARROW}, ASKED),
        (PlainActor(OBS, ACTION, low=-0.4, high=0.4), {}, ASKED),
        (PlainActor(OBS, ACTION), {"action_spec": NARROW}, ASKED + ACTION * math.log(0.4)),
        (PlainActor(OBS, ACTION), {"action_spec": NARROW, "target_entropy": -3.0}, -3.0),
    ],
)
def test_target_entropy_is_that_of_sigma_in_the_range_of_the_actor(actor, settings, want):
    loss = FlashSACLoss(actor, tiny_critic(), **settings)
    assert loss.target_entropy == pytest.approx(want)


def test_a_policy_of_standard_deviation_sigma_has_about_the_target_entropy():
    """Gymnasium's Humanoid: 17 actions of +-0.4; tanh takes 0.4 nats."""
    actor = FlashSACActor(OBS, 17, hidden_dim=4, action_low=-0.4, action_high=0.4)
    with torch.no_grad():
        for head in (actor.mean_head, actor.std_head):
            head.weight.zero_()
        actor.std_head.bias.fill_(math.atanh((math.log(0.15) + 10.0) / 6.0 - 1.0))
        _, info = actor(torch.zeros(20_000, OBS), training=False)
    assert -info["log_prob"].mean().item() == pytest.approx(-24.1, abs=0.1)
    target = FlashSACLoss(actor, FlashSACCritic(OBS, 17, hidden_dim=4)).target_entropy
    assert target == pytest.approx(-23.7, abs=0.05)


def test_temperature_does_not_depend_on_the_units_of_the_action():
    """Rows end here: the entropy bonus of a next action is a density in the units of the action."""
    alphas, regularised = [], []
    for half in (1.0, 0.4):
        actor = tiny_actor(action_low=-half, action_high=half)
        loss = FlashSACLoss(actor, tiny_critic(), bc_alpha=0.5, alpha_init=0.1).to(torch.float64)
        statistics = loss.critic.embedder.norm
        statistics.running_mean[..., CRITIC_OBS:] *= half
        statistics.running_var[..., CRITIC_OBS:] *= half**2
        learner = FlashSACLearner(loss, lr=3e-2)
        torch.manual_seed(0)
        for seed in range(10):
            batch = tiny_batch(dtype=torch.float64, seed=seed)
            batch["action"] *= half
            batch["next", "terminated"] = torch.ones(8, 1, dtype=torch.bool)
            alpha = loss.alpha
            metrics = learner.update(batch)
            regularised.append((metrics["loss_actor"] + alpha * metrics["entropy"]).item())
        alphas.append(loss.alpha.item())
    assert regularised[0] == pytest.approx(regularised[10], rel=1e-3)
    assert alphas[0] != pytest.approx(0.1, rel=0.05)
    assert alphas[0] == pytest.approx(alphas[1], rel=1e-3)


def test_an_actor_that_shares_parameters_with_the_critic_is_refused():
    actor, critic = tiny_actor(), tiny_critic()
    actor.trunk = critic.blocks[0]
    with pytest.raises(ConfigError, match=r"share.*blocks\.0\.linear1\.weight"):
        FlashSACLoss(actor, critic)


def test_an_actor_in_the_place_of_the_critic_is_refused():
    with pytest.raises(ConfigError, match=r"critic must be.*FlashSACActor"):
        FlashSACLoss(tiny_critic(), tiny_actor())


def test_make_value_estimator_is_refused():
    with pytest.raises(ConfigError, match="make_value_estimator"):
        tiny_loss().make_value_estimator(gamma=0.9)


@pytest.mark.parametrize(
    ("key", "what"), [("obs", "observation"), ("critic", "critic observation")]
)
@pytest.mark.parametrize("which", ["actor_loss", "qvalue_loss"])
def test_observations_of_another_width_are_named(key, what, which):
    batch = tiny_batch()
    for place in (key, ("next", key)):
        batch[place] = torch.zeros(8, 9)
    width = {"obs": OBS, "critic": CRITIC_OBS}[key]
    message = rf"^{what} must have shape \[B, {width}\].*9\]"
    with pytest.raises(ConfigError, match=message):
        getattr(tiny_loss(), which)(batch)


@pytest.mark.parametrize(
    ("key", "which", "what"),
    [
        ("obs", "actor_loss", r"'obs' and \('next', 'obs'\)"),
        (("next", "critic"), "qvalue_loss", r"'critic' and \('next', 'critic'\)"),
        ("action", "qvalue_loss", "actions of the batch and of the actor"),
    ],
)
def test_observations_and_next_ones_of_two_widths_are_named(key, which, what):
    batch = tiny_batch()
    batch[key] = torch.zeros(8, 9)
    with pytest.raises(ConfigError, match=rf"^{what} must have the same shape.*9\]"):
        getattr(tiny_loss(), which)(batch)


@pytest.mark.parametrize("key", ["obs", "critic", "action", ("next", "obs"), ("next", "critic")])
def test_inputs_of_another_dtype_are_named(key):
    batch = tiny_batch()
    batch[key] = batch[key].double()
    with pytest.raises(ConfigError, match=r"^(critic )?(obs|act).* must be torch.float32"):
        tiny_loss()(batch)


def test_td_error_is_the_larger_distance_of_the_critics_from_the_target():
    loss, batch = tiny_loss(torch.float64), tiny_batch(dtype=torch.float64)
    loss.set_keys(priority=("meta", "priority"))
    batch["next", "terminated"] = torch.ones(8, 1, dtype=torch.bool)  # the target is the reward
    twin = copy.deepcopy(loss)
    torch.manual_seed(0)
    loss(batch)
    torch.manual_seed(0)
    twin.actor_loss(batch)
    obs, action, *_ = twin.critic_inputs(batch)
    q = twin.critic.value(twin.critic(obs, action, training=True))[:, :8]
    want = (q - batch["next", "reward"].squeeze(-1).clamp(-5, 5)).abs().amax(0)
    torch.testing.assert_close(batch["meta", "priority"], want)


def test_priority_weights_weigh_the_rows():
    def losses(weight: Tensor | None) -> Tensor:
        loss, batch = tiny_loss(torch.float64, bc_alpha=0.5), tiny_batch(dtype=torch.float64)
        if weight is not None:
            batch["priority_weight"] = weight
        torch.manual_seed(0)
        out = loss(batch)
        return torch.stack([out[key] for key in LOSSES])

    one_hot = torch.eye(8)
    rows = torch.stack([losses(row) for row in one_hot])
    torch.testing.assert_close(rows.mean(0), losses(None))
    weight = torch.arange(8.0) + 1
    torch.testing.assert_close((weight[:, None] * rows).sum(0) / weight.sum(), losses(weight))
    assert rows.std(0).min() > 0


def test_a_batch_with_time_is_refused():
    with pytest.raises(ConfigError, match=r"\[16, 2, 3\].*reshape"):
        tiny_loss()(tiny_batch(16).reshape(8, 2))


@pytest.mark.parametrize("key", ["obs", "action", ("next", "critic"), ("next", "terminated")])
def test_a_batch_without_an_entry_is_refused(key):
    with pytest.raises(ConfigError, match=r"set_keys"):
        tiny_loss()(tiny_batch().exclude(key))
