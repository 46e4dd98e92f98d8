"""From Hydra overrides to the settings of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from unilab import registry
from unilab.conf import algorithms, checked_settings, compose, register_algorithm
from unilab.conf.flashsac import FlashSACCfg
from unilab.conf.ppo import PPOAlgoCfg, PPOCfg
from unilab.conf.sac import SACCfg
from unilab.errors import CheckpointError, ConfigError
from unilab.record import RunFolder
from unilab.tasks import SUITE_TASKS


@pytest.fixture
def run(tmp_path):
    """A run that was started with 8 environments and a seed of 5."""
    folder = RunFolder.create("pendulum_swingup", 5, path=tmp_path / "run")
    cfg = compose(["task=pendulum_swingup", "algo.num_envs=8", "training.seed=5"])
    folder.write_config(asdict(cfg))
    return folder


@pytest.mark.slow
def test_every_task_composes_for_its_environment():
    for task in registry.names():
        cfg = compose([f"task={task}"])
        assert cfg.task == task
        assert task not in SUITE_TASKS or cfg.algo.algo_params.lr_decay_steps == 1_000_000
        registry.factory(task, num_envs=cfg.algo.num_envs, overrides=cfg.env)


def test_defaults_are_the_dataclasses_the_go2s_and_the_suites():
    cfg = compose()
    assert cfg.task == "go2_velocity_flat"
    assert cfg.training == FlashSACCfg(task="x").training
    cfg = compose(["task=gym/Ant-v5"])
    assert (cfg.algo.num_envs, cfg.algo.gamma, cfg.training.eval_num_envs) == (1, 0.99, 10)
    assert cfg.algo.algo_params.lr_decay_steps == cfg.algo.total_frames == 1_000_000


@pytest.mark.parametrize("task", ["gym/HalfCheetah-v4", "gym/Hopper-v4"])
def test_tasks_of_published_curves_run_and_evaluate_as_those_did(task):
    cfg = compose([f"task={task}"])
    assert (cfg.task, cfg.algo.total_frames, cfg.training.eval_num_envs) == (task, 100_000, 50)
    algo = cfg.algo
    assert (algo.num_envs, algo.batch_size, algo.algo_params.amp_dtype) == (1, 512, None)
    assert algo.algo_params.lr_decay_steps == 1_000_000


@pytest.mark.parametrize("task", ["go2_velocity_flat", "pendulum_swingup", "gym/Ant-v4"])
def test_massively_parallel_composes_with_a_task(task):
    alone = compose([f"task={task}"])
    cfg = compose([f"+task={task}", "+preset=massively_parallel", "algo.batch_size=4096"])
    algo, paper = cfg.algo, FlashSACCfg(task="x").algo.algo_params
    assert (algo.num_envs, algo.batch_size, algo.updates_per_step) == (1024, 4096, 2)
    assert (algo.replay_capacity, algo.learning_starts) == (10_000_000, 100_000)
    assert algo.algo_params == replace(paper, lr_decay_steps=alone.algo.algo_params.lr_decay_steps)
    assert (algo.gamma, algo.n_step) == (alone.algo.gamma, alone.algo.n_step)
    assert 0.97 <= algo.gamma <= 0.99
    assert 1 <= algo.n_step <= 3
    assert (cfg.training, cfg.env) == (alone.training, alone.env)


@pytest.fixture
def swing(monkeypatch):
    """Registers the pendulum with training settings; returns the override that takes it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_training", dict(registry._training))
    factory = registry._registered["pendulum_swingup"]

    def register(settings):
        registry.register("mine/swing", factory, training=settings)
        return "task=mine/swing"

    return register


def test_registered_task_composes_with_its_own_settings_of_each_algorithm(swing):
    own = {"algo": {"num_envs": 5, "algo_params": {"tau": 0.5}}}
    task = swing({"flashsac": own, "ppo": {"algo": {"num_steps": 9}}})
    cfg = compose([task, "algo.batch_size=7"])
    assert cfg.task == "mine/swing"
    assert (cfg.algo.num_envs, cfg.algo.batch_size, cfg.algo.algo_params.tau) == (5, 7, 0.5)
    ppo, sac = (compose([task, f"algo.name={name}"]) for name in ("ppo", "sac"))
    assert ppo == PPOCfg(task="mine/swing", algo=PPOAlgoCfg(num_steps=9))
    assert sac == SACCfg(task="mine/swing")


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"algo": {"num_envs": 5}}, "training .*algo"), ({"pp0": {}}, r"'pp0' \(did you mean 'ppo'")],
)
def test_registered_settings_of_no_algorithm_are_refused(swing, settings, name):
    with pytest.raises(ConfigError, match=name):
        compose([swing(settings)])


def test_overrides_reach_every_level():
    cfg = compose(
        [
            "task=pendulum_swingup",
            "algo.num_envs=3",
            "algo.total_frames=2e5",
            "algo.algo_params.lr=1e-3",
            "algo.algo_params.actor_config={builder: a:b, kwargs: {width: 3}}",
            "training.run_dir=here",
            "env.episode_length_s=5.0",
            "env.rewards.upright.weight=2.0",
        ]
    )
    assert (cfg.algo.num_envs, cfg.algo.total_frames, cfg.training.run_dir) == (3, 200_000, "here")
    assert cfg.algo.algo_params.lr == 1e-3
    assert cfg.algo.algo_params.actor_config == {"builder": "a:b", "kwargs": {"width": 3}}
    assert cfg.env == {"episode_length_s": 5.0, "rewards": {"upright": {"weight": 2.0}}}
    assert checked_settings(asdict(cfg), FlashSACCfg) == cfg


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("task=pendulum_swing", "pendulum_swingup"),
        ("tsak=pendulum_swingup", "task"),
        ("preset=massive", "preset.*massively_parallel"),
        ("algo.num_env=2", r"algo\.num_env.*num_envs"),
        ("+algo.num_env=2", r"algo\.num_env.*num_envs"),
        ("algo.gamma.x=1", r"algo\.gamma"),
        ("algo.num_envs=0", r"algo\.num_envs"),
        ("algo.num_envs", r"algo\.num_envs"),
        ("algo.name=flashsack", "flashsack.*flashsac"),
        ("training.device=gpu", r"training\.device"),
        ("training.resume=", r"training\.resume"),
        ("training.run_dir=it's", r"training\.run_dir"),
        ("env=5", "env"),
    ],
)
def test_bad_override_is_one_line_with_its_name(override, name):
    with pytest.raises(ConfigError, match=name) as error:
        compose([override])
    assert "\n" not in str(error.value)


def test_resuming_takes_the_settings_of_the_run_and_changes_on_top(run):
    cfg = compose([f"training.resume={run.path}", "algo.total_frames=123456", "env.x.y=1"])
    assert (cfg.task, cfg.algo.num_envs, cfg.training.seed) == ("pendulum_swingup", 8, 5)
    assert (cfg.training.resume, cfg.algo.total_frames) == (str(run.path), 123456)
    assert cfg.env == {"x": {"y": 1}}


@pytest.mark.parametrize(
    "override",
    ["task=cartpole_swingup", "preset=massively_parallel", "training.run_dir=elsewhere"],
)
def test_task_and_folder_of_a_resumed_run_stay(run, override):
    assert compose([f"training.resume={run.path}", "task=pendulum_swingup"]).algo.num_envs == 8
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        compose([f"training.resume={run.path}", override])


@pytest.mark.parametrize("section", ["training", "algo", "env", "algo.algo_params"])
def test_run_without_a_section_is_not_resumed_with_defaults(run, section):
    content = json.loads(run.config_file.read_text())
    *above, key = section.split(".")
    del (content["config"]["algo"] if above else content["config"])[key]
    run.config_file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=section.partition(".")[0]):
        compose([f"training.resume={run.path}"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("flashsac", FlashSACCfg, print), "flashsac"),
        ((3, FlashSACCfg, print), "name"),
        (("two words", FlashSACCfg, print), "name"),
        (("mine", None, print), "cfg"),
        (("mine", FlashSACCfg, None), "train"),
    ],
)
def test_algorithm_that_cannot_be_named_or_run_is_refused(monkeypatch, arguments, named):
    monkeypatch.setattr(algorithms, "_registered", dict(algorithms._registered))
    with pytest.raises(ConfigError, match=named):
        register_algorithm(*arguments)


_APP = """
from unilab.conf.training_command import hydra_main
from unilab.conf.flashsac import FlashSACCfg
from unilab.conf.ppo import PPOAlgoCfg, PPOCfg
from unilab.conf.sac import SACCfg

def train(cfg):
    print("seed", cfg.training.seed, cfg.env, flush=True)
    return 0

hydra_main(train, FlashSACCfg)()
"""


@pytest.mark.parametrize(
    ("command", "given", "spins"),
    [
        ("from unilab.cli import main; main(['train', 'task=go'])", {}, "10000"),
        ("import unilab.examples.train_flashsac", {}, "10000"),
        ("import unilab.examples.train_flashsac", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("import unilab.examples.train_flashsac", {"OMP_WAIT_POLICY": "active"}, "None"),
    ],
)
def test_training_commands_choose_how_threads_wait_before_pytorch_is_imported(
    command, given, spins
):
    program = f"""
import os, sys

class EndsBeforePytorch:
    def find_spec(self, name, *rest):
        if name == "torch":
            sys.exit()

sys.meta_path.insert(0, EndsBeforePytorch())
try:
    {command}
finally:
    print(os.environ.get("GOMP_SPINCOUNT"))
"""
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env | given
    )
    assert done.stdout.split()[-1] == spins, done.stderr


@pytest.mark.slow
def test_sweep_runs_each_job_and_writes_only_its_record(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _APP, "-m", "training.seed=1,2", "env.x=3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["seed 1 {'x': 3}", "seed 2 {'x': 3}"]
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / "runs" / "multirun.yaml"]


@pytest.mark.parametrize("key", ["algo.num_envs", "algo.algo_params", "training"])
def test_removing_a_setting_is_refused(key):
    with pytest.raises(ConfigError, match=f"~{key}"):
        compose(["task=pendulum_swingup", f"~{key}"])
