"""The data are bit for bit those of TorchRL's synchronous Collector; clauses are ADR-0001's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from reference.collecting import assert_same, sync
from reference.counting import Agents, Choosy, Counting, Guided, making
from reference.pendulum import pendulum
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.data import Bounded
from torchrl.envs import (
    ActionMask,
    EnvBase,
    InitTracker,
    PendulumEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.utils import ExplorationType
from torchrl.modules import (
    GRUModule,
    LSTMModule,
    OrnsteinUhlenbeckProcessModule,
)

import unilab
from unilab.errors import CollectorError
from unilab.modules import FlashSACActor, FlashSACPolicy

pytestmark = pytest.mark.usefixtures("warm_start")
N = 3
make_pendulum = unilab.registry.factory(
    "pendulum_swingup", num_envs=N, seed=0, overrides={"episode_length_s": 0.3, "num_threads": 1}
)


def explorer() -> FlashSACPolicy:
    """A policy with the same weights and noise at every call."""
    torch.manual_seed(0)
    return FlashSACPolicy(FlashSACActor(3, 1, hidden_dim=8, num_blocks=1))


def zero(td: TensorDictBase) -> TensorDictBase:
    return td.set("action", torch.zeros(N, 1))


def counting() -> EnvBase:
    return TransformedEnv(Counting()(), InitTracker())


@pytest.mark.parametrize("ticks", [1, 3])
def test_c13_data_are_those_of_the_synchronous_collector(pipelined, ticks):
    """Resets, random warm-up, exploration noise and episode numbers included."""
    frames = {"frames_per_batch": N * ticks, "total_frames": N * 48}
    frames["init_random_frames"] = N * ticks * 4
    theirs = list(sync(make_pendulum, explorer(), **frames))
    collector = pipelined(make_pendulum, explorer(), **frames)
    ours = list(collector)
    assert_same(ours, theirs)
    assert len(ours) == len(collector) == 48 // ticks
    assert sum(int(batch["next", "truncated"].sum()) for batch in ours) >= 2 * N
    assert collector.stats()["completed"]


@pytest.mark.parametrize("ticks", [1, 4])
def test_c13_learner_is_one_action_late_and_otherwise_synchronous(pipelined, ticks):
    """The loop body changes the policy and draws random numbers.

    With batches of several ticks, it runs after the first tick of the next batch.
    """

    def body(policy: FlashSACPolicy, batch: TensorDictBase) -> None:
        # Contiguous: the order in which a mean adds up depends on strides.
        reward = batch["next", "reward"].contiguous().mean()
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(0.05 * reward * torch.randn_like(weight))

    policy, theirs = explorer(), []
    pending: list[TensorDictBase] = []
    for tick in sync(make_pendulum, policy, frames_per_batch=N, total_frames=N * 40):
        if len(pending) == ticks:
            theirs.append(torch.cat(pending, 1))
            body(policy, theirs[-1])
            pending = []
        pending.append(tick)
    theirs.append(torch.cat(pending, 1))
    body(policy, theirs[-1])
    weights = list(policy.parameters())

    policy, ours = explorer(), []
    for batch in pipelined(make_pendulum, policy, frames_per_batch=N * ticks, total_frames=N * 40):
        ours.append(batch)
        body(policy, batch)
    assert_same(ours, theirs)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), weights, strict=True))


def normalising(td: TensorDictBase) -> TensorDictBase:
    td["obs"] = td["obs"] / 10.0
    return td.set("action", td["obs"][:, :1])


def several(td: TensorDictBase) -> TensorDictBase:
    return td.set(("agents", "action"), td["agents", "obs"][..., :1] / 10.0)


def guiding(td: TensorDictBase) -> TensorDictBase:
    return zero(td).set("goal", torch.rand(N, 1))


def more_entries() -> TensorDictModule:
    def act(obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return obs[:, :1] * 0, obs.sum(-1)

    return TensorDictModule(act, in_keys=["obs"], out_keys=["action", ("m", "s")])


def gru() -> GRUModule:
    return GRUModule(input_size=2, hidden_size=4, in_key="obs", out_key="features")


def lstm() -> LSTMModule:
    return LSTMModule(input_size=2, hidden_size=4, in_key="obs", out_key="features")


def recurrent(memory: Callable[[], nn.Module]) -> TensorDictModuleBase:
    head = TensorDictModule(nn.Linear(4, 1), ["features"], ["action"])
    return TensorDictSequential(memory(), head)


def primed(memory: Callable[[], Any]) -> EnvBase:
    return counting().append_transform(memory().make_tensordict_primer())


def noisy() -> TensorDictModuleBase:
    return TensorDictSequential(
        TensorDictModule(nn.Linear(2, 1), ["obs"], ["action"]),
        OrnsteinUhlenbeckProcessModule(spec=Bounded(-1.0, 1.0, (N, 1)), sigma=1.0),
    )


class Nested(TensorDictModuleBase):
    """Counts its calls in the episode, in a nested entry."""

    in_keys, out_keys = ("obs",), ("action", ("memory", "calls"))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        calls = tensordict.get(("memory", "calls"), torch.zeros(N, 1)) + 1
        return tensordict.set(("memory", "calls"), calls).set("action", (calls / 10).clamp(-1, 1))


CASES: dict[str, tuple[Callable[[], EnvBase], Callable[[], Any]]] = {
    "policy replaces the observation": (Counting(), lambda: normalising),
    "two agents": (making(Agents), lambda: several),
    "state from the policy": (making(Guided), lambda: guiding),
    "entries beside the action": (Counting(), more_entries),
    "recurrent state": (lambda: primed(gru), lambda: recurrent(gru)),
    "held noise": (counting, noisy),
    "nested memory": (counting, Nested),
}


@pytest.mark.parametrize("ticks", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_c13_c24_c25_data_are_the_same_with(pipelined, case, ticks):
    make_env, make_policy = CASES[case]
    data = []
    for kind in (pipelined, sync):
        torch.manual_seed(0)
        policy = make_policy()
        collector = kind(make_env, policy, frames_per_batch=ticks * N, total_frames=12 * N)
        torch.manual_seed(0)
        data.append([batch.clone() for batch in collector])
    assert_same(*data)
    for ours, theirs in zip(*data, strict=True):
        for key, value in ours.items(True):
            if isinstance(value, TensorDictBase):
                assert value.batch_size == theirs[key].batch_size, key


@pytest.mark.parametrize("memory", [gru, lstm])
def test_c24_recurrent_policy_needs_no_primer(pipelined, memory):
    """The data are those of TorchRL's collector over an environment that has one."""
    torch.manual_seed(0)
    policy = recurrent(memory)
    frames = {"frames_per_batch": 4 * N, "total_frames": 12 * N}
    ours = list(pipelined(counting, policy, **frames))
    assert_same(ours, list(sync(lambda: primed(memory), policy, **frames)))


def test_c24_entry_under_next_comes_to_the_root_of_the_next_tick(pipelined):
    def counts(td: TensorDictBase) -> TensorDictBase:
        td["next", "n"] = td.get("n", torch.zeros(N, 1)) + 1
        return zero(td)

    data = torch.cat(list(pipelined(counting, counts, frames_per_batch=N, total_frames=12 * N)), 1)
    assert torch.equal(data["n"][..., 0], data["obs"][..., 1])
    assert torch.equal(data["next", "n"], data["n"] + 1)


def test_c24_carried_entries_restart_where_all_episodes_end_at_once_which_torchrls_do_not(
    pipelined,
):
    def counts(td: TensorDictBase) -> TensorDictBase:
        td["n"] = td.get("n", torch.zeros(N, 1)) + 1
        return zero(td)

    def in_step() -> EnvBase:
        return counting().append_transform(StepCounter(max_steps=3))

    ours, theirs = (
        torch.cat(
            [b.clone() for b in kind(in_step, counts, frames_per_batch=N, total_frames=36)], 1
        )
        for kind in (pipelined, sync)
    )
    assert ours["n"][0, :, 0].tolist() == [1, 2, 3] * 4
    assert theirs["n"][0, :, 0].tolist() == list(range(1, 13))


def test_c24_policy_may_write_scalars_for_an_unbatched_environment(pipelined):
    def counts(td: TensorDictBase) -> TensorDictBase:
        td["log_prob"] = td.get("log_prob", torch.zeros(())) + 1.0
        return td.set("action", torch.zeros(1))

    def single() -> EnvBase:
        return TransformedEnv(PendulumEnv(), StepCounter(max_steps=3))

    data = torch.cat(list(pipelined(single, counts, frames_per_batch=4, total_frames=12)))
    assert data["log_prob"].tolist() == [1, 2, 3] * 4


def test_exploration_type_reaches_the_policy(pipelined):
    kwargs: dict[str, Any] = {"frames_per_batch": N, "total_frames": 4 * N}
    kwargs["exploration_type"] = ExplorationType.DETERMINISTIC
    ours = list(pipelined(make_pendulum, explorer(), **kwargs))
    assert_same(ours, list(sync(make_pendulum, explorer(), **kwargs)))


def test_collection_without_total_frames_is_endless(pipelined):
    kwargs = {"frames_per_batch": N, "total_frames": None, "init_random_frames": None}
    theirs = list(islice(sync(make_pendulum, explorer(), **kwargs), 3))
    assert_same(islice(pipelined(make_pendulum, explorer(), **kwargs), 3), theirs)


def test_c4_c27_environment_of_torchrl_works_with_the_same_seed(pipelined):
    frames = {"frames_per_batch": 2 * N, "total_frames": 30 * N}

    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", -td["obs"][:, 1:].clamp(-1, 1))

    collectors = [kind(lambda: pendulum(N, 5), policy, **frames) for kind in (pipelined, sync)]
    assert collectors[0].set_seed(3) == collectors[1].set_seed(3)
    ours, theirs = ([batch.clone() for batch in collector] for collector in collectors)
    # The first episodes began before the seed was set; they are over after five ticks.
    assert_same(ours[3:], theirs[3:])


@pytest.mark.parametrize("ticks", [1, 3])
def test_policy_may_write_into_the_same_tensors_at_each_tick(pipelined, ticks):
    """Where a Collector's batch of several ticks has the last tick's values in all of them."""
    action, calls = torch.zeros(N, 1), torch.zeros(N, 1)

    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("calls", calls.add_(1.0)).set("action", torch.div(calls, 10.0, out=action))

    frames = {"frames_per_batch": ticks * N, "total_frames": 6 * N}
    batches = pipelined(Counting(), policy, return_same_td=True, **frames)
    data = torch.cat([batch.clone() for batch in batches], 1)
    assert data["calls"][0].flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(data["action"], data["calls"] / 10.0)


def test_random_actions_are_allowed_ones(pipelined):
    """Where those of a Collector's batch are only at its first tick."""

    def masked() -> EnvBase:
        return TransformedEnv(making(Choosy)(), ActionMask())

    for batch in pipelined(masked, None, frames_per_batch=3 * N, total_frames=12 * N):
        assert bool(batch["action_mask"].gather(-1, batch["action"].unsqueeze(-1)).all())


@pytest.mark.parametrize(("value", "accepted"), [(0.5, True), (0.1, False)])
def test_action_of_another_dtype_is_accepted_if_its_values_are_the_same(pipelined, value, accepted):
    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.full((N, 1), value, dtype=torch.float64))

    collector = pipelined(Counting(), policy, frames_per_batch=N, total_frames=N)
    if accepted:
        (batch,) = collector
        assert torch.equal(batch["action"], torch.full((N, 1, 1), 0.5))
    else:
        with pytest.raises(CollectorError, match="action"):
            list(collector)
