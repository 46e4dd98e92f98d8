"""General settings of a run: relations between values, and what is derived from them."""

from __future__ import annotations

import os

import pytest
import torch

from unilab.conf import compose
from unilab.errors import ConfigError, PlacementError
from unilab.settings import OffPolicyCfg, OnPolicyCfg, TrainingCfg

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"learning_starts": 100, "batch_size": 512}, "learning_starts"),
        ({"learning_starts": 2000, "total_frames": 2000}, "total_frames"),
        ({"replay_capacity": 600, "learning_starts": 2000}, "replay_capacity"),
        ({"replay_capacity": 30_000, "n_step": 200}, "replay_capacity"),
    ],
)
def test_run_that_would_never_update_is_refused(values, name):
    with pytest.raises(ConfigError, match=name):
        OffPolicyCfg(**values)


def test_a_rollout_of_one_transition_is_refused():
    with pytest.raises(ConfigError, match=r"num_envs \* num_steps"):
        OnPolicyCfg(num_envs=1, num_steps=1, num_minibatches=1)


def test_frames_left_are_whole_steps_of_all_environments():
    algo = OffPolicyCfg(
        num_envs=16, total_frames=1000, batch_size=8, learning_starts=100, updates_per_step=2
    )
    assert algo.planned_updates() == 56 * 2
    assert [algo.frames_left(done) for done in (0, 992)] == [1008, 16]
    assert [algo.random_frames_left(done) for done in (0, 64, 112)] == [112, 48, 0]
    # Of two ranks, which share the steps and fill a buffer each:
    assert algo.planned_updates(2) == 25 * 2
    assert [algo.frames_left(done, 2) for done in (0, 992)] == [512, 16]
    assert [algo.random_frames_left(done, 2) for done in (0, 64, 224)] == [112, 80, 0]
    with pytest.raises(ConfigError, match="total_frames"):
        algo.frames_left(1008)
    assert OffPolicyCfg(random_warmup=False).random_frames_left(0) == 0


def test_cuda_without_a_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PlacementError, match=r"training\.device"):
        TrainingCfg(device="cuda").resolve_device()
    assert TrainingCfg().resolve_device() == CPU


def test_auto_pipelines_if_the_learner_is_on_an_accelerator():
    assert TrainingCfg().resolve_collector(CPU) == "sync"
    assert TrainingCfg().resolve_collector(CUDA) == "pipelined"
    assert TrainingCfg(collector="sync").resolve_collector(CUDA) == "sync"


@pytest.mark.parametrize(
    ("cores", "omp", "settings", "device", "threads"),
    [
        (3, None, {}, CPU, (3, 3)),
        (3, None, {"num_threads": 7}, CPU, (7, 3)),
        (3, "2", {}, CPU, (2, 3)),
        (3, "8", {}, CPU, (3, 3)),
        (3, "1", {"num_threads": 2}, CPU, (2, 3)),
        (7, None, {"devices": ("cpu", "cpu")}, CPU, (3, 3)),
        (1, None, {"devices": ("cpu", "cpu")}, CPU, (1, 1)),
        (6, None, {"collector": "pipelined"}, CPU, (6, 6)),
        (6, None, {"collector": "pipelined"}, CUDA, (1, 5)),
        (6, None, {"collector": "pipelined", "num_threads": 2}, CUDA, (2, 4)),
        (1, None, {"collector": "pipelined"}, CUDA, (1, 1)),
    ],
)
def test_threads_follow_cores_and_devices(monkeypatch, cores, omp, settings, device, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    assert TrainingCfg(**settings).resolve_threads(device, 10**9) == threads


@pytest.mark.parametrize(
    ("overrides", "learner"),
    [
        (["task=pendulum_swingup"], 1),
        (["task=go2_velocity_flat"], 2),
        (["task=go2_velocity_flat", "training.num_threads=1"], 1),
        (["task=dmc/walker-walk"], 8),
        (["task=dmc/walker-walk", "algo.batch_size=128"], 2),
    ],
)
def test_small_networks_and_batches_use_one_thread(monkeypatch, overrides, learner):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cfg = compose(overrides)
    assert cfg.training.resolve_threads(CPU, cfg.algo.update_size()) == (learner, 8)
