"""What TorchRL's Collector takes is taken here as well, and gives the same data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference.awkward import Agents, Choosing, Choosy, Guided, making
from reference.collecting import assert_same, sync
from reference.counting import Counting
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import LazyTensorStorage, OneHot, TensorDictReplayBuffer
from torchrl.envs import ActionMask, EnvBase, MultiStepTransform, TransformedEnv
from torchrl.modules import EGreedyModule, QValueActor

from unilab.errors import CollectorError

pytestmark = pytest.mark.usefixtures("warm_start")
N = 3


def normalising(td: TensorDictBase) -> TensorDictBase:
    td["obs"] = td["obs"] / 10.0
    return td.set("action", td["obs"][:, :1])


def reusing() -> Callable[[TensorDictBase], TensorDictBase]:
    action, calls = torch.zeros(N, 1), torch.zeros(N, 1)

    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("calls", calls.add_(1.0)).set("action", torch.div(calls, 10.0, out=action))

    return policy


def greedy() -> nn.Module:
    spec = OneHot(4, shape=(N, 4))
    values = QValueActor(nn.Linear(2, 4), in_keys=["obs"], spec=spec)
    return TensorDictSequential(values, EGreedyModule(spec, annealing_num_steps=20))


def several(td: TensorDictBase) -> TensorDictBase:
    return td.set(("agents", "action"), td["agents", "obs"][..., :1] / 10.0)


def guiding(td: TensorDictBase) -> TensorDictBase:
    return td.set("action", torch.zeros(N, 1)).set("goal", torch.rand(N, 1))


def masked() -> EnvBase:
    return TransformedEnv(making(Choosy)(), ActionMask())


CASES: dict[str, tuple[Callable[[], EnvBase], Callable[[], Any]]] = {
    "a policy that changes what it observes": (Counting(), lambda: normalising),
    "two agents": (making(Agents), lambda: several),
    "state that the policy gives": (making(Guided), lambda: guiding),
}


@pytest.mark.parametrize("ticks", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_same(pipelined, case, ticks):
    make_env, make_policy = CASES[case]
    data = []
    for kind in (pipelined, sync):
        collector = kind(make_env, make_policy(), frames_per_batch=ticks * N, total_frames=12 * N)
        torch.manual_seed(0)
        data.append([batch.clone() for batch in collector])
    assert_same(*data)
    for ours, theirs in zip(*data, strict=True):
        for key, value in ours.items(True):
            if isinstance(value, TensorDictBase):
                assert value.batch_size == theirs[key].batch_size, key


@pytest.mark.parametrize("ticks", [1, 3])
def test_a_policy_may_write_into_the_same_tensors_at_each_tick(pipelined, ticks):
    """Where a Collector's batch of several ticks has the last tick's values in all of them."""
    collector = pipelined(
        Counting(), reusing(), frames_per_batch=ticks * N, total_frames=6 * N, return_same_td=True
    )
    data = torch.cat([batch.clone() for batch in collector], 1)
    assert data["calls"][0].flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(data["action"], data["calls"] / 10.0)


@pytest.mark.parametrize("ticks", [1, 3])
def test_random_actions_are_of_those_that_are_allowed(pipelined, ticks):
    """Where those of a Collector's batch are only at its first tick."""
    for batch in pipelined(masked, None, frames_per_batch=ticks * N, total_frames=12 * N):
        allowed = batch["action_mask"].gather(-1, batch["action"].unsqueeze(-1))
        assert bool(allowed.all())


def test_a_one_hot_of_integers_is_that_of_the_spec(pipelined):
    policy, data = greedy(), []
    for kind in (pipelined, sync):
        collector = kind(making(Choosing), policy, frames_per_batch=N, total_frames=8 * N)
        torch.manual_seed(0)
        data.append([batch.clone() for batch in collector])
    for a, b in zip(*data, strict=True):
        assert a["action"].dtype == torch.bool
        assert torch.equal(a["action"], b["action"].bool())
        assert torch.equal(a["next", "reward"], b["next", "reward"])


@pytest.mark.parametrize(("value", "taken"), [(0.5, True), (0.1, False)])
def test_actions_of_another_dtype_are_taken_where_they_are_the_same_numbers(
    pipelined, value, taken
):
    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.full((N, 1), value, dtype=torch.float64))

    collector = pipelined(Counting(), policy, frames_per_batch=N, total_frames=N)
    if taken:
        (batch,) = collector
        assert torch.equal(batch["action"], torch.full((N, 1, 1), 0.5))
    else:
        with pytest.raises(CollectorError, match="action"):
            list(collector)


def test_state_that_the_policy_does_not_give_is_named(pipelined):
    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.zeros(N, 1))

    with pytest.raises(CollectorError, match="goal"):
        list(pipelined(making(Guided), policy, frames_per_batch=N, total_frames=N))


@pytest.mark.parametrize(("ticks", "n_steps"), [(1, 3), (2, 2), (3, 3)])
def test_torchrls_own_multi_step_returns_are_the_same(pipelined, ticks, n_steps):
    rows = []
    for kind in (pipelined, sync):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(100),
            transform=MultiStepTransform(n_steps=n_steps, gamma=0.9),
            batch_size=4,
        )
        torch.manual_seed(0)
        policy = TensorDictModule(nn.Linear(2, 1), ["obs"], ["action"])
        frames = {"frames_per_batch": ticks * N, "total_frames": 12 * N}
        for _ in kind(Counting(), policy, replay_buffer=buffer, **frames):
            pass
        rows.append(buffer[:])
    ours, theirs = rows
    for key in ("obs", "action", ("next", "obs"), ("next", "reward"), "steps_to_next_obs"):
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("returned", [None, torch.zeros(N, 1)], ids=["None", "tensor"])
def test_a_policy_that_returns_no_tensordict_is_told(pipelined, returned):
    collector = pipelined(Counting(), lambda td: returned, frames_per_batch=N)
    with pytest.raises(CollectorError, match="policy must return"):
        next(iter(collector))
