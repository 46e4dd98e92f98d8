"""examples/train_flashsac.py with training.collector=pipelined, as real processes.

Clauses are those of ADR-0001.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "examples" / "train_flashsac.py"
SMALL = [
    "task=pendulum_swingup",
    "algo.num_envs=64",
    "algo.batch_size=64",
    "algo.learning_starts=128",
    "algo.n_step=1",
    "algo.replay_capacity=1000",
    "algo.total_frames=3840",
    "algo.algo_params.actor_hidden_dim=8",
    "algo.algo_params.critic_hidden_dim=8",
    "algo.algo_params.compile=false",
    "training.collector=pipelined",
    "training.num_threads=1",
    "training.device=cpu",
    "training.eval_num_envs=2",
    "env.episode_length_s=0.4",
    "env.num_threads=1",
]
ENDLESS = ["algo.total_frames=1_000_000_000", "training.log_interval_s=0.01"]
SPLIT = ("collect", "learn", "physics", "managers", "reset")

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen] = []

    def start(*arguments: str, command: tuple[str, ...] = (), **kwargs: Any) -> subprocess.Popen:
        process = subprocess.Popen(
            [*command, sys.executable, str(SCRIPT), *SMALL, *arguments],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **kwargs,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def collector_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = {int(c): Path(f"/proc/{c}/cmdline").read_text() for c in children}
    (pid,) = (child for child, line in lines.items() if "spawn_main" in line)
    return pid


@pytest.mark.parametrize("collector", ["pipelined", "sync"])
def test_metrics_say_where_time_went(start, tmp_path, collector):
    process = start(f"training.collector={collector}", "training.run_dir=run")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    last = rows(tmp_path / "run")[-1]
    assert all(float(last[f"Perf/{name}_ms"]) > 0.0 for name in SPLIT)


def test_c14_a_collector_killed_in_training_leaves_a_checkpoint_and_an_error(start, tmp_path):
    process = start(*ENDLESS, "training.run_dir=run")
    first = process.stderr.readline()
    assert "steps/s" in first
    os.kill(collector_of(process.pid), signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    assert "error: the collector process died" in err
    assert "(signal SIGKILL)" in err
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    frames = int(checkpoint.name.split("-")[1])
    assert frames > 0
    assert f"checkpoint at {frames} frames" in err

    end = f"algo.total_frames={frames + 640}"
    again = start("training.resume=run", end)
    assert again.wait(600) == 0, again.stderr.read()
    assert int(rows(tmp_path / "run")[-1]["frames"]) == frames + 640


def test_ctrl_c_reaches_a_training_that_a_shell_started_in_the_background(start, tmp_path):
    """Such shells have their background jobs ignore it. It comes before the loop begins."""
    shell = ("sh", "-c", 'exec 3>&1; "$0" "$@" >&3 & echo $!; wait $!; echo $?')
    process = start(*ENDLESS, "training.run_dir=run", command=shell)
    pid = int(process.stdout.readline())
    assert "Run folder" in process.stdout.readline()
    os.kill(pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert out.splitlines()[-1] == "130", out + err
    assert "Traceback" not in err


def test_two_trainings_at_once_do_not_meet(start, tmp_path):
    """Same task, seed and root folder: two folders with the same numbers in them."""
    processes = [start("training.log_root=runs", "training.log_interval_s=1000") for _ in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    runs = sorted((tmp_path / "runs" / "pendulum_swingup").iterdir())
    assert len(runs) == 2
    tables = [
        [{k: v for k, v in row.items() if not k.startswith(("Perf/", "minutes"))} for row in table]
        for table in map(rows, runs)
    ]
    assert tables[0] == tables[1]
    assert float(tables[0][-1]["Train/episodes"]) > 0
    assert all(list((run / "checkpoints").iterdir()) for run in runs)
