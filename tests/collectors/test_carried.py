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
from torchrl.envs import EnvBase, InitTracker, TransformedEnv
from torchrl.modules import GRUModule, OrnsteinUhlenbeckProcessModule

from unilab.collectors import PipelinedCollector

N = 3


def counting() -> EnvBase:
    return TransformedEnv(Counting()(), InitTracker())


def gru() -> GRUModule:
    return GRUModule(input_size=2, hidden_size=4, in_key="obs", out_key="features")


def primed() -> EnvBase:
    return counting().append_transform(gru().make_tensordict_primer())


def recurrent() -> TensorDictModuleBase:
    return TensorDictSequential(gru(), TensorDictModule(nn.Linear(4, 1), ["features"], ["action"]))


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


@pytest.mark.parametrize("ticks", [1, 3])
@pytest.mark.parametrize(
    ("make", "policy"), [(primed, recurrent), (counting, noisy), (counting, Nested)]
)
def test_a_policys_own_entries_come_back_at_the_next_tick_and_begin_anew_with_the_episode(
    make: Callable[[], EnvBase], policy: Callable[[], TensorDictModuleBase], ticks: int
):
    kwargs = {"frames_per_batch": N * ticks, "total_frames": N * 12}
    torch.manual_seed(0)
    acting = policy()
    collector = PipelinedCollector(make, acting, **kwargs)
    torch.manual_seed(1)
    ours = list(collector)
    collector.shutdown()
    collector = Collector(make(), acting, trust_policy=True, **kwargs)
    torch.manual_seed(1)
    theirs = list(collector)
    assert sum(int(batch["next", "done"].sum()) for batch in ours) >= 2
    for a, b in zip(ours, theirs, strict=True):
        assert set(a.keys(True, True)) == set(b.keys(True, True))
        for key in a.keys(True, True):
            assert torch.equal(a[key], b[key]), key
