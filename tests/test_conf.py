"""The packaged configuration and what overrides make of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml

from unilab import registry
from unilab.conf import compose, tasks
from unilab.errors import CheckpointError, ConfigError
from unilab.record import RunFolder
from unilab.trainers import TrainCfg


def leaves(values, path=""):
    if isinstance(values, dict) and values:
        return {
            k: v for key, inner in values.items() for k, v in leaves(inner, f"{path}.{key}").items()
        }
    return {path: values}


@pytest.fixture
def run(tmp_path):
    """A run that was started with 8 environments and a seed of 5."""
    folder = RunFolder.create("pendulum_swingup", 5, path=tmp_path / "run")
    cfg = compose(["task=pendulum_swingup", "algo.num_envs=8", "training.seed=5"])
    folder.write_config(cfg.to_dict())
    return folder


def test_every_task_has_a_configuration_that_its_environment_accepts():
    assert tasks() == registry.names()
    for task in tasks():
        cfg = compose([f"task={task}"])
        assert cfg.task == task
        registry.factory(task, num_envs=cfg.algo.num_envs, overrides=cfg.env)


@pytest.fixture
def own(monkeypatch):
    """A registry with a task of a user's own."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    settings = {"algo": {"num_envs": 5, "algo_params": {"tau": 0.5}}}
    registry.register("mine/swing", registry._registered["pendulum_swingup"], training=settings)


def test_a_registered_task_composes_with_its_own_settings(own):
    cfg = compose(["task=mine/swing", "algo.batch_size=7"])
    assert cfg.task == "mine/swing"
    assert (cfg.algo.num_envs, cfg.algo.batch_size, cfg.algo.algo_params.tau) == (5, 7, 0.5)
    assert cfg.algo.gamma == TrainCfg(task="x").algo.gamma
    assert tasks() == sorted(set(registry.names()) - {"mine/swing"})


def test_a_setting_of_a_registered_task_that_does_not_exist_is_refused(own):
    swing = registry._registered["pendulum_swingup"]
    registry.register("typo", swing, training={"algo": {"num_env": 5}})
    with pytest.raises(ConfigError, match=r"num_env\b.*did you mean 'num_envs'"):
        compose(["task=typo"])


def test_the_default_task_is_the_go2():
    assert compose().task == "go2_velocity_flat"


def test_the_yaml_has_every_key_with_the_dataclass_default():
    written = yaml.safe_load((files("unilab.conf.flashsac") / "config.yaml").read_text())
    del written["defaults"], written["hydra"]
    assert TrainCfg.from_dict({"task": "x", **written}) == TrainCfg(task="x")
    defaults = leaves(TrainCfg(task="x").to_dict())
    assert leaves(written).keys() == defaults.keys() - {".task"}


def test_overrides_reach_every_level():
    cfg = compose(
        [
            "task=pendulum_swingup",
            "algo.num_envs=3",
            "algo.algo_params.lr=1e-3",
            "training.run_dir=here",
            "env.episode_length_s=5.0",
            "env.rewards.upright.weight=2.0",
        ]
    )
    assert (cfg.algo.num_envs, cfg.algo.algo_params.lr, cfg.training.run_dir) == (3, 1e-3, "here")
    assert cfg.env == {"episode_length_s": 5.0, "rewards": {"upright": {"weight": 2.0}}}
    env = registry.make(cfg.task, num_envs=1, overrides=cfg.env)
    assert env.max_episode_length * env.step_dt == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task=pendulum_swing",
            r"no task named 'pendulum_swing' \(did you mean 'pendulum_swingup'",
        ),
        ("algo.num_env=2", r"unknown key 'algo.num_env' \(did you mean 'num_envs'"),
        ("+algo.num_env=2", r"unknown key 'algo.num_env' \(did you mean 'num_envs'"),
        ("trainin.seed=2", r"unknown key 'trainin.seed' \(did you mean 'training'"),
        ("algo.num_envs=0", "algo.num_envs=0: must be at least 1"),
        ("algo.num_envs=few", "algo.num_envs='few': expected int, got str"),
        ("algo.num_envs", r"cannot read override 'algo.num_envs' .*: write key=value"),
        ("training.seed=[1", r"cannot read override 'training.seed=\[1' "),
        ("~algo", "~algo: nothing can be taken away, .*: give algo the value that it is to have"),
        ("~algo.gamma", "~algo.gamma: nothing can be taken away"),
        ("training.run_dir=it's", r"""quoted: 'training.run_dir="it'"'"'s"'$"""),
        ("training.resume=[a]", r"training.resume=\['a'\]: expected the path of a run folder; one"),
        ("training.resume=1e3", r"training.resume=1000.0: expected the path of a run folder; one"),
        ("algo.algo_params.v_max=inf", "algo.algo_params.v_max=inf: expected a finite number"),
        ("algo.algo_params.lr_end=nan", "algo.algo_params.lr_end=nan: expected a finite number"),
        ("training.run_dir=/größe", r"write key=value, .* quoted: 'training.run_dir=\"/größe\"'$"),
    ],
)
def test_a_bad_override_is_one_line_with_the_way_out(override, message):
    with pytest.raises(ConfigError, match=message) as error:
        compose([override])
    assert "\n" not in str(error.value)


def test_a_bad_environment_override_is_found_before_anything_is_built():
    cfg = compose(["task=pendulum_swingup", "env.episode_length=5.0"])
    with pytest.raises(ConfigError, match=r"'episode_length'.*did you mean 'episode_length_s'"):
        registry.factory(cfg.task, num_envs=1, overrides=cfg.env)


def test_resuming_takes_the_configuration_of_the_run(run):
    cfg = compose([f"training.resume={run.path}"])
    assert (cfg.task, cfg.algo.num_envs, cfg.training.seed) == ("pendulum_swingup", 8, 5)
    assert cfg.training.resume == str(run.path)


def test_what_is_typed_with_resume_goes_on_top(run):
    cfg = compose([f"training.resume={run.path}", "algo.total_frames=123456", "env.x.y=1"])
    assert (cfg.algo.total_frames, cfg.algo.num_envs) == (123456, 8)
    assert cfg.env == {"x": {"y": 1}}


def test_the_task_may_be_repeated_but_not_changed_with_resume(run):
    assert compose([f"training.resume={run.path}", "task=pendulum_swingup"]).algo.num_envs == 8
    with pytest.raises(
        ConfigError, match=r"task=cartpole_swingup, but .* a run of pendulum_swingup"
    ):
        compose([f"training.resume={run.path}", "task=cartpole_swingup"])


def test_a_resumed_run_stays_in_its_folder(run):
    with pytest.raises(ConfigError, match=r"training.run_dir together with .* leave .*run_dir out"):
        compose([f"training.resume={run.path}", "training.run_dir=elsewhere"])


def test_resuming_what_is_no_run_says_what_a_run_is(tmp_path):
    with pytest.raises(CheckpointError, match=r"is no run folder: a run folder holds run_config"):
        compose([f"training.resume={tmp_path}"])


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("training", "x"),
        ("training", None),
        ("training", "absent"),
        ("algo", [1]),
        ("algo", "absent"),
        ("env", None),
        ("env", "absent"),
    ],
)
def test_a_run_whose_configuration_lacks_a_section_is_not_resumed_with_defaults(
    run, section, value
):
    content = json.loads(run.config_file.read_text())
    content["config"][section] = value
    if value == "absent":
        del content["config"][section]
    run.config_file.write_text(json.dumps(content))
    before = run.config_file.read_bytes()
    with pytest.raises(CheckpointError, match=rf"is damaged \({section} is no table\): restore it"):
        compose([f"training.resume={run.path}"])
    assert run.config_file.read_bytes() == before


def test_settings_of_the_algorithm_are_a_table_too(run):
    content = json.loads(run.config_file.read_text())
    content["config"]["algo"]["algo_params"] = None
    run.config_file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"algo\.algo_params is no table"):
        compose([f"training.resume={run.path}"])


_APP = """
from unilab.conf import hydra_main

def train(cfg):
    print("seed", cfg.training.seed, cfg.env, flush=True)
    return 0

hydra_main(train)()
"""


def test_a_sweep_runs_each_job_and_leaves_only_its_record(tmp_path):
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
