"""Updates of SAC against a rendering in float64 NumPy; normalisers, saved states, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from reference import flashsac as ref
from reference.actors import PlainActor
from reference.flashsac import Adam, Arrays
from reference.tiny import ACTION, CRITIC_OBS, OBS, arrays, batch_arrays, scramble, tiny_batch
from tensordict import TensorDict
from torchrl.modules import ValueOperator
from torchrl.objectives import SACLoss

from unilab.errors import ActorContractError, CheckpointError, ConfigError, NonFiniteError
from unilab.modules import FlashSACPolicy, GaussianActor, ValueNetwork
from unilab.trainers import SACLearner

ROWS, GAMMA, TAU, LR, ALPHA, TARGET = 8, 0.9, 0.1, 1e-2, 0.3, -1.5
RANGE = {"action_low": [-1.0, 0.5], "action_high": [1.0, 4.0]}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_loss(
    actor: Any = None, key: str = "critic", normalize_obs: bool = True, **kwargs: Any
) -> SACLoss:
    settings = {"layer_norm": True, "normalize_obs": normalize_obs}
    if actor is None:
        made = GaussianActor(OBS, ACTION, [5, 4], "silu", init_std=None, **RANGE, **settings)
        actor = scramble(made, seed=1)
    width = {"obs": OBS, "critic": CRITIC_OBS}[key]
    critics = [
        scramble(ValueNetwork(width, [6, 4], "silu", action_dim=ACTION, **settings), seed=seed)
        for seed in (2, 3)
    ]
    loss = SACLoss(
        FlashSACPolicy(actor),
        [ValueOperator(critic, in_keys=[key, "action"]) for critic in critics],
        loss_function="l2",
        alpha_init=ALPHA,
        target_entropy=TARGET,
        **kwargs,
    )
    loss.make_value_estimator(gamma=GAMMA)
    return loss


def make_learner(loss: SACLoss | None = None, **kwargs: Any) -> SACLearner:
    return SACLearner(loss or make_loss(), **{"lr": LR, "tau": TAU, **kwargs})


def mlp(p: Arrays, obs: np.ndarray, *more: np.ndarray) -> np.ndarray:
    """The hidden layers: linear, layer norm, SiLU."""
    scale = np.sqrt(p["normalizer.running_var"] + 1e-4)
    x = np.concatenate([(obs - p["normalizer.running_mean"]) / scale, *more], -1)
    for layer in ("hidden.0", "hidden.3"):
        norm = f"hidden.{int(layer[-1]) + 1}"
        x = x @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        x = x * p[f"{norm}.weight"] + p[f"{norm}.bias"]
        x = x / (1 + np.exp(-x))
    return x


def act(p: Arrays, obs: np.ndarray, eps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    h = mlp(p, obs)
    mean = h @ p["mean_head.weight"].T + p["mean_head.bias"]
    raw = h @ p["std_head.weight"].T + p["std_head.bias"]
    log_std = -10 + 6 * (1 + np.tanh(raw))
    u = mean + np.exp(log_std) * eps
    normal = -0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi)
    low, high = (np.array(end) for end in RANGE.values())
    half = (high - low) / 2
    log_prob = (normal - ref.log_tanh_derivative(u) - np.log(half)).sum(-1)
    return low + half * (np.tanh(u) + 1), log_prob


def value(p: Arrays, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    return (mlp(p, obs, action) @ p["head.weight"].T + p["head.bias"])[:, 0]


def lower(values: list[np.ndarray]) -> np.ndarray:
    return np.where(np.real(values[0]) <= np.real(values[1]), *values)


class Reference:
    """SAC as the paper has it: critics, actor, temperature, target critics."""

    def __init__(self, learner: SACLearner) -> None:
        self.actor = arrays(learner.actor)
        self.critics, self.targets = members(learner, ""), members(learner, "target_")
        self.log_alpha = np.log(ALPHA)
        self.adams = [Adam(), Adam(), Adam(), Adam()]
        self.metrics: dict[str, float] = {}

    def step(self, k: int, loss: Callable[[Arrays], Any], p: Arrays) -> Arrays:
        names = [n for n in p if n.endswith(("weight", "bias"))]
        return self.adams[k].step(p, ref.gradient(loss, p, names), LR)

    def update(self, b: Arrays, eps_next: np.ndarray, eps: np.ndarray | None) -> None:
        alpha = np.exp(self.log_alpha)
        action, log_prob = act(self.actor, b["next_obs"], eps_next)
        q_next = lower([value(p, b["next_critic"], action) for p in self.targets])
        discount = GAMMA ** b.get("steps", 1.0) * ~b["terminated"]
        target = b["reward"] + discount * (q_next - alpha * log_prob)

        def critic_loss(p: Arrays) -> Any:
            return ((value(p, b["critic"], b["action"]) - target) ** 2).mean()

        self.metrics["loss_qvalue"] = sum(critic_loss(p) for p in self.critics)
        self.critics = [self.step(k, critic_loss, p) for k, p in enumerate(self.critics)]
        if eps is not None:
            self.update_actor(b, eps, alpha)
        self.targets = [
            {n: t[n] + TAU * (p[n] - t[n]) if n.endswith(("weight", "bias")) else t[n] for n in t}
            for t, p in zip(self.targets, self.critics, strict=True)
        ]

    def update_actor(self, b: Arrays, eps: np.ndarray, alpha: float) -> None:
        def q_mean_and_entropy(p: Arrays) -> tuple[Any, Any]:
            action, log_prob = act(p, b["obs"], eps)
            q = lower([value(critic, b["critic"], action) for critic in self.critics])
            return q.mean(), -log_prob.mean()

        def actor_loss(p: Arrays) -> Any:
            q_mean, entropy = q_mean_and_entropy(p)
            return -alpha * entropy - q_mean

        q_mean, entropy = q_mean_and_entropy(self.actor)
        loss = actor_loss(self.actor)
        self.metrics |= {"loss_actor": loss, "entropy": entropy, "q_mean": q_mean}
        self.actor = self.step(2, actor_loss, self.actor)
        gradient = {"log_alpha": np.array(entropy - TARGET)}
        temperature = {"log_alpha": np.array(self.log_alpha)}
        self.log_alpha = float(self.adams[3].step(temperature, gradient, LR)["log_alpha"])


def members(learner: SACLearner, prefix: str) -> list[Arrays]:
    name = f"{prefix}critics.module."
    state = {k: v for k, v in learner.state_dict()["loss"].items() if k.startswith(name)}
    return [{k.removeprefix(name): v[m].numpy().copy() for k, v in state.items()} for m in (0, 1)]


@pytest.mark.parametrize("n_step", [False, True])
@pytest.mark.parametrize("period", [1, 2])
def test_updates_match_the_reference(period, n_step):
    """With a terminated, a truncated and a terminated-and-truncated row; see tiny_batch."""
    learner = make_learner(actor_update_period=period)
    learner.update_normalizers(tiny_batch(ROWS, dtype=torch.float64, seed=9))
    reference = Reference(learner)
    for update in range(4):
        batch = tiny_batch(ROWS, dtype=torch.float64, seed=update)
        if n_step:
            batch["steps_to_next_obs"] = (torch.arange(ROWS) % 3 + 1).unsqueeze(-1)
        torch.manual_seed(update)
        metrics = learner.update(batch)
        torch.manual_seed(update)
        eps_next = torch.randn(ROWS, ACTION).numpy()
        eps = torch.randn(ROWS, ACTION).numpy() if update % period == 0 else None
        reference.update(batch_arrays(batch), eps_next, eps)
        for name, want in reference.metrics.items():
            assert metrics[name].item() == pytest.approx(want, rel=1e-8), (update, name)
        assert metrics["alpha"].item() == pytest.approx(np.exp(reference.log_alpha), rel=1e-10)
        assert_close([arrays(learner.actor)], [reference.actor])
        assert_close(members(learner, ""), reference.critics)
        assert_close(members(learner, "target_"), reference.targets)


def assert_close(got: list[Arrays], want: list[Arrays]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        for name in mine:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-6, atol=1e-8, err_msg=name)


def test_collected_observations_move_the_statistics_of_every_network():
    learner = make_learner()
    data = [tiny_batch(5, dtype=torch.float64, seed=seed) for seed in (0, 1)]
    for batch in data:
        learner.update_normalizers(batch)
    rows = torch.cat(data)
    critics = [*members(learner, ""), *members(learner, "target_")]
    for p, key in [(arrays(learner.actor), "obs"), *((p, "critic") for p in critics)]:
        assert p["normalizer.count"] == 10
        # The networks began with other statistics, of no rows.
        np.testing.assert_allclose(p["normalizer.running_mean"], rows[key].mean(0), rtol=1e-6)
        np.testing.assert_allclose(
            p["normalizer.running_var"], rows[key].var(0, correction=0), rtol=1e-6
        )


def test_networks_without_normalisers_learn_from_what_the_actor_sees():
    learner = make_learner(make_loss(key="obs", normalize_obs=False))
    batch = tiny_batch(ROWS, dtype=torch.float64, critic=False)
    before = learner.state_dict()["loss"]["actor.mean_head.weight"].clone()
    learner.update_normalizers(batch)
    learner.update(batch)
    assert batch["td_error"].shape == (ROWS,)
    assert not torch.equal(learner.actor.mean_head.weight, before)


def test_gradients_are_synchronised_before_each_step():
    seen: list[int] = []

    def double(parameters: list[torch.nn.Parameter], _: Any) -> None:
        seen.append(len(parameters))
        for parameter in parameters:
            parameter.grad.zero_()

    learner = make_learner(sync_gradients=double)
    before = {k: v.clone() for k, v in learner.state_dict()["loss"].items()}
    learner.update(tiny_batch(ROWS, dtype=torch.float64))
    assert seen == [10, len(list(learner.actor.parameters())) + 1]
    after = learner.state_dict()["loss"]
    assert all(torch.allclose(after[name], before[name]) for name in before)


def trained(**kwargs: Any) -> SACLearner:
    learner = make_learner(actor_update_period=2, **kwargs)
    learner.update_normalizers(tiny_batch(dtype=torch.float64))
    for seed in range(3):
        learner.update(tiny_batch(dtype=torch.float64, seed=seed))
    return learner


def test_a_learner_that_loads_a_state_continues_bit_for_bit():
    straight, resumed = trained(), make_learner(make_loss(), actor_update_period=2)
    resumed.load_state_dict(straight.state_dict())
    for learner in (straight, resumed):
        torch.manual_seed(0)
        learner.update_normalizers(tiny_batch(dtype=torch.float64, seed=5))
        learner.update(tiny_batch(dtype=torch.float64, seed=6))
    one, other = (TensorDict(learner.state_dict()["loss"]) for learner in (straight, resumed))
    assert (one == other).all()
    assert straight.update_count == resumed.update_count == 4


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda s: s.update(actor_semantics=None), "actor_semantics"),
        (lambda s: s["loss"].pop("temperature.log_alpha"), "log_alpha"),
        (lambda s: s["loss"]["critics.module.head.bias"].fill_(torch.nan), r"head\.bias"),
        (lambda s: s["loss"]["critic_normalizer.count"].fill_(-1), r"normalizer\.count"),
        (lambda s: s["loss"]["actor.action_scale"].mul_(2.0), "action_scale"),
        (lambda s: s["optimizers"].pop("critics"), "critics"),
        (lambda s: s["optimizers"]["actor"].clear(), "actor"),
        (lambda s: s.update(actor_steps=4), "actor_steps 4"),
        (lambda s: s.update(update_count=9), "critics"),
        (lambda s: s.update(actor_metrics={}), "actor_metrics"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, name):
    state, learner = trained().state_dict(), make_learner(make_loss())
    change(state)
    before = {k: v.clone() for k, v in learner.state_dict()["loss"].items()}
    with pytest.raises(CheckpointError, match=name):
        learner.load_state_dict(state)
    assert all(torch.equal(v, before[k]) for k, v in learner.state_dict()["loss"].items())


def moved() -> SACLoss:
    return make_loss().float()


@pytest.mark.parametrize(
    ("loss", "kwargs", "name"),
    [
        (make_loss, {"lr": 0.0}, "lr"),
        (make_loss, {"tau": 0.0}, "tau"),
        (make_loss, {"actor_update_period": 0}, "actor_update_period"),
        (lambda: make_loss(fixed_alpha=True), {}, "fixed_alpha"),
        (moved, {}, r"normalizer\.running_mean.*before the loss"),
    ],
)
def test_a_learner_that_cannot_train_is_refused(loss, kwargs, name):
    with pytest.raises(ConfigError, match=name):
        make_learner(loss(), **kwargs)


@pytest.mark.parametrize(
    ("key", "name"), [("critic", "loss_actor"), (("next", "reward"), "loss_qvalue")]
)
def test_c15_a_loss_that_is_not_finite_is_named_before_its_parameters_move(key, name):
    learner, batch = make_learner(), tiny_batch(dtype=torch.float64)
    if name == "loss_actor":  # the critics' step is before
        learner.loss.qvalue_v2_loss = lambda batch: (
            learner.loss.qvalue_network_params.get(("module", "head", "bias")).sum(),
            {"td_error": torch.zeros(batch.shape)},
        )
    batch[key] = torch.full_like(batch[key], torch.nan)
    before = {k: v.clone() for k, v in learner.state_dict()["loss"].items()}
    with pytest.raises(NonFiniteError, match=f"{name} is nan in update 0"):
        learner.update(batch)
    part = "actor" if name == "loss_actor" else "critics"
    after = {k: v for k, v in learner.state_dict()["loss"].items() if k.startswith(part)}
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_c09_a_parameter_that_is_replaced_in_training_is_refused():
    learner = trained()
    learner.actor.mean_head.weight = torch.nn.Parameter(torch.zeros(ACTION, 4))
    with pytest.raises(ActorContractError, match=r"C9.*update 3 mean_head\.weight"):
        learner.update(tiny_batch(dtype=torch.float64))


def test_an_actor_that_breaks_the_contract_is_named():
    actor = PlainActor(OBS, ACTION)
    actor.forward = lambda obs, training: (obs[:, :ACTION], {"log_prob": obs})
    with pytest.raises(ActorContractError, match=r"C6.*log_prob"):
        make_learner(make_loss(actor)).update(tiny_batch(dtype=torch.float64))


def test_an_actor_with_losses_of_its_own_is_refused():
    learner = make_learner(make_loss(PlainActor(OBS, ACTION)))
    with pytest.raises(ConfigError, match=r"aux_losses.*shy, bold of PlainActor"):
        learner.update(tiny_batch(dtype=torch.float64))
