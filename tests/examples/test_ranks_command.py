"""The training command with several devices, as processes: signals, deaths, torchrun."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from reference.processes import running, wait_until
from reference.runs import NETWORKS, TINY, rows

from unilab.examples import train_flashsac

pytestmark = pytest.mark.slow

SCRIPT = train_flashsac.__file__
SETTINGS = [
    "task=pendulum_swingup",
    *(text for text in TINY if not text.startswith("training.device=")),
    *NETWORKS,
    "algo.algo_params.compile=false",
    "training.devices=[cpu,cpu]",
    "training.eval_interval=null",
]
ENDLESS = ["algo.total_frames=10000000", "training.checkpoint_interval=160"]
Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command; what is left of it at the end of a test is killed."""
    processes = []

    def begin(*command: str, **environment: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, *command, f"training.run_dir={tmp_path / 'run'}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Ranks of a launcher, by rank."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
            command = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(parent) == pid and "spawn_main" in command:
            found.append(int(stat.parent.name))
    return sorted(found)


@pytest.mark.parametrize(
    ("victim", "signum", "code", "message"),
    [
        ("launcher", signal.SIGTERM, 143, ""),
        ("launcher", signal.SIGINT, 130, ""),
        ("terminal", signal.SIGINT, 130, ""),
        ("launcher", signal.SIGKILL, -9, ""),
        ("rank 0", signal.SIGKILL, 2, "killed in rank 0 of 2"),
        ("rank 1", signal.SIGKILL, 2, "killed in rank 1 of 2"),
    ],
)
def test_after_a_death_or_signal_nothing_runs_and_the_run_can_be_resumed(
    start, tmp_path, victim, signum, code, message
):
    process = start(SCRIPT, *SETTINGS, *ENDLESS)
    checkpoints = tmp_path / "run" / "checkpoints"
    wait_until(lambda: any(checkpoints.glob("checkpoint-*")), 180)
    ranks = children(process.pid)
    assert len(ranks) == 2
    began = time.monotonic()
    if victim == "terminal":  # Ctrl-C twice, which all processes get
        for _ in range(2):
            os.killpg(process.pid, signum)
            time.sleep(1.0)
    else:
        os.kill(process.pid if victim == "launcher" else ranks[int(victim[-1])], signum)
    _, errors = process.communicate(timeout=120)
    wait_until(lambda: not any(map(running, ranks)), 30)
    took = time.monotonic() - began
    print(victim, signum, f"{took:.1f} s")
    assert took < 30  # within 10 s on an idle machine
    assert process.returncode == code, errors
    assert errors.count("error:") == bool(message)
    assert message in errors
    assert "Traceback" not in errors
    newest = max(checkpoints.glob("checkpoint-*"))
    assert torch.load(next(newest.rglob("*learner*/state.pt")), weights_only=True)["update_count"]


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def test_torchrun_starts_the_ranks_too(start, tmp_path):
    process = start(*TORCHRUN, SCRIPT, *SETTINGS)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert output.count("Finished: 160 steps") == 1
    assert rows(tmp_path / "run")[-1]["frames"] == "160"


def test_ranks_with_other_settings_and_a_used_port_are_refused(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        first = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": port}
        process = start(SCRIPT, *SETTINGS, **world, **first)
        assert f"127.0.0.1:{port}" in process.communicate(timeout=240)[1]
        assert process.returncode == 2
    pair = [
        start(
            SCRIPT,
            *SETTINGS,
            f"algo.gamma=0.9{rank}",
            **{**world, "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port},
        )
        for rank in (0, 1)
    ]
    for process in pair:
        errors = process.communicate(timeout=240)[1]
        assert process.returncode == 2
        assert "rank 1" in errors
        assert "algo.gamma is 0.91 there and 0.9 here" in errors
    assert not (tmp_path / "run").exists()


def test_a_sweep_starts_ranks_for_each_job(start, tmp_path):
    sweep = ["training.seed=0,1", f"training.log_root={tmp_path}", "training.run_dir=null"]
    process = subprocess.run(
        [sys.executable, SCRIPT, "-m", *SETTINGS, *sweep],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert len(list(tmp_path.glob("pendulum_swingup/*_seed?/run_config.json"))) == 2
