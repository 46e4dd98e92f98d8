"""ADR-0017 in training: each test is named after its clause."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from reference.actors import PlainActor
from reference.tiny import tiny_actor, tiny_batch, tiny_critic, tiny_loss
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unilab.errors import ActorContractError, CheckpointError, ConfigError, NonFiniteError
from unilab.modules import (
    FlashSACActor,
    FlashSACActorSpec,
    FlashSACPolicy,
    actor_semantics,
    build_actor,
)
from unilab.objectives import FlashSACLoss
from unilab.record.metric_schema import METRICS, metric
from unilab.trainers import FlashSACLearner, compilation

PLAIN = "reference.actors:PlainActor"


class Alone(PlainActor):
    """Returns its actions alone."""

    def forward(self, obs: Tensor, training: bool) -> Tensor:
        return super().forward(obs, training)[0]


def plain(action_dim: int = 2, **kwargs: object) -> PlainActor:
    spec = FlashSACActorSpec(builder=PLAIN, kwargs=kwargs)
    return build_actor(spec, obs_dim=3, action_dim=action_dim)


def learner(actor: nn.Module, **kwargs: object) -> FlashSACLearner:
    return FlashSACLearner(FlashSACLoss(actor, tiny_critic()), **kwargs)


def storages(module: nn.Module) -> set[int]:
    return {p.data_ptr() for p in module.parameters()}


@pytest.mark.parametrize("make", [plain, tiny_actor])
def test_c09_c10_optimizer_exploration_evaluation_and_export_read_one_storage(make):
    actor = make()
    training = learner(actor)
    optimised = {p.data_ptr() for p in training._optimizers["actor"].param_groups[0]["params"]}
    assert training.loss.actor is actor
    assert FlashSACPolicy(actor).actor is training.loss.actor_network.actor is actor
    assert optimised == storages(actor) == storages(actor.as_export_module())

    obs = torch.randn(5, 3)
    before = actor.explore(obs, deterministic=True)
    export = actor.as_export_module()
    training.update(tiny_batch())
    after = actor.explore(obs, deterministic=True)
    assert not torch.equal(before, after)
    torch.testing.assert_close(export(obs).detach(), after)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda loss: setattr(loss.actor.mean, "weight", nn.Parameter(torch.ones(2, 3))), "mean.w"),
        (lambda loss: setattr(loss.actor, "mean", nn.Linear(3, 2)), "mean.weight, mean.bias"),
        (lambda loss: setattr(loss.actor.mean, "bias", None), "some"),
        (lambda loss: setattr(loss.critic, "head", tiny_critic().head), "head.weight"),
    ],
)
def test_c09_a_parameter_that_is_replaced_in_training_is_refused(change, name):
    training = learner(plain())
    training.update(tiny_batch())
    training.loss.actor.part = nn.Identity()  # without parameters
    training.update(tiny_batch())
    change(training.loss)
    before = copy.deepcopy(training.loss.state_dict())
    with pytest.raises(ActorContractError, match=f"C9.*{name}"):
        training.update(tiny_batch())
    assert unchanged(training, before)


def test_c11_auxiliary_gradients_reach_the_actor_through_its_optimizer():
    moved = []
    for weight in (0.0, 100.0):
        torch.manual_seed(0)
        actor = plain(weight=weight)
        before = actor.mean.weight.detach().clone()
        torch.manual_seed(1)
        learner(actor, lr=1e-3).update(tiny_batch())
        moved.append(actor.mean.weight.detach() - before)
    assert not torch.equal(*moved)
    # Adam's first step goes against the sign of the gradient: here that of mean^2 alone.
    assert (moved[1].abs() > 0).all()


def test_c11_each_optimizer_steps_with_what_the_gradient_hook_left():
    seen: list[nn.Parameter] = []

    def erase(params: list[nn.Parameter], losses: dict[str, Tensor]) -> None:
        assert all(loss.isfinite() for loss in losses.values())
        seen.extend(params)
        assert any(p.grad.abs().sum() > 0 for p in params)
        for p in params:
            p.grad *= 0.0

    training = learner(plain(), sync_gradients=erase)
    before = copy.deepcopy(training.loss.actor.state_dict())
    training.update(tiny_batch())
    assert {id(p) for p in seen} == {id(p) for p in training.loss.parameters()}
    assert all(torch.equal(v, before[k]) for k, v in training.loss.actor.state_dict().items())


def test_c12_each_is_counted_once_in_a_sum_over_the_losses():
    actor = plain(weight=3.0)
    loss = FlashSACLoss(actor, tiny_critic())
    grads = {}
    for keys in (("loss_",), ("loss_actor",), ("loss_aux_bold",)):
        actor.zero_grad()
        torch.manual_seed(0)
        out = loss(tiny_batch())
        assert {k for k in out.keys() if "aux" in k} == {"loss_aux_shy", "loss_aux_bold"}  # noqa: SIM118
        sum(out[key] for key in out.keys() if key.startswith(keys)).backward()  # noqa: SIM118
        grads[keys] = actor.raw_std.bias.grad.clone()
    total, own, aux = grads.values()
    torch.testing.assert_close(total, own + aux, rtol=1e-4, atol=1e-4)


def test_c13_auxiliary_losses_are_logged_in_an_open_family(session):
    rows = []

    class Log:
        def log(self, frames, minutes, values):
            rows.append(values)

        def close(self):
            pass

    session(actor=plain(action_dim=1)).train(20, logger=Log())
    tags = {tag for tag in rows[-1] if "aux" in tag}
    assert tags == {"Loss/aux_shy", "Loss/aux_bold"}
    assert all(metric(tag) is METRICS["Loss/aux_"] for tag in tags)


class Shifty(PlainActor):
    names = ("a", "b")
    value = 1.0

    def aux(self, mean: Tensor, log_std: Tensor) -> dict[str, Tensor]:
        return {name: self.value * mean.square().mean() for name in self.names}


def unchanged(training: FlashSACLearner, before: dict[str, Tensor]) -> bool:
    """No parameter or statistic has moved; "calls" counts forward passes."""
    after = training.loss.state_dict()
    return all(torch.equal(v, before[k]) for k, v in after.items() if "calls" not in k)


@pytest.mark.parametrize(
    ("first", "names", "message"),
    [
        ((), ("late",), "appeared 'late' and vanished none"),
        (("a", "b"), ("a", "d"), "appeared 'd' and vanished 'b'"),
    ],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_c14_the_names_of_the_first_update_stay(first, names, message, resumed):
    actor = Shifty(3, 2)
    actor.names = first
    training = learner(actor)
    for _ in range(2):
        training.update(tiny_batch())
    if resumed:
        state = training.state_dict()
        training = learner(actor)
        training.load_state_dict(state)
    actor.names = names
    before = copy.deepcopy(training.loss.state_dict())
    with pytest.raises(ActorContractError, match=f"C14.*{message}"):
        training.update(tiny_batch())
    assert unchanged(training, before)


@pytest.mark.parametrize(
    ("aux", "message"),
    [
        (lambda mean: {"a": mean.square().mean(-1)}, r"'a'.*\[16\]"),
        (lambda mean: {"a b/c": mean.mean()}, "'a b/c'"),
        (lambda mean: None, "aux_losses.*None"),
    ],
)
def test_c06_auxiliary_losses_are_named_scalars_in_every_update(aux, message):
    actor = Shifty(3, 2)
    actor.names = ("a",)
    training = learner(actor, actor_update_period=1)
    training.update(tiny_batch())
    actor.aux = lambda mean, log_std: aux(mean)
    before = copy.deepcopy(training.loss.state_dict())
    with pytest.raises(ActorContractError, match=f"Shifty.*C6.*{message}"):
        training.update(tiny_batch())
    assert unchanged(training, before)


@pytest.mark.parametrize(
    ("actor", "message"),
    [
        (PlainActor(3, 1), r"actions.*\[16, 2\].*\[16, 1\]"),
        (PlainActor(3, 2).double(), "actions.*float32.*float64"),
        (Alone(3, 2), r"Alone.*C6.*\(actions, info\).*\[16, 2\]"),
    ],
)
def test_c06_actions_that_do_not_fit_the_critic_are_refused_at_the_first_batch(actor, message):
    loss = FlashSACLoss(actor, tiny_critic())
    batch = tiny_batch()
    batch["obs"] = batch["obs"].to(actor.mean.weight.dtype)
    batch["next", "obs"] = batch["next", "obs"].to(actor.mean.weight.dtype)
    with pytest.raises(ActorContractError, match=message):
        loss.actor_loss(batch)
    with pytest.raises(ActorContractError, match=message.replace("16", "8")):
        loss.qvalue_loss(batch)


def test_c15_a_non_finite_auxiliary_loss_is_named_before_a_parameter_moves():
    actor = Shifty(3, 2)
    training = learner(actor)
    actor.value = math.nan
    before = copy.deepcopy(training.loss.state_dict())
    with pytest.raises(NonFiniteError, match="loss_aux_a is nan"):
        training.update(tiny_batch())
    assert unchanged(training, before)


def test_c18_every_checkpoint_holds_the_actors_semantics(session):
    semantics = session().learner.state_dict()["actor_semantics"]
    assert semantics == {
        "schema_version": 1,
        "kind": "flashsac",
        "builder": "unilab.modules:FlashSACActor",
        "kwargs": {"hidden_dim": 8, "num_blocks": 1, "action_low": [-1.0], "action_high": [1.0]},
        "obs_dim": 3,
        "action_dim": 1,
        "action_transform": "tanh",
    }
    custom = learner(plain(low=-2.0)).state_dict()["actor_semantics"]
    assert (custom["kind"], custom["builder"], custom["kwargs"]) == ("custom", PLAIN, {"low": -2.0})


def test_c18_the_built_in_actor_means_the_same_however_it_was_built():
    spec = FlashSACActorSpec(builder="unilab.modules.FlashSACActor", kwargs={"hidden_dim": 8})
    built = build_actor(spec, obs_dim=3, action_dim=2)
    assert actor_semantics(built) == actor_semantics(FlashSACActor(3, 2, 8))


def test_c18_an_instance_of_unknown_builder_says_so():
    semantics = actor_semantics(PlainActor(3, 2))
    assert (semantics["kind"], semantics["builder"]) == ("custom", None)
    assert copy.deepcopy(plain())._built_as == plain()._built_as


def exchange_head(actor: FlashSACActor) -> None:
    actor.mean_head = nn.Linear(4, 2)


def exchange_transform(actor: FlashSACActor) -> None:
    actor._transform = torch.sin


def exchange_range(actor: FlashSACActor) -> None:
    actor.action_scale.mul_(2.0)


def exchange_class(actor: FlashSACActor) -> None:
    actor.__class__ = type("Other", (FlashSACActor,), {})


@pytest.mark.parametrize(
    "exchange", [exchange_head, exchange_transform, exchange_range, exchange_class]
)
def test_c18_an_actor_that_was_exchanged_in_part_is_not_what_was_built(exchange):
    actor = tiny_actor()
    training = learner(actor)
    assert actor_semantics(copy.deepcopy(actor).double()) == actor_semantics(actor)
    state = training.state_dict()
    exchange(actor)
    semantics = actor_semantics(actor)
    assert (semantics["kind"], semantics["builder"]) == ("custom", None)
    with pytest.raises(CheckpointError, match="kind is 'flashsac' there and 'custom' here"):
        training.load_state_dict(state)


class LearnsItsScale(PlainActor):
    """Owns the name that the library's actors give to a constant."""

    def __init__(self, obs_dim: int, action_dim: int, device=None) -> None:
        super().__init__(obs_dim, action_dim, device)
        del self.scale
        self.action_scale = nn.Parameter(torch.ones(action_dim))
        self.register_buffer("action_offset", torch.zeros(()))

    @property
    def scale(self) -> Tensor:
        return self.action_scale

    def normalize_parameters(self) -> None:
        self.action_offset += 1.0


def test_c18_an_actor_may_learn_what_this_librarys_actors_keep_constant():
    spec = FlashSACActorSpec(builder=f"{__name__}:LearnsItsScale")
    training, fresh = (learner(build_actor(spec, obs_dim=3, action_dim=2)) for _ in range(2))
    training.update(tiny_batch())
    assert actor_semantics(training.loss.actor)["builder"] == spec.builder
    fresh.load_state_dict(training.state_dict())
    assert fresh.loss.actor.action_offset == 1.0


class Unscaled(FlashSACActor):
    """Its density forgets the range."""

    def _transform(self, u: Tensor) -> Tensor:
        return 2.0 * torch.tanh(u)


def test_c06_an_instance_of_known_widths_is_validated_by_the_learner(monkeypatch):
    with pytest.raises(ActorContractError, match=r"Unscaled.*C16"):
        learner(Unscaled(3, 2, 4, 1))
    built = plain()
    monkeypatch.setattr("unilab.modules.actor_contract.validate_actor", pytest.fail)
    for checked_before_or_of_unknown_widths in (built, tiny_actor(), PlainActor(3, 2)):
        learner(checked_before_or_of_unknown_widths)


@pytest.mark.parametrize("name", ["action_scale", "action_offset"])
def test_c19_weights_with_another_action_range_than_recorded_are_refused(name):
    training = FlashSACLearner(tiny_loss())
    state = copy.deepcopy(training.state_dict())
    state["loss"][f"actor.{name}"] += 4.0
    with pytest.raises(CheckpointError, match=rf"{name} is \[[45]\.0"):
        training.load_state_dict(state)


def changed(**changes: object):
    return lambda semantics: {**semantics, **changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(action_dim=4), "action_dim is 4 .* 2"),
        (changed(kind="custom", builder="a:b"), "kind is 'custom'.*builder is 'a:b'"),
        (changed(extra=1), "extra"),
        (changed(schema_version=2), "schema_version 2"),
        (changed(schema_version=True), "schema_version True"),
        (changed(schema_version=1.0), r"schema_version 1\.0"),
        (changed(action_dim=True), "action_dim"),
        (lambda s: {k: v for k, v in s.items() if k != "kind"}, "kind"),
        (lambda s: None, "no actor_semantics"),
        (lambda s: [1], "actor_semantics"),
    ],
)
def test_c19_c20_c21_other_missing_or_unknown_semantics_are_refused_before_any_weight(
    change, message
):
    training = FlashSACLearner(tiny_loss())
    training.update(tiny_batch())
    state = training.state_dict()
    state["actor_semantics"] = change(state["actor_semantics"])
    fresh = FlashSACLearner(tiny_loss())
    before = copy.deepcopy(fresh.loss.state_dict())
    with pytest.raises(CheckpointError, match=message):
        fresh.load_state_dict(state)
    assert fresh.update_count == 0
    assert unchanged(fresh, before)


def test_c22_a_buffer_of_a_custom_actor_may_be_negative_whatever_its_name():
    states = []
    for _ in range(2):
        actor = PlainActor(3, 2)
        actor.register_buffer("num_batches_tracked", torch.tensor(-1))
        actor.register_buffer("running_var", torch.tensor(-1.0))
        states.append(learner(actor))
    states[0].update(tiny_batch())
    states[1].load_state_dict(states[0].state_dict())


def test_c22_a_parameter_that_never_had_a_gradient_needs_no_moments():
    actor = plain()
    actor.spare = nn.Linear(1, 1)
    training = learner(actor)
    training.update(tiny_batch())
    state = training.state_dict()
    assert state["optimizers"]["actor"][4] == {}
    learner(actor).load_state_dict(state)
    del state["optimizers"]["actor"][4]
    with pytest.raises(CheckpointError, match=r"optimizers\.actor"):
        learner(actor).load_state_dict(state)


@pytest.mark.parametrize("wanted", [True, None])
def test_c26_a_custom_actor_with_a_cuda_graph_is_an_error(wanted):
    cuda = torch.device("cuda")
    with pytest.raises(ConfigError, match=r"use_whole_cycle_cuda_graph.*custom"):
        compilation.use_cuda_graph(wanted, device=cuda, custom=True)
    assert not compilation.use_cuda_graph(False, device=cuda, custom=True)
    assert compilation.use_cuda_graph(wanted, device=cuda, custom=False)


def test_c26_without_nvidia_a_cuda_graph_is_off_by_default_and_an_error_if_set(monkeypatch):
    for make in (plain, tiny_actor):
        with pytest.raises(ConfigError, match="use_whole_cycle_cuda_graph"):
            learner(make(), use_whole_cycle_cuda_graph=True)
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert not compilation.use_cuda_graph(None, device=torch.device("cuda"), custom=True)


def on_graphs(monkeypatch: pytest.MonkeyPatch) -> FlashSACLearner:
    """A learner on its path for graphs, which CudaGraphModule passes through without CUDA."""
    monkeypatch.setattr("unilab.trainers.learner.use_cuda_graph", lambda *a, **k: True)
    return FlashSACLearner(tiny_loss(), warmup_steps=2, decay_steps=5)


@pytest.mark.filterwarnings("ignore:This module is instantiated on a machine without CUDA")
@pytest.mark.filterwarnings("ignore:Tensordict is registered in PyTree")
def test_c26_the_captured_parts_make_the_same_updates(monkeypatch):
    eager = FlashSACLearner(tiny_loss(), warmup_steps=2, decay_steps=5)
    graphs = on_graphs(monkeypatch)
    for update in range(4):
        metrics = []
        for one in (eager, graphs):
            torch.manual_seed(update)
            metrics.append(one.update(tiny_batch(seed=update)))
        assert (metrics[0] == metrics[1]).all()
        if update == 1:  # a state goes either way, as does its learning rate
            state = copy.deepcopy(graphs.state_dict())
            graphs = on_graphs(monkeypatch)
            graphs.load_state_dict(eager.state_dict())
            eager.load_state_dict(state)
    for name, value in eager.loss.state_dict().items():
        torch.testing.assert_close(graphs.loss.state_dict()[name], value, rtol=1e-6, atol=1e-7)


def test_c26_an_update_of_the_built_in_actor_does_not_sync_the_device(monkeypatch):
    """A graph cannot record a value that Python reads."""

    class NoLook(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero"), func
            return func(*args, **(kwargs or {}))

    training = FlashSACLearner(tiny_loss())
    # which looks at losses on the CPU
    monkeypatch.setattr("unilab.trainers.learner.check_losses", lambda *args, **losses: None)
    with NoLook():
        training.update(tiny_batch())
        with pytest.raises(AssertionError):
            torch.ones(()).item()
    assert training.update_count == 1


def test_c27_a_custom_actor_without_normalisation_is_an_error():
    with pytest.raises(ConfigError, match="actor_normalize_parameters"):
        learner(plain(), actor_normalize_parameters=False)


def test_c27_the_built_in_actor_may_go_unnormalised():
    free = FlashSACLearner(tiny_loss(), actor_normalize_parameters=False, lr=1e-2)
    free.update(tiny_batch())
    norms = free.loss.actor.mean_head.weight.norm(dim=-1)
    assert (norms - 1.0).abs().max() > 1e-4
    assert (free.loss.critic.head.weight.norm(dim=-1) - 1.0).abs().max() < 1e-4
