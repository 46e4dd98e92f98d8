"""examples/train_flashsac.py on the pendulum with tiny networks, here and as real processes.

Clauses are those of ADR-0001.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from reference.runs import NETWORKS, TINY, rows

from unilab.conf import compose
from unilab.errors import CheckpointError, ConfigError
from unilab.examples.train_flashsac import train
from unilab.record import metric

SCRIPT = Path(__file__).parents[2] / "examples" / "train_flashsac.py"
SMALL = [*TINY, *NETWORKS]
PENDULUM = ["task=pendulum_swingup", *SMALL]
PIPELINED = "training.collector=pipelined"
ENDLESS = ["algo.total_frames=1_000_000_000", "training.log_interval_s=0.01"]

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the pipelined script in a process."""
    started: list[subprocess.Popen] = []

    def start(*arguments: str, command: tuple[str, ...] = ()) -> subprocess.Popen:
        process = subprocess.Popen(
            [*command, sys.executable, str(SCRIPT), *PENDULUM, PIPELINED, *arguments],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("collector", ["sync", pytest.param("pipelined", marks=pytest.mark.slow)])
def test_run_ends_with_results_checkpoint_and_the_next_command(tmp_path, capsys, collector):
    run = tmp_path / "run"
    cfg = compose([*PENDULUM, f"training.run_dir={run}", f"training.collector={collector}"])
    assert train(cfg) == 0
    out = capsys.readouterr().out
    assert "Finished: 160 steps" in out
    assert "Eval/return" in out
    assert f"training.resume={run}" in out
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["checkpoint-000000000160"]
    last = rows(run)[-1]
    assert int(last["frames"]) == 160
    assert last["Eval/return"]
    assert float(last["Episode_Termination/time_out"]) == 1.0
    assert float(last["Perf/updates"]) == 160 / 4 - 32 / 4 + 1
    assert all(metric(tag) for tag in set(last) - {"frames", "minutes"})
    for name in ("collect", "learn", "physics", "managers", "reset"):
        assert float(last[f"Perf/{name}_ms"]) > 0.0
    content = json.loads((run / "run_config.json").read_text())
    assert content["critic_obs"] == "obs"
    assert content["obs_groups"] == {"obs": 3}
    assert content["actor_semantics"]["action_transform"] == "tanh"
    assert content["config"]["algo"]["num_envs"] == 4
    assert content["device_resolution"]["collector_tensor"] == "cpu"


def test_task_with_critic_group_and_mirror_trains_with_both(tmp_path):
    run = tmp_path / "run"
    options = ["algo.algo_params.compile=false", "algo.total_frames=48", "algo.symmetry=true"]
    options += [f"training.run_dir={run}", "training.eval_interval=null"]
    assert train(compose(["task=go2_velocity_flat", *SMALL, *options])) == 0
    content = json.loads((run / "run_config.json").read_text())
    assert content["critic_obs"] == "critic"
    assert content["obs_groups"]["critic"] > content["obs_groups"]["obs"]


def test_finished_run_continues_with_more_steps_and_is_unchanged_if_it_cannot(tmp_path):
    run = tmp_path / "run"
    train(compose([*PENDULUM, f"training.run_dir={run}", "training.save_replay=true"]))
    before = rows(run)
    files = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    resume, longer = f"training.resume={run}", "algo.total_frames=240"
    with pytest.raises(ConfigError, match="total_frames"):
        train(compose([resume]))
    with pytest.raises(CheckpointError, match="hidden_dim"):
        train(compose([resume, longer, "algo.algo_params.actor_hidden_dim=16"]))
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == files

    assert train(compose([resume, longer])) == 0
    after = rows(run)
    assert after[: len(before)] == before
    assert int(after[-1]["frames"]) == 240
    # With the replay contents back, an update follows every one of the 20 steps.
    assert float(after[-1]["Perf/updates"]) == float(before[-1]["Perf/updates"]) + 20
    content = json.loads((run / "run_config.json").read_text())
    assert content["config"]["algo"]["total_frames"] == 240


CUSTOM = "algo.algo_params.actor_config.builder=reference.actors:PlainActor"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([CUSTOM, "algo.algo_params.use_whole_cycle_cuda_graph=true"], "use_whole_cycle_cuda"),
        ([CUSTOM, "algo.algo_params.actor_normalize_parameters=false"], "actor_normalize"),
        (["env.decimate=4"], r"'decimate'.*decimation"),
        (["algo.algo_params.tau=2.0"], "tau"),
        (["algo.symmetry=true"], r"mirror .*algo\.symmetry=false"),
    ],
)
def test_setting_that_cannot_train_is_refused_before_the_run_has_a_folder(
    tmp_path, overrides, name
):
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=name):
        train(compose([*PENDULUM, *overrides, f"training.run_dir={run}"]))
    assert not run.exists()


def collector_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = {int(c): Path(f"/proc/{c}/cmdline").read_text() for c in children}
    (pid,) = (child for child, line in lines.items() if "spawn_main" in line)
    return pid


@pytest.mark.slow
def test_c14_a_collector_killed_in_training_leaves_a_checkpoint_and_an_error(start, tmp_path):
    process = start(*ENDLESS, "training.run_dir=run")
    assert "steps/s" in process.stderr.readline()
    os.kill(collector_of(process.pid), signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    assert "error: the environment process died" in err
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    frames = int(checkpoint.name.split("-")[1])
    assert f"checkpoint at {frames} frames" in err

    resume = f"training.resume={tmp_path}/run"
    assert train(compose([resume, f"algo.total_frames={frames + 80}"])) == 0
    assert int(rows(tmp_path / "run")[-1]["frames"]) == frames + 80


@pytest.mark.slow
def test_training_whose_output_nobody_reads_any_more_ends_without_a_traceback(tmp_path):
    train = [sys.executable, "-m", "unilab.cli", "train", *PENDULUM, "algo.total_frames=80"]
    pipeline = '{ "$@"; echo $? >&2; } | head -n 1'
    command = ["sh", "-c", pipeline, "sh", *train]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("Run folder")
    assert done.stderr.splitlines()[-1] == "0"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the loop", "in the loop"])
def test_ctrl_c_ends_a_training_that_a_shell_started_in_the_background(start, tmp_path, when):
    """Such shells have their background jobs ignore it."""
    shell = ("sh", "-c", 'exec 3>&1; "$0" "$@" >&3 & echo $!; wait $!; echo $?')
    process = start(*ENDLESS, "training.run_dir=run", command=shell)
    pid = int(process.stdout.readline())
    assert "Run folder" in process.stdout.readline()
    if when == "in the loop":
        assert "steps/s" in process.stderr.readline()
    os.kill(pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert out.splitlines()[-1] == "130", out + err
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    if when == "in the loop":
        (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
        assert f"Stopped at 0%: {int(checkpoint.name.split('-')[1]):,} steps" in out


@pytest.mark.slow
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
