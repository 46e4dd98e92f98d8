"""Configuration: checked keys, types and ranges, and what is derived from it."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torchrl.data import Bounded

from unilab.errors import ConfigError, PlacementError
from unilab.trainers import TrainCfg
from unilab.trainers.config import AlgoCfg, TrainingCfg
from unilab.trainers.config_dict import check_key


def cfg(**values):
    return TrainCfg.from_dict({"task": "pendulum_swingup", **values})


def test_what_is_left_out_has_the_papers_defaults():
    params = cfg().algo.algo_params
    assert (params.actor_hidden_dim, params.critic_hidden_dim, params.num_bins) == (128, 256, 101)
    assert (params.lr, params.lr_end, params.tau, params.alpha_init) == (3e-4, 1.5e-4, 0.01, 0.01)


def test_a_configuration_survives_the_way_through_plain_dicts():
    given = cfg(algo={"num_envs": 3, "algo_params": {"lr": 1e-3}}, env={"rewards": {"a": 1}})
    assert TrainCfg.from_dict(given.to_dict()) == given


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alg": {}}, r"unknown key 'alg' \(did you mean 'algo'\?\): the top level has task, algo"),
        ({"algo": {"num_env": 1}}, r"unknown key 'algo.num_env' \(did you mean 'num_envs'"),
        (
            {"algo": {"algo_params": {"learning_rate": 1}}},
            r"unknown key 'algo.algo_params.learning_rate'.*: algo.algo_params has .*lr_end",
        ),
        ({"algo": {"num_envs": "many"}}, "algo.num_envs='many': expected int, got str"),
        ({"algo": {"num_envs": 1.5}}, "algo.num_envs=1.5: expected int, got float"),
        ({"algo": {"num_envs": True}}, "algo.num_envs=True: expected int, got bool"),
        ({"algo": {"gamma": "high"}}, "algo.gamma='high': expected float, got str"),
        ({"algo": 3}, "algo: expected a mapping, got 3"),
        ({"algo": {"name": "flashsack"}}, r"algo.name='flashsack' \(did you mean 'flashsac'"),
        (
            {"algo": {"algo_params": {"actor_config": {"biulder": "a:b"}}}},
            r"unknown key 'algo.algo_params.actor_config.biulder' \(did you mean 'builder'",
        ),
        (
            {"algo": {"algo_params": {"actor_config": {"kwargs": {}}}}},
            "algo.algo_params.actor_config.builder is missing",
        ),
        (
            {"algo": {"algo_params": {"actor_config": "a:b"}}},
            "algo.algo_params.actor_config: expected a mapping, got 'a:b'",
        ),
        ({"training": {"device": "gpu"}}, "training.device='gpu'.*one of auto, cpu, cuda"),
        ({"training": {"seed": None}}, "training.seed=None: expected int, got NoneType"),
        ({"env": [1]}, r"env: expected a mapping, got \[1\]"),
        ({"env": 5}, "env: expected a mapping, got 5"),
        ({"task": 1}, "task=1: expected str, got int"),
    ],
)
def test_a_key_or_type_that_does_not_fit_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        cfg(**values)


def test_the_task_is_required():
    with pytest.raises(ConfigError, match="task is missing: give it a value"):
        TrainCfg.from_dict({})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algo": {"num_envs": 0}}, "algo.num_envs=0: must be at least 1"),
        ({"algo": {"total_frames": 0}}, "algo.total_frames=0: must be at least 1"),
        ({"algo": {"batch_size": -1}}, "algo.batch_size=-1: must be at least 1"),
        ({"algo": {"gamma": 1.5}}, "algo.gamma=1.5: must be at most 1.0"),
        ({"algo": {"gamma": 0.0}}, "algo.gamma=0.0: must be above 0"),
        ({"algo": {"gamma": float("nan")}}, "algo.gamma=nan: expected a finite number"),
        ({"algo": {"learning_starts": 100}}, "learning_starts=100 is below .*batch_size=512"),
        (
            {"algo": {"replay_capacity": 600}},
            "replay_capacity=600 is below .*learning_starts=20000",
        ),
        (
            {"algo": {"n_step": 5000}},
            "n_step=5000 steps of .*num_envs=256 are more than .*replay_capacity=1000000",
        ),
        ({"training": {"run_dir": ""}}, "training.run_dir is empty: name a folder"),
        ({"training": {"resume": ""}}, "training.resume is empty: name a folder"),
        ({"algo": {"algo_params": {"num_bins": 1}}}, "algo_params.num_bins=1: must be at least 2"),
        ({"algo": {"algo_params": {"v_min": 6.0}}}, "v_min must be below .*v_max: 6.0, 5.0"),
        ({"algo": {"algo_params": {"tau": 2.0}}}, "algo_params.tau=2.0: must be at most 1.0"),
        ({"algo": {"algo_params": {"lr": 0.0}}}, "algo_params.lr=0.0: must be above 0"),
        (
            {"algo": {"algo_params": {"lr_end": -1.0}}},
            "algo_params.lr_end=-1.0: must be at least 0",
        ),
        ({"algo": {"algo_params": {"bc_alpha": -1.0}}}, "bc_alpha=-1.0: must be at least 0"),
        ({"algo": {"algo_params": {"lr": math.inf}}}, "lr=inf: expected a finite number"),
        ({"training": {"seed": 2**32}}, "training.seed=4294967296: must be at most 4294967295"),
        ({"training": {"seed": -1}}, "training.seed=-1: must be at least 0"),
        ({"training": {"eval_interval": 0}}, "training.eval_interval=0: must be at least 1"),
        ({"training": {"max_minutes": 0.0}}, "training.max_minutes=0.0: must be above 0"),
        ({"training": {"keep_checkpoints": 0}}, "keep_checkpoints=0: must be at least 1"),
        ({"training": {"num_threads": 0}}, "training.num_threads=0: must be at least 1"),
    ],
)
def test_a_value_that_cannot_train_is_named_with_its_limit(values, message):
    with pytest.raises(ConfigError, match=message):
        cfg(**values)


def test_whole_floats_are_counts_and_integers_are_floats():
    algo = cfg(algo={"total_frames": 1e6, "gamma": 1}).algo
    assert (algo.total_frames, type(algo.total_frames)) == (1_000_000, int)
    assert (algo.gamma, type(algo.gamma)) == (1.0, float)


def test_the_actor_to_build_is_the_injected_one_or_the_built_in_one_in_the_envs_range():
    range_ = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 2.0])).expand(4, 2)
    built_in = cfg(algo={"algo_params": {"actor_hidden_dim": 8}}).algo.algo_params
    assert built_in.actor_spec(range_).to_dict() == {
        "builder": "unilab.modules:FlashSACActor",
        "kwargs": {
            "hidden_dim": 8,
            "num_blocks": 2,
            "action_low": [-1.0, 0.0],
            "action_high": [1.0, 2.0],
        },
    }
    custom = {"builder": "my.actor", "kwargs": {"width": 3}}
    given = cfg(algo={"algo_params": {"actor_config": custom}})
    assert given.algo.algo_params.actor_spec(range_).to_dict() == {
        "builder": "my:actor",
        "kwargs": {"width": 3},
    }
    assert TrainCfg.from_dict(given.to_dict()) == given


@pytest.mark.parametrize(
    "key",
    [
        "task",
        "algo",
        "algo.algo_params.lr",
        "algo.algo_params.actor_config.builder",
        "algo.algo_params.actor_config.kwargs.a.b",
        "env.anything.below",
    ],
)
def test_existing_keys_are_known(key):
    check_key(TrainCfg, key)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("training.seeds", r"'training.seeds' \(did you mean 'seed'"),
        ("algo.gamma.x", "algo.gamma is a single value and has no keys below it"),
        ("algo.algo_params.actor_config.class", "'algo.algo_params.actor_config.class'"),
    ],
)
def test_keys_that_do_not_exist_are_named(key, message):
    with pytest.raises(ConfigError, match=message):
        check_key(TrainCfg, key)


def test_planned_updates_are_those_after_the_warm_up():
    algo = AlgoCfg(num_envs=10, total_frames=1000, learning_starts=600, updates_per_step=2)
    assert algo.planned_updates() == 40 * 2


def test_frames_left_are_whole_steps_of_all_environments():
    algo = AlgoCfg(num_envs=16, total_frames=100)
    assert algo.frames_left(0) == 112
    assert algo.frames_left(96) == 16


def test_a_finished_run_says_how_to_go_on():
    with pytest.raises(ConfigError, match=r"taken all of its algo.total_frames=100.*=224"):
        AlgoCfg(num_envs=16, total_frames=100).frames_left(112)


def test_random_warm_up_is_not_repeated_by_a_resumed_run():
    algo = AlgoCfg(num_envs=16, learning_starts=100)
    assert [algo.random_frames_left(done) for done in (0, 64, 112)] == [112, 48, 0]
    assert AlgoCfg(random_warmup=False).random_frames_left(0) == 0


def test_cuda_without_a_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PlacementError, match=r"training.device=cuda.*use training.device=cpu"):
        TrainingCfg(device="cuda").resolve_device()
    assert TrainingCfg(device="auto").resolve_device() == torch.device("cpu")


def test_threads_default_to_the_cores_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cpu = torch.device("cpu")
    assert TrainingCfg().resolve_threads(cpu) == (3, 3)
    assert TrainingCfg(num_threads=7).resolve_threads(cpu) == (7, 3)
    for wanted, threads in (("1", 1), ("2", 2), ("8", 3), ("", 3), ("2,1", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)  # of torch: physics has its own setting
        assert TrainingCfg().resolve_threads(cpu) == (threads, 3)
        assert TrainingCfg(num_threads=2).resolve_threads(cpu) == (2, 3)


def test_threads_beside_a_learner_on_an_accelerator_are_for_physics(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pipelined, cuda = TrainingCfg(collector="pipelined"), torch.device("cuda")
    assert pipelined.resolve_threads(torch.device("cpu")) == (6, 6)
    assert pipelined.resolve_threads(cuda) == (1, 5)
    assert TrainingCfg(collector="pipelined", num_threads=2).resolve_threads(cuda) == (2, 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert pipelined.resolve_threads(cuda) == (1, 1)


def test_auto_pipelines_where_the_learner_is_on_an_accelerator():
    assert TrainingCfg().resolve_collector(torch.device("cpu")) == "sync"
    assert TrainingCfg().resolve_collector(torch.device("cuda")) == "pipelined"
    assert TrainingCfg(collector="sync").resolve_collector(torch.device("cuda")) == "sync"
