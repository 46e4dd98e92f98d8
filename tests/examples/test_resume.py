"""A resumed run is the run that was never interrupted, bit for bit (0017-C22)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from reference.everything import go2_with_everything
from reference.runs import NETWORKS, TINY, TINY_PPO, TINY_SAC, differing, rows, saved

from unilab import registry
from unilab.conf import compose
from unilab.conf.algorithms import algorithm
from unilab.trainers.checkpoint import as_checkpoint, read_identity, read_states

INTERVALS = [
    "training.collector=sync",
    "training.eval_interval=40",
    "training.checkpoint_interval=80",
    "training.log_interval_s=600",
]
REPLAY = ["algo.n_step=3", "algo.replay_capacity=150", "training.save_replay=true"]
SETTINGS = [*TINY, *NETWORKS, *INTERVALS, *REPLAY, "algo.algo_params.compile=false"]
SAC = [*TINY_SAC, *INTERVALS, *REPLAY, "algo.algo_params.actor_update_period=3"]
PPO = [*TINY_PPO, *INTERVALS]
HALF, END = (f"checkpoints/checkpoint-{frames:012d}" for frames in (80, 160))


def train(cfg: Any) -> int:
    return algorithm(cfg.algo.name).train(cfg)


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered, "go2_with_everything", go2_with_everything)
    monkeypatch.setitem(registry._training, "go2_with_everything", {})


def results(run: Path) -> list[dict[str, str]]:
    """Rows without what depends on time."""
    return [
        {k: v for k, v in row.items() if k != "minutes" and not k.startswith("Perf/")}
        for row in rows(run)
    ]


def from_half(run: Path, resumed: Path) -> Path:
    """A copy of a run as it was after half of its steps."""
    shutil.copytree(run, resumed)
    shutil.rmtree(resumed / END)
    return resumed


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("pendulum_swingup", SETTINGS),
        ("pendulum_swingup", SAC),
        ("pendulum_swingup", PPO),
        pytest.param("go2_with_everything", SETTINGS, marks=pytest.mark.slow),
        pytest.param("go2_with_everything", PPO, marks=pytest.mark.slow),
        pytest.param("gym/Humanoid-v5", SETTINGS, marks=pytest.mark.slow),
        pytest.param("dmc/quadruped-walk", SETTINGS, marks=pytest.mark.slow),
    ],
)
def test_c22_a_resumed_synchronous_run_is_bit_for_bit_the_straight_one(
    task, settings, tmp_path, capfd
):
    straight = tmp_path / "straight"
    assert train(compose([f"task={task}", *settings, f"training.run_dir={straight}"])) == 0
    resumed = from_half(straight, tmp_path / "resumed")
    assert train(compose([f"training.resume={resumed}"])) == 0
    assert "New episodes" not in capfd.readouterr().out
    state = saved(straight / END)
    assert {"episodes.env.generator", "learner.update_count"} <= set(state)
    assert ("replay.length" in state) == (settings is not PPO)
    assert differing(state, saved(resumed / END)) == []
    assert results(straight) == results(resumed)
    assert len(rows(straight)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", ["env.episode_length_s=0.6", "algo.num_envs=5", "training.collector=pipelined"]
)
def test_a_run_that_cannot_continue_its_episodes_begins_new_ones_and_says_so(
    change, tmp_path, capfd
):
    straight = tmp_path / "straight"
    task = ["task=pendulum_swingup", *SETTINGS, f"training.run_dir={straight}"]
    assert train(compose(task)) == 0
    resumed = from_half(straight, tmp_path / "resumed")
    assert train(compose([f"training.resume={resumed}", change])) == 0
    assert "New episodes: " in capfd.readouterr().out
    assert [row["frames"] for row in rows(resumed)][:2] == ["40", "80"]
    assert rows(resumed)[-1]["Loss/qvalue"]


@pytest.mark.slow
def test_a_checkpoint_without_episodes_is_resumed_with_new_ones(tmp_path, capfd):
    run = tmp_path / "run"
    task = ["task=pendulum_swingup", *SETTINGS, f"training.run_dir={run}"]
    assert train(compose(task)) == 0
    identity, names = read_identity(run / END)
    states = read_states(run / END, names - {"episodes"})
    del states["replay"]["transforms"]
    shutil.rmtree(run / END)
    as_checkpoint(states).save(run / END, metadata={"identity": identity})
    assert train(compose([f"training.resume={run}", "algo.total_frames=240"])) == 0
    assert "New episodes: " in capfd.readouterr().out
    assert rows(run)[-1]["frames"] == "240"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["root", "returns", "exploration"])
def test_episodes_with_an_invalid_part_are_left_out_whole(part, tmp_path, capfd):
    run = tmp_path / "run"
    task = ["task=pendulum_swingup", *SETTINGS, f"training.run_dir={run}"]
    assert train(compose(task)) == 0
    identity, names = read_identity(run / END)
    states = read_states(run / END, names)
    episodes = states["episodes"]
    episodes[part] = {k: v[:1] for k, v in episodes[part].items()} if part == "exploration" else {}
    shutil.rmtree(run / END)
    as_checkpoint(states).save(run / END, metadata={"identity": identity})
    assert train(compose([f"training.resume={run}", "algo.total_frames=240"])) == 0
    assert "New episodes: " in capfd.readouterr().out
    assert rows(run)[-1]["frames"] == "240"
