"""PPOLearner: advantages, divergence and learning rate, normalisers, state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from reference.accelerator import DEVICE
from tensordict import TensorDict
from torch.distributions import Independent, Normal, kl_divergence
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from unilab.data import minibatches
from unilab.errors import ActorContractError, CheckpointError, ConfigError, NonFiniteError
from unilab.modules import GaussianActor, GaussianPolicy, ValueNetwork
from unilab.trainers import PPOLearner
from unilab.trainers.ppo_learner import MAX_LR, MIN_LR, adapted_lr, divergence

OBS, CRITIC_OBS, ACTION = 3, 5, 2
GAMMA, LAMBDA = 0.9, 0.8


def learner(
    *, functional: bool = False, device: torch.device | str = "cpu", **kwargs: Any
) -> PPOLearner:
    torch.manual_seed(0)
    actor = GaussianActor(OBS, ACTION, [8], init_std=0.5)
    torch.nn.init.orthogonal_(actor.mean_head.weight)
    actor.to(device)
    value = ValueOperator(ValueNetwork(CRITIC_OBS, [8]).to(device), in_keys=["critic"])
    loss = ClipPPOLoss(GaussianPolicy(actor), value, clip_value=True, functional=functional)
    gae = GAE(
        gamma=GAMMA,
        lmbda=LAMBDA,
        value_network=value,
        average_gae=True,
        vectorized=False,
        deactivate_vmap=True,
        device=device,
    )
    return PPOLearner(loss, gae, **kwargs)


def collected(made: PPOLearner, *, envs: int = 6, steps: int = 8, seed: int = 0) -> TensorDict:
    """A rollout under the learner's policy, with every kind of episode end."""
    torch.manual_seed(seed)
    device = made.advantages.gamma.device
    data = TensorDict({"obs": torch.randn(envs, steps, OBS)}, [envs, steps], device=device)
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        made.loss.actor_network(data)
    terminated, truncated = (torch.rand(envs, steps, 1) < share for share in (0.15, 0.15))
    terminated[0, 2], truncated[0, 2] = True, True
    terminated[1, 3], truncated[1, 3] = False, True
    data["critic"] = torch.randn(envs, steps, CRITIC_OBS)
    data["next"] = TensorDict(
        {
            "obs": torch.randn(envs, steps, OBS),  # at an end, not the next row's
            "critic": torch.randn(envs, steps, CRITIC_OBS),
            "reward": torch.randn(envs, steps, 1),
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
        },
        [envs, steps],
    )
    return data


def test_advantages_are_those_of_a_loop_over_each_episode():
    """A time limit bootstraps from the observation before the reset; a fall does not."""
    made = learner()
    data = collected(made)
    rollout = made.add_advantages(data)
    with torch.no_grad():
        value, after = made.critic(data["critic"]), made.critic(data["next", "critic"])
    value, after, reward, terminated, done = (
        t.squeeze(-1).double().numpy()
        for t in (value, after, *map(data["next"].get, ("reward", "terminated", "done")))
    )
    advantage = np.zeros_like(value)
    for env in range(len(value)):
        later = 0.0
        for t in reversed(range(value.shape[1])):
            error = reward[env, t] - value[env, t]
            if not terminated[env, t]:
                error += GAMMA * after[env, t]
            later = error + (0.0 if done[env, t] else GAMMA * LAMBDA * later)
            advantage[env, t] = later
    target = (advantage + value).reshape(-1, 1)
    np.testing.assert_allclose(rollout["value_target"], target, rtol=1e-5, atol=1e-6)
    normal = (advantage - advantage.mean()) / advantage.std(ddof=1)
    np.testing.assert_allclose(rollout["advantage"], normal.reshape(-1, 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rollout["state_value"], value.reshape(-1, 1), rtol=1e-6)
    assert "advantage" not in data  # the collector's memory is as it was


def test_c15_a_loss_that_is_not_finite_is_named_before_a_parameter_moves():
    made = learner()
    rollout = made.add_advantages(collected(made))
    rollout["advantage"][0] = torch.nan
    before = copy.deepcopy(made.state_dict()["loss"])
    with pytest.raises(NonFiniteError, match="loss_objective is nan in update 0"):
        made.update(rollout)
    assert all(torch.equal(v, before[k]) for k, v in made.state_dict()["loss"].items())


def test_c09_a_parameter_that_is_replaced_in_training_is_refused():
    made = learner()
    made.critic.head = torch.nn.Linear(8, 1)
    with pytest.raises(ActorContractError, match=r"critic.*C9.*update 0 head\.weight"):
        made.update(made.add_advantages(collected(made)))


def test_the_divergence_is_that_of_the_two_gaussians():
    made = learner()
    rollout = made.add_advantages(collected(made, envs=4000))
    assert divergence(made.loss(rollout)).item() == pytest.approx(0.0, abs=1e-6)
    old = Independent(Normal(*map(torch.clone, moments(made, rollout))), 1)
    with torch.no_grad():
        made.actor.mean_head.bias += 0.05
        made.actor.log_std += 0.1
        exact = kl_divergence(old, Independent(Normal(*moments(made, rollout)), 1)).mean()
    assert 0.01 < exact < 0.05
    assert divergence(made.loss(rollout)).item() == pytest.approx(exact.item(), rel=0.05)


def moments(made: PPOLearner, rollout: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        return made.actor.get_mean_and_std(rollout["obs"])


@pytest.mark.parametrize(
    ("lr", "kl", "adapted"),
    [
        (1e-3, 0.021, 1e-3 / 1.5),
        (1e-3, 0.019, 1e-3),
        (1e-3, 0.006, 1e-3),
        (1e-3, 0.004, 1.5e-3),
        (1e-3, 1e-8, 1e-3),
        (1.2 * MIN_LR, 1.0, MIN_LR),
        (MAX_LR / 1.2, 0.001, MAX_LR),
        (1e-3, float("nan"), 1e-3),
    ],
)
def test_the_learning_rate_follows_the_divergence(lr, kl, adapted):
    assert adapted_lr(lr, kl, 0.01) == pytest.approx(adapted)


@pytest.mark.parametrize("desired_kl", [0.01, None])
def test_an_update_adapts_the_rate_and_clips_each_networks_gradient(desired_kl):
    made = learner(lr=3e-3, desired_kl=desired_kl, max_grad_norm=0.01)
    rollout = made.add_advantages(collected(made))
    metrics = [made.update(rollout).to_dict() for _ in range(12)]
    rates = [m["learning_rate"].item() for m in metrics]
    assert rates[0] == pytest.approx(3e-3)  # the policy had not moved
    assert (len(set(rates)) > 1) == (desired_kl is not None)
    assert metrics[0]["kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert metrics[-1]["kl"] > 1e-4
    for network in (made.actor, made.critic):
        norm = torch.stack([p.grad.norm() for p in network.parameters()]).norm()
        assert norm == pytest.approx(0.01, rel=1e-3)
    assert all(v.ndim == 0 and not v.requires_grad for v in metrics[0].values())
    assert made.update_count == 12


def test_synchronised_gradients_are_what_is_stepped_and_what_the_rate_follows():
    """All processes must take the same step, of the mean gradient at the mean divergence."""

    def average(parameters: list[torch.nn.Parameter], _: Any) -> None:
        weights = [*made.actor.parameters(), *made.critic.parameters()]
        assert [*map(id, parameters[:-1])] == [*map(id, weights)]
        for p in parameters:
            p.grad = torch.zeros_like(p.grad) if p is not parameters[-1] else 0.05 * p.grad

    made = learner(sync_gradients=average)
    rollout = made.add_advantages(collected(made))
    with torch.no_grad():
        made.actor.log_std += 0.2
    assert 0.02 < divergence(made.loss(rollout)) < 0.1  # alone it would slow down
    before = copy.deepcopy(made.state_dict()["loss"])
    made.update(rollout)
    assert made.lr == pytest.approx(1.5e-3)
    after = made.state_dict()["loss"]
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_normalisers_move_only_when_told_and_each_with_its_own_group():
    made = learner()
    rollout = made.add_advantages(collected(made))
    made.update(rollout)
    assert made.actor.normalizer.count == made.critic.normalizer.count == 0
    made.update_normalizers(rollout)
    for network, key in ((made.actor, "obs"), (made.critic, "critic")):
        mean = rollout[key].mean(0)
        torch.testing.assert_close(network.normalizer.running_mean, mean)
    again = made.add_advantages(collected(made))
    assert divergence(made.loss(again)).item() == pytest.approx(0.0, abs=1e-6)


def test_a_mirror_image_has_the_advantages_of_its_rollout_and_ratios_of_1():
    made = learner()
    mirror = {
        "obs": (torch.tensor([0, 2, 1]), torch.tensor([1.0, -1.0, -1.0])),
        "critic": (torch.tensor([0, 1, 2, 4, 3]), torch.ones(CRITIC_OBS)),
        "action": (torch.tensor([1, 0]), torch.tensor([-1.0, -1.0])),
    }
    rollout = made.add_advantages(collected(made))
    both = made.add_mirror_image(rollout, mirror)
    own, image = both.split(len(rollout))
    assert all(torch.equal(own[key], rollout[key]) for key in rollout.keys())  # noqa: SIM118
    torch.testing.assert_close(image["action"], -rollout["action"].flip(1))
    torch.testing.assert_close(image["critic"][:, 3], rollout["critic"][:, 4])
    for key in ("advantage", "value_target", "state_value"):
        assert torch.equal(image[key], rollout[key])
    assert not torch.allclose(image["action_log_prob"], rollout["action_log_prob"])
    out = made.loss(both)
    assert (divergence(out).item(), out["max_ratio"].item()) == pytest.approx((0.0, 1.0), abs=1e-5)


def train(made: PPOLearner, rollouts: range) -> None:
    for seed in rollouts:
        rollout = made.add_advantages(collected(made, seed=seed))
        for batch in minibatches(rollout, 2, 2):
            made.update(batch)
        made.update_normalizers(rollout)


def test_a_restored_learner_continues_bit_for_bit():
    straight = learner()
    train(straight, range(2))
    restored = learner()
    restored.load_state_dict(copy.deepcopy(straight.state_dict()))
    assert restored.lr == straight.lr != 1e-3
    for made in (straight, restored):
        train(made, range(2, 4))
    one, two = straight.state_dict(), restored.state_dict()
    assert all(torch.equal(one["loss"][key], two["loss"][key]) for key in one["loss"])
    assert (one["lr"], one["update_count"]) == (two["lr"], two["update_count"]) == (one["lr"], 16)


def test_training_on_an_accelerator_gives_the_cpus_results_bit_for_bit(accelerator):
    here, there = learner(), learner(device=DEVICE)
    for made in (here, there):
        train(made, range(2))
    one, two = here.state_dict(), there.state_dict()
    assert all(torch.equal(one["loss"][key], two["loss"][key].cpu()) for key in one["loss"])
    assert one["lr"] == two["lr"]
    again = learner()
    again.load_state_dict(torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, two))
    rollout = there.add_advantages(collected(there))
    accelerator.clear()
    metrics = there.update(rollout)
    assert {value.device for value in metrics.values()} == {DEVICE}
    # For the divergence; and in TorchRL's loss for the entropy and two coefficients.
    assert len(accelerator.waits) <= 4
    assert accelerator.up == []


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda s: s["loss"].update({"critic.normalizer.count": torch.tensor(-1)}), "count"),
        (lambda s: s["loss"]["actor.log_std"].fill_(float("nan")), r"actor\.log_std"),
        (lambda s: s["loss"].pop("actor.log_std"), r"actor\.log_std"),
        (lambda s: s.update(lr=-1.0), "lr -1"),
        (lambda s: s.update(lr=float("inf")), "lr inf"),
        (lambda s: s.update(lr=1e6), "lr 1000000"),
        (lambda s: s.update(update_count=5), "optimizer"),
        (lambda s: s["actor_semantics"]["kwargs"].update(hidden_dims=[9]), "hidden_dims"),
    ],
)
def test_an_invalid_state_is_refused_whole(spoil: Callable[[dict], Any], name: str):
    trained, fresh = learner(), learner()
    train(trained, range(1))
    state, before = copy.deepcopy(trained.state_dict()), copy.deepcopy(fresh.state_dict())
    spoil(state)
    with pytest.raises(CheckpointError, match=name):
        fresh.load_state_dict(state)
    after = fresh.state_dict()
    assert all(torch.equal(before["loss"][key], after["loss"][key]) for key in before["loss"])


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"lr": 0.0}, "lr"),
        ({"lr": 0.1}, "lr"),
        ({"lr": float("inf"), "desired_kl": None}, "lr"),
        ({"desired_kl": -1.0}, "desired_kl"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"functional": True}, "functional"),
    ],
)
def test_a_setting_that_cannot_train_is_refused(kwargs, name):
    with pytest.raises(ConfigError, match=name):
        learner(**kwargs)


def test_every_row_is_in_one_minibatch_of_each_epoch():
    rollout = TensorDict({"row": torch.arange(14)}, [14])
    parts = [batch["row"] for batch in minibatches(rollout, 4, 3)]
    assert [len(part) for part in parts] == [4, 4, 3, 3] * 3
    epochs = [torch.cat(parts[i : i + 4]) for i in (0, 4, 8)]
    assert all(torch.equal(epoch.sort().values, rollout["row"]) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
