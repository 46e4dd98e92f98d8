"""Our environments in TorchRL's own multi-process collectors."""

from __future__ import annotations

import pytest
import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer

import unilab


@pytest.mark.slow
def test_two_collector_processes_of_torchrl_fill_a_shared_buffer():
    make_env = unilab.registry.factory(
        "pendulum_swingup", num_envs=2, seed=0, overrides={"num_threads": 1}
    )
    buffer = ReplayBuffer(storage=LazyTensorStorage(200, ndim=2), batch_size=8, shared=True)
    collector = Collector(
        make_env,
        None,
        num_collectors=2,
        frames_per_batch=8,
        total_frames=48,
        replay_buffer=buffer,
    )
    for _ in collector:
        pass
    collector.shutdown()
    rows = buffer[:]
    assert rows.numel() >= 48
    assert rows["next", "reward"].isfinite().all()
    assert len(torch.unique(rows["obs"].reshape(-1, 3), dim=0)) > 8
