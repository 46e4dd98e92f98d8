"""A policy that keeps state in its TensorDict gets it as under TorchRL's synchronous collector."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from reference.counting import Counting
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Bounded
from torchrl.envs import EnvBase, InitTracker, StepCounter, TransformedEnv
from torchrl.modules import GRUModule, LSTMModule, OrnsteinUhlenbeckProcessModule

from unilab.collectors import PipelinedCollector

pytestmark = pytest.mark.usefixtures("warm_start")
N = 3


def counting() -> EnvBase:
    return TransformedEnv(Counting()(), InitTracker())


def gru() -> GRUModule:
    return GRUModule(input_size=2, hidden_size=4, in_key="obs", out_key="features")


def lstm() -> LSTMModule:
    return LSTMModule(input_size=2, hidden_size=4, in_key="obs", out_key="features")


def primed() -> EnvBase:
    return counting().append_transform(gru().make_tensordict_primer())


def primed_lstm() -> EnvBase:
    return counting().append_transform(lstm().make_tensordict_primer())


def acting(memory: nn.Module) -> TensorDictModuleBase:
    head = TensorDictModule(nn.Linear(4, 1), ["features"], ["action"])
    return TensorDictSequential(memory, head)


def recurrent() -> TensorDictModuleBase:
    return acting(gru())


def recurrent_lstm() -> TensorDictModuleBase:
    return acting(lstm())


def noisy() -> TensorDictModuleBase:
    return TensorDictSequential(
        TensorDictModule(nn.Linear(2, 1), ["obs"], ["action"]),
        OrnsteinUhlenbeckProcessModule(spec=Bounded(-1.0, 1.0, (N, 1)), sigma=1.0),
    )


class Nested(TensorDictModuleBase):
    """Counts its calls in the episode, one level down."""

    in_keys, out_keys = ("obs",), ("action", ("memory", "calls"))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        calls = tensordict.get(("memory", "calls"), torch.zeros(N, 1)) + 1
        return tensordict.set(("memory", "calls"), calls).set("action", (calls / 10).clamp(-1, 1))


def collected(kind: type, env: object, policy: object, ticks: int) -> list[TensorDictBase]:
    collector = kind(env, policy, frames_per_batch=N * ticks, total_frames=N * 12)
    torch.manual_seed(1)
    batches = list(collector)
    collector.shutdown()
    return batches


def assert_same(ours: list[TensorDictBase], theirs: list[TensorDictBase]) -> None:
    assert sum(int(batch["next", "done"].sum()) for batch in ours) >= 2
    for a, b in zip(ours, theirs, strict=True):
        assert set(a.keys(True, True)) == set(b.keys(True, True))
        for key in a.keys(True, True):
            assert torch.equal(a[key], b[key]), key


@pytest.mark.parametrize("ticks", [1, 3])
@pytest.mark.parametrize(
    ("make", "policy"), [(primed, recurrent), (counting, noisy), (counting, Nested)]
)
def test_a_policys_own_entries_come_back_at_the_next_tick_and_begin_anew_with_the_episode(
    make: Callable[[], EnvBase], policy: Callable[[], TensorDictModuleBase], ticks: int
):
    torch.manual_seed(0)
    acting = policy()
    ours = collected(PipelinedCollector, make, acting, ticks)
    assert_same(ours, collected(Collector, make(), acting, ticks))


@pytest.mark.parametrize("ticks", [1, 4])
@pytest.mark.parametrize(("primed", "policy"), [(primed, recurrent), (primed_lstm, recurrent_lstm)])
def test_a_recurrent_policy_needs_no_primer(
    primed: Callable[[], EnvBase], policy: Callable[[], TensorDictModuleBase], ticks: int
):
    """The data are those of TorchRL's collector over an environment that has one."""
    torch.manual_seed(0)
    acting = policy()
    ours = collected(PipelinedCollector, counting, acting, ticks)
    assert_same(ours, collected(Collector, primed(), acting, ticks))


@pytest.mark.parametrize("ticks", [1, 4])
def test_what_a_function_writes_under_next_comes_to_the_root_from_the_second_tick_on(ticks: int):
    def counts(td: TensorDictBase) -> TensorDictBase:
        td["next", "n"] = td.get("n", torch.zeros(N, 1)) + 1
        return td.set("action", torch.zeros(N, 1))

    data = torch.cat(collected(PipelinedCollector, counting, counts, ticks), 1)
    assert torch.equal(data["n"][..., 0], data["obs"][..., 1])
    assert torch.equal(data["next", "n"], data["n"] + 1)


def test_they_begin_anew_as_well_where_all_episodes_end_at_once_which_torchrls_do_not():
    def counts(td: TensorDictBase) -> TensorDictBase:
        td["n"] = td.get("n", torch.zeros(N, 1)) + 1
        return td.set("action", torch.zeros(N, 1))

    def in_step() -> EnvBase:
        return TransformedEnv(counting(), StepCounter(max_steps=3))

    ours = torch.cat(collected(PipelinedCollector, in_step, counts, 1), 1)
    theirs = torch.cat(collected(Collector, in_step(), counts, 1), 1)
    assert ours["n"][0, :, 0].tolist() == [1, 2, 3] * 4
    assert theirs["n"][0, :, 0].tolist() == list(range(1, 13))


def test_making_a_collector_draws_nothing_and_does_not_try_the_policy():
    def never(td: TensorDictBase) -> TensorDictBase:
        raise AssertionError

    torch.manual_seed(5)
    before = torch.get_rng_state()
    PipelinedCollector(counting, never, frames_per_batch=N).shutdown()
    assert torch.equal(torch.get_rng_state(), before)
