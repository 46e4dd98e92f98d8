"""One call for the collector of a training loop, in turns with the learner or beside it."""

from __future__ import annotations

import pytest
import torch
from torchrl.collectors import Collector

import unilab
from unilab.collectors import (
    EnvProcess,
    PipelinedCollector,
    make_collector,
    resolve_collector_tensor_placement,
)
from unilab.modules import FlashSACActor, FlashSACPolicy

N, TICKS = 3, 8
make_env = unilab.registry.factory(
    "pendulum_swingup", num_envs=N, seed=0, overrides={"episode_length_s": 0.1, "num_threads": 1}
)


@pytest.mark.parametrize(("own_process", "kind"), [(False, Collector), (True, PipelinedCollector)])
def test_the_environment_decides_whether_it_steps_in_turns_or_at_the_same_time(own_process, kind):
    torch.manual_seed(0)
    policy = FlashSACPolicy(FlashSACActor(3, 1, hidden_dim=8, num_blocks=1))
    collector = make_collector(
        EnvProcess(make_env) if own_process else make_env(),
        policy,
        placement=resolve_collector_tensor_placement("auto", torch.device("cpu")),
        frames_per_batch=N,
        total_frames=TICKS * N,
    )
    try:
        assert type(collector) is kind
        starts, frames = [], 0
        for data in collector:
            frames += data.numel()
            starts.append(data["is_init"].flatten().clone())
            assert ("collector", "traj_ids") not in data.keys(True)
    finally:
        collector.shutdown()
    assert frames == TICKS * N
    # Episodes of five steps: noise restarts at the first and at the sixth.
    assert [bool(s.all()) for s in starts] == [i % 5 == 0 for i in range(TICKS)]
    assert [bool(s.any()) for s in starts] == [i % 5 == 0 for i in range(TICKS)]


def test_batches_of_an_environment_that_steps_in_turns_do_not_share_memory():
    collector = make_collector(
        make_env(),
        FlashSACPolicy(FlashSACActor(3, 1, hidden_dim=8, num_blocks=1)),
        placement=resolve_collector_tensor_placement("auto", torch.device("cpu")),
        frames_per_batch=N,
        total_frames=TICKS * N,
    )
    batches = [(batch, batch.clone()) for batch in collector]
    collector.shutdown()
    assert len(batches) == TICKS
    assert all((batch == as_it_was).all() for batch, as_it_was in batches)
