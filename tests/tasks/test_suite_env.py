"""Behaviour that the tasks of both suites share."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import unilab
from unilab import registry
from unilab.errors import CapabilityError, ConfigError, NonFiniteError
from unilab.tasks import SUITES
from unilab.tasks.suites.env import SuiteEnv

GYM, DMC = "gym/Hopper-v5", "dmc/walker-run"
EXTRAS = {"gym": GYM, "dmc": DMC}

for package in SUITES.values():
    pytest.importorskip(package)


def make(task: str, num_envs: int = 2, seed: int = 0, **overrides: object) -> SuiteEnv:
    overrides = {"num_threads": 1, **overrides}
    env = unilab.make(task, num_envs=num_envs, seed=seed, overrides=overrides)
    assert isinstance(env, SuiteEnv)
    return env


both = pytest.mark.parametrize("task", [GYM, DMC])


@both
def test_a_seed_repeats_a_rollout_and_another_does_not(task: str) -> None:
    def rollout(seed: int) -> torch.Tensor:
        env = make(task, num_envs=3, seed=seed)
        torch.manual_seed(0)
        data = env.rollout(20, break_when_any_done=False)["next", "obs"]
        env.close()
        return data

    assert torch.equal(rollout(1), rollout(1))
    assert not torch.equal(rollout(1), rollout(2))


@pytest.mark.parametrize(
    "task", ["gym/Humanoid-v5", "dmc/humanoid-run", "dmc/cheetah-run", "dmc/dog-run"]
)
def test_a_reset_leaves_the_other_rows_alone(task: str) -> None:
    env = make(task, num_envs=3)
    data = env.rollout(5)[:, -1]["next"]
    last, state = data["obs"].clone(), env.backend.get_replay_state().clone()
    data["_reset"] = torch.tensor([[False], [True], [False]])
    begun = env.reset(data)

    assert torch.equal(begun["obs"][[0, 2]], last[[0, 2]])
    assert not torch.equal(begun["obs"][1], last[1])
    assert torch.equal(env.backend.get_replay_state()[[0, 2]], state[[0, 2]])
    assert env.episode_length.tolist() == [5, 0, 5]
    assert env.data["time"][1] == 0.0
    env.close()


@both
def test_the_time_limit_truncates(task: str) -> None:
    seconds = {GYM: 0.024, DMC: 0.075}[task]
    env = make(task, episode_length_s=seconds)
    data = env.rollout(3, break_when_any_done=False)["next"]
    env.close()

    assert data["truncated"][:, :, 0].int().tolist() == [[0, 0, 1]] * 2
    assert not data["terminated"].any()


def test_first_episodes_may_begin_at_random_points_of_their_time() -> None:
    env = make(GYM, num_envs=50, init_at_random_ep_len=True)
    env.reset()
    first = env.episode_length.clone()
    env.reset()
    env.close()

    assert first.float().std() > 100
    assert env.episode_length.eq(0).all()


def test_episode_metrics_add_up_to_the_return() -> None:
    env = make("gym/Ant-v5", episode_length_s=1.0, terminate_when_unhealthy=False)
    total = env.rollout(20, break_when_any_done=False)["next", "reward"].sum(1).mean().item()
    env.reset()
    metrics = env.drain_metrics()
    env.close()

    terms = {k: v for k, v in metrics.items() if k.startswith("Episode_Reward/")}
    assert [k.partition("/")[2] for k in terms] == ["forward", "ctrl", "contact", "survive"]
    assert sum(terms.values()) == pytest.approx(total, rel=1e-5)
    assert metrics["Episode_Termination/time_out"] == 1.0
    assert metrics["Episode_Termination/terminated"] == 0.0


def test_a_step_past_the_end_does_not_end_an_episode_again() -> None:
    env = make(DMC, episode_length_s=0.1)
    root = env.reset()
    for _ in range(env.max_episode_length + 3):
        root = env.step(env.rand_action(root))["next"].exclude("reward")
    env.reset()
    assert env.drain_metrics()["Episode_Termination/time_out"] == 1.0
    env.close()


def test_physics_that_diverges_names_its_rows() -> None:
    env = make(GYM, num_envs=4)
    root = env.reset()
    env.data["qvel"][2] = torch.nan
    with pytest.raises(NonFiniteError, match=r"observation.*\[2"):
        env.step(env.rand_action(root))
    env.close()


@pytest.mark.parametrize(
    ("task", "name", "value"),
    [
        ("gym/HalfCheetah-v5", "episode_length_s", 0),
        ("gym/Ant-v5", "healthy_z_range", [1.0, 0.2]),
        ("dmc/walker-run", "move_speed", -1.0),
        ("dmc/quadruped-run", "move_speed", 0.0),
    ],
)
def test_a_bad_value_is_refused_by_name(task: str, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        registry.factory(task, num_envs=1, overrides={name: value})


@pytest.mark.parametrize("suite", SUITES)
def test_a_missing_suite_names_the_extra(suite: str, monkeypatch, capsys) -> None:
    from unilab.cli import main

    # An entry of None is how Python notes that an import is barred.
    monkeypatch.setitem(sys.modules, SUITES[suite], None)
    extra = f'pip install "unilab-torchrl[{suite}]"'
    with pytest.raises(CapabilityError, match=rf"unilab-torchrl\[{suite}\]"):
        unilab.make(EXTRAS[suite])
    assert main(["list"]) == 0
    hinted = [line.split()[0] for line in capsys.readouterr().out.splitlines() if extra in line]
    assert hinted == [name for name in registry.names() if name.startswith(f"{suite}/")]


@pytest.mark.slow
@both
def test_the_suite_is_not_imported_and_nothing_is_printed(task: str) -> None:
    code = (
        f"import sys, unilab; env = unilab.make({task!r}); env.reset(); env.close();"
        f"sys.exit({SUITES[task[:3]]!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
