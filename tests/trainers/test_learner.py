"""FlashSACLearner: counters, state, precision, settings."""

from __future__ import annotations

import copy
import math
import warnings
from collections import defaultdict
from functools import partial

import pytest
import torch
from reference.actors import PlainActor
from reference.tiny import ACTION, OBS, tiny_actor, tiny_batch, tiny_critic, tiny_loss
from torch import Tensor, nn
from torchrl import timeit
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

from unilab.data import RewardNormalizer
from unilab.errors import ActorContractError, ConfigError, NonFiniteError
from unilab.modules import FlashSACActor
from unilab.modules.layers import UnitLinear
from unilab.objectives import FlashSACLoss
from unilab.trainers import FlashSACLearner
from unilab.trainers.compilation import matmul_dtype


def run(learner: FlashSACLearner, updates: range) -> list[dict[str, Tensor]]:
    """Seeded updates, so that a run can be continued from any of them."""
    metrics = []
    for update in updates:
        torch.manual_seed(update)
        metrics.append(learner.update(tiny_batch(seed=update)).to_dict())
    return metrics


def same(one: object, two: object) -> bool:
    """Bit for bit."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return torch.equal(one, two) if isinstance(one, Tensor) else one == two


def test_metrics_of_the_latest_actor_step_stay_between_actor_steps():
    first, second = run(FlashSACLearner(tiny_loss()), range(2))
    names = {"loss_actor", "loss_alpha", "loss_qvalue", "entropy", "alpha", "q_mean", "q_clipped"}
    assert set(first) == set(second) == names
    for name in ("loss_actor", "loss_alpha", "entropy"):
        assert torch.equal(first[name], second[name])
    assert not torch.equal(first["loss_qvalue"], second["loss_qvalue"])
    assert not any(value.requires_grad for value in second.values())


class NoCritic(FlashSACLoss):
    def qvalue_loss(self, tensordict):
        loss, info = super().qvalue_loss(tensordict)
        return 0.0 * loss, info


class NoActor(FlashSACLoss):
    def actor_loss(self, tensordict):
        loss, info = super().actor_loss(tensordict)
        return 0.0 * loss, info


class NoTemperature(FlashSACLoss):
    def alpha_loss(self, entropy):
        loss, info = super().alpha_loss(entropy)
        return 0.0 * loss, info


@pytest.mark.parametrize(
    ("kind", "still"), [(NoCritic, "critic"), (NoActor, "actor"), (NoTemperature, "log_alpha")]
)
def test_a_subclass_of_the_loss_is_trained_by_its_own_losses(kind, still):
    loss = kind(tiny_actor(), tiny_critic())
    before = {name: p.detach().clone() for name, p in loss.named_parameters()}
    FlashSACLearner(loss).update(tiny_batch())
    for name, p in loss.named_parameters():
        if "bias" not in name:  # a head's may have no gradient
            assert torch.allclose(p, before[name], atol=1e-6) == name.startswith(still), name


def test_a_subclass_of_the_loss_with_another_forward_is_refused():
    class Summed(FlashSACLoss):
        def forward(self, tensordict):
            return super().forward(tensordict)

    with pytest.raises(ConfigError, match=r"forward.*Summed"):
        FlashSACLearner(Summed(tiny_actor(), tiny_critic()))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_temperature_stays_within_its_bounds(sign):
    """A target of 1e3 nats cannot be reached, one of -1e3 is exceeded."""
    loss = tiny_loss(target_entropy=sign * 1e3, alpha_init=0.5, min_alpha=0.4999, max_alpha=0.5001)
    learner = FlashSACLearner(loss, lr=1e-3, actor_update_period=1)
    alphas = [metrics["alpha"].item() for metrics in run(learner, range(3))]
    assert alphas == pytest.approx([0.5 + sign * 1e-4] * 3, abs=1e-7)


class NoMetrics(FlashSACLoss):
    def qvalue_loss(self, tensordict):
        return super().qvalue_loss(tensordict)[0]


class NoEntropy(FlashSACLoss):
    def actor_loss(self, tensordict):
        return super().actor_loss(tensordict)[0], {}


class OnlyAlpha(FlashSACLoss):
    def alpha_loss(self, entropy):
        return super().alpha_loss(entropy)[0]


@pytest.mark.parametrize(
    ("kind", "method"),
    [(NoMetrics, "qvalue_loss"), (NoEntropy, "actor_loss"), (OnlyAlpha, "alpha_loss")],
)
def test_an_override_that_returns_no_loss_and_metrics_is_named(kind, method):
    loss = kind(tiny_actor(), tiny_critic())
    with pytest.raises(ConfigError, match=method):
        FlashSACLearner(loss).update(tiny_batch())
    with pytest.raises(ConfigError, match=method):
        loss(tiny_batch())


def test_metrics_of_a_subclass_are_detached_scalars():
    class Scaled(FlashSACLoss):
        def qvalue_loss(self, tensordict):
            loss, metrics = super().qvalue_loss(tensordict)
            return loss, {**metrics, "twice": 2 * loss, "one": 1.0}

    metrics = FlashSACLearner(Scaled(tiny_actor(), tiny_critic())).update(tiny_batch())
    assert not metrics["twice"].requires_grad
    assert metrics["twice"] == 2 * metrics["loss_qvalue"]
    assert metrics["one"] == 1.0


def test_parameters_that_no_optimizer_would_train_are_refused():
    loss = tiny_loss()
    loss.extra = nn.Linear(OBS, 1)
    with pytest.raises(ConfigError, match=r"extra\.weight"):
        FlashSACLearner(loss)
    loss.extra.requires_grad_(False)
    FlashSACLearner(loss).update(tiny_batch())


@pytest.mark.parametrize("reward", [-40.0, 0.1])
def test_a_target_that_stays_beyond_the_support_is_warned_of_once(reward):
    learner, batch = FlashSACLearner(tiny_loss(gamma=0.9)), tiny_batch()
    batch["next", "reward"] = torch.full((8, 1), reward)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        for thousands in range(1, 6):
            learner.update_count = 1000 * thousands - 1
            learner.update(batch)
    ours = [str(w.message) for w in caught if "q_clipped" in str(w.message)]
    assert len(ours) == (reward < -1.0)
    assert all("[-5, 5]" in text and "RewardNormalizer" in text for text in ours)


def test_the_batch_gets_the_td_error_of_its_rows():
    learner, batch = FlashSACLearner(tiny_loss()), tiny_batch()
    assert "td_error" not in learner.update(batch)
    assert batch["td_error"].shape == (8,)
    assert batch["td_error"].min() > 0.0


def test_a_prioritised_buffer_takes_the_td_error():
    try:
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, storage=LazyTensorStorage(8), batch_size=256
        )
    except RuntimeError as error:  # "SumSegmentTreeFp32 is not available"
        pytest.skip(f"PyTorch {torch.__version__} cannot load TorchRL's C++ extension: {error}")
    learner, rewards = FlashSACLearner(tiny_loss()), RewardNormalizer(0.97)
    data = tiny_batch()
    data["next", "terminated"].fill_(True)  # td_error does not depend on the actor's draws
    rewards.update(data)
    buffer.extend(data)
    batch = rewards.normalize(buffer.sample())
    learner.update(batch)
    buffer.update_tensordict_priority(batch)
    priorities = torch.zeros(8)
    priorities[batch["index"].reshape(-1)] = batch["td_error"]
    batch = buffer.sample()
    product = batch["priority_weight"].reshape(-1) * priorities[batch["index"].reshape(-1)]
    torch.testing.assert_close(product, priorities.min().expand(256))


def test_updates_are_timed_by_torchrl():
    timeit.erase()
    run(FlashSACLearner(tiny_loss()), range(2))
    assert timeit.todict()["update"] > 0.0


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_state_round_trip_continues_bit_for_bit(tmp_path, stop):
    learner = FlashSACLearner(tiny_loss(), warmup_steps=2, decay_steps=3)
    run(learner, range(stop))
    torch.save(learner.state_dict(), tmp_path / "learner.pt")
    want = run(learner, range(stop, 6))

    fresh = FlashSACLoss(FlashSACActor(OBS, ACTION, 4, 1), tiny_critic())
    restored = FlashSACLearner(fresh, warmup_steps=2, decay_steps=3)
    restored.load_state_dict(torch.load(tmp_path / "learner.pt", weights_only=True))
    assert restored.update_count == stop
    assert same(run(restored, range(stop, 6)), want)
    assert same(restored.state_dict(), learner.state_dict())


class Critical(PlainActor):
    """Fails in the critic's part of an update, after the actor's step."""

    fails = False

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict]:
        if self.fails and not training:
            raise RuntimeError("not now")
        return super().forward(obs, training)


def without(key):
    return lambda batch: batch.exclude(key)


def with_entry(key, change):
    return lambda batch: batch.set(key, change(batch[key]))


BAD_BATCHES = {
    "no critic obs": (without("critic"), "'critic'"),
    "no next obs": (without(("next", "obs")), "'obs'"),
    "no reward": (without(("next", "reward")), "reward"),
    "critic obs too wide": (with_entry("critic", lambda v: v.repeat(1, 2)), "critic obs"),
    "next critic obs too wide": (
        with_entry(("next", "critic"), lambda v: v.repeat(1, 2)),
        "next critic obs",
    ),
    "next obs too wide": (with_entry(("next", "obs"), lambda v: v.repeat(1, 2)), "same shape"),
    "two rewards": (with_entry(("next", "reward"), lambda v: v.repeat(1, 2)), "reward"),
    "two flags": (with_entry(("next", "terminated"), lambda v: v.repeat(1, 2)), "terminated"),
    "float64": (with_entry(("next", "critic"), torch.Tensor.double), "float64"),
    "other device": (with_entry(("next", "reward"), lambda v: v.to("meta")), "reward.*meta"),
    "weights": (lambda b: b.set("priority_weight", torch.ones(8, 2)), "priority_weight"),
    "locked": (lambda b: b.lock_(), "unlocked"),
    "locked, with td_error": (lambda b: b.set("td_error", torch.ones(8)).lock_(), "unlocked"),
    "no rows": (lambda b: b[:0], "rows"),
    "complex": (with_entry(("next", "reward"), lambda v: v + 0j), "reward.*complex"),
}


def trained_twins() -> list[FlashSACLearner]:
    learners = []
    for _ in range(2):
        torch.manual_seed(0)
        learners.append(FlashSACLearner(FlashSACLoss(Critical(OBS, ACTION), tiny_critic())))
        run(learners[-1], range(2))
    return learners


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_a_refused_batch_leaves_the_learner_as_it_was(kind):
    change, name = BAD_BATCHES[kind]
    learner, twin = trained_twins()
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(ConfigError, match=name):
        learner.update(change(tiny_batch(seed=7)))
    assert same(learner.state_dict(), before)
    assert same(run(learner, range(2, 5)), run(twin, range(2, 5)))
    assert same(learner.state_dict(), twin.state_dict())


@pytest.mark.parametrize("refused", ["aux", "aux names", "raises", "gradients"])
def test_a_refused_step_of_the_actor_leaves_the_learner_as_it_was(refused):
    learner, twin = trained_twins()
    actor, before = learner.loss.actor, copy.deepcopy(learner.state_dict())

    def fails(*args):
        raise NonFiniteError("no gradients")

    if refused == "gradients":
        learner._sync_gradients = fails
    else:
        change = {"aux": {"shy": torch.tensor(math.nan)}, "aux names": {}}.get(refused)
        actor.aux = fails if change is None else lambda mean, log_std: change
    with pytest.raises((ActorContractError, NonFiniteError)):
        learner.update(tiny_batch(seed=7))
    assert same(learner.state_dict(), before)
    learner._sync_gradients = None
    actor.__dict__.pop("aux", None)
    assert same(run(learner, range(2, 5)), run(twin, range(2, 5)))
    assert same(learner.state_dict(), twin.state_dict())


def test_after_an_error_in_the_critics_step_the_actors_is_not_repeated():
    learner, twin = trained_twins()
    learner.loss.actor.fails = True
    for _ in range(3):
        with pytest.raises(RuntimeError, match="not now"):
            run(learner, range(2, 3))
    assert learner.state_dict()["schedules"] == {"actor": 2, "alpha": 2, "critic": 2}
    learner.loss.actor.fails = False
    run(learner, range(2, 3))
    run(twin, range(2, 3))
    states = learner.state_dict(), twin.state_dict()
    for name in ("schedules", "update_count", "actor_metrics"):
        assert same(*(state[name] for state in states))
    actors = [{k: v for k, v in s["loss"].items() if k.startswith("actor")} for s in states]
    assert same(*actors)
    assert run(learner, range(3, 5))


def raising(*args: object, **kwargs: object) -> None:
    raise RuntimeError("not now")


@pytest.mark.parametrize(
    "place",
    [
        lambda learner: (learner.loss.actor, "normalize_parameters"),
        lambda learner: (learner._optimizers["alpha"], "step"),
        lambda learner: (learner.loss, "qvalue_loss"),
        lambda learner: (learner.loss.critic, "normalize_parameters"),
        lambda learner: (learner._target_update, "step"),
    ],
)
@pytest.mark.parametrize("updates", [0, 2])
def test_an_error_anywhere_in_an_update_leaves_counts_that_a_checkpoint_continues(
    place, updates, monkeypatch
):
    learner, resumed = (FlashSACLearner(tiny_loss(), lr=1e-2) for _ in range(2))
    run(learner, range(updates))
    with monkeypatch.context() as patch:
        patch.setattr(*place(learner), raising)
        with pytest.raises(RuntimeError, match="not now"):
            run(learner, range(updates, updates + 1))
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    done = learner.update_count
    for each in (learner, resumed):
        run(each, range(done, updates + 3))
        assert each.update_count == updates + 3
    assert same(learner.state_dict(), resumed.state_dict())
    firsts = [next(iter(adam.state.values())) for adam in learner._optimizers.values()]
    steps = [int(moments["step"]) for moments in firsts]
    assert steps == [s.last_epoch for s in learner._schedules.values()]
    assert steps == [(updates + 4) // 2, (updates + 4) // 2, updates + 3]


def test_a_state_of_an_earlier_version_continues():
    learner, resumed = FlashSACLearner(tiny_loss()), FlashSACLearner(tiny_loss())
    run(learner, range(3))
    state = copy.deepcopy(learner.state_dict())
    del state["stepped"]
    resumed.load_state_dict(state)
    assert same(resumed.state_dict(), learner.state_dict())


@pytest.mark.parametrize(
    ("key", "name"), [("critic", "loss_actor"), (("next", "reward"), "loss_qvalue")]
)
def test_c15_a_loss_that_is_not_finite_is_named_before_its_parameters_move(key, name):
    learner, batch = FlashSACLearner(tiny_loss()), tiny_batch()
    batch[key] = torch.full_like(batch[key], math.nan)
    network = learner.loss.actor if name == "loss_actor" else learner.loss.critic
    before = copy.deepcopy([*network.parameters()])
    with pytest.raises(NonFiniteError, match=name):
        learner.update(batch)
    assert all(map(torch.equal, network.parameters(), before))


def test_bfloat16_is_used_inside_the_hidden_layers_alone():
    learner = FlashSACLearner(tiny_loss(), amp_dtype="bfloat16")
    seen: dict[str, set[torch.dtype]] = {}

    class Dtypes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            outs = out if isinstance(out, tuple | list) else (out,)
            name = func.overloadpacket.__name__
            seen.setdefault(name, set()).update(o.dtype for o in outs if isinstance(o, Tensor))
            return out

    with Dtypes():
        metrics = run(learner, range(2))
    reduced = {name for name, dtypes in seen.items() if torch.bfloat16 in dtypes}
    assert {"mm", "bmm"} <= reduced
    # products, the casts around them, and views of either
    assert reduced <= {"mm", "bmm", "_to_copy", "t", "transpose", "expand", "view", "detach"}
    assert all(v.dtype == torch.float32 for v in metrics[-1].values())
    assert all(p.dtype == torch.float32 for p in learner.loss.parameters())


@pytest.mark.parametrize(
    ("units", "dtype"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, torch.bfloat16),  # Intel, from Sapphire Rapids
        ({"amx_bf16": False, "avx512_bf16": True}, torch.bfloat16),  # AMD, from Zen 4
        ({"amx_bf16": False, "avx512_bf16": False, "avx2": True}, None),
        ({}, None),
    ],
)
def test_precision_auto_is_bfloat16_where_the_cpu_has_units_for_it(units, dtype, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units)
    assert matmul_dtype("auto", device=torch.device("cpu")) is dtype
    assert matmul_dtype("auto", device=torch.device("cuda")) is None
    assert matmul_dtype("bfloat16", device=torch.device("cpu")) is torch.bfloat16
    assert matmul_dtype(None, device=torch.device("cpu")) is None


class Interrupted(Exception):
    pass


def interrupt(parameters: list[nn.Parameter], losses: dict[str, torch.Tensor]) -> None:
    raise Interrupted


@pytest.mark.parametrize("sync", [None, interrupt])
def test_heads_are_float32_always_and_hidden_layers_outside_updates(sync):
    """Bit for bit those of a copy in float32, given the same inputs; the target's too."""
    loss = tiny_loss()
    copied, exact = copy.deepcopy(loss), defaultdict(set)

    def compare(name, layer, inputs, output):
        want = torch.func.functional_call(
            copied.get_submodule(name), dict(layer.named_parameters()), inputs
        )
        exact[name].add(torch.equal(output, want))

    for name, layer in loss.named_modules():
        if isinstance(layer, UnitLinear):
            layer.register_forward_hook(partial(compare, name))
    learner, batch = FlashSACLearner(loss, amp_dtype="bfloat16", sync_gradients=sync), tiny_batch()
    try:
        learner.update(batch)
    except Interrupted:
        assert sync
    assert ("_target_critic.head" in exact) is (sync is None)
    for name, equal in exact.items():
        assert equal == {name.endswith("head")}, name
    exact.clear()
    loss.qvalue_loss(batch)
    assert {name.split(".")[0] for name in exact} == {"actor", "critic", "_target_critic"}
    assert all(equal == {True} for equal in exact.values())


@pytest.mark.parametrize("before", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("allow_tf32", [False, True])
def test_tf32_is_allowed_in_updates_alone(before, allow_tf32):
    """PyTorch's setting is one for the whole process."""
    cuda, seen = torch.backends.cuda.matmul, set()
    cuda.fp32_precision = before
    try:
        learner = FlashSACLearner(
            tiny_loss(),
            allow_tf32=allow_tf32,
            sync_gradients=lambda *_: seen.add(cuda.fp32_precision),
        )
        learner.update(tiny_batch())
        assert seen == {"tf32" if allow_tf32 else before}
        assert cuda.fp32_precision == before
    finally:
        cuda.fp32_precision = "none"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actor_update_period", 0),
        ("tau", 0.0),
        ("tau", 1.5),
        ("amp_dtype", "float16"),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("lr_init", -1e-4),
        ("lr_end", -1e-4),
        ("warmup_steps", -1),
        ("decay_steps", 0),
    ],
)
def test_a_setting_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        FlashSACLearner(tiny_loss(), **{name: value})
