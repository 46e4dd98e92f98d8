"""examples/train_flashsac.py, run for real on the pendulum with tiny networks."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unilab.conf import compose
from unilab.errors import CheckpointError, ConfigError
from unilab.examples.train_flashsac import train

SCRIPT = Path(__file__).parents[2] / "examples" / "train_flashsac.py"
TINY = [
    "task=pendulum_swingup",
    "algo.num_envs=4",
    "algo.batch_size=16",
    "algo.learning_starts=32",
    "algo.n_step=1",
    "algo.replay_capacity=1000",
    "algo.total_frames=160",
    "algo.algo_params.actor_hidden_dim=8",
    "algo.algo_params.critic_hidden_dim=8",
    "training.num_threads=1",
    "training.device=cpu",
    "training.eval_num_envs=2",
    "env.episode_length_s=0.4",
]


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_run_ends_with_results_checkpoint_and_the_next_command(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(compose([*TINY, f"training.run_dir={run}"])) == 0
    out = capsys.readouterr().out
    assert "Finished: 160 steps" in out
    assert "Eval/return" in out
    assert f"training.resume={run}" in out
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["checkpoint-000000000160"]
    last = rows(run)[-1]
    assert int(last["frames"]) == 160
    assert last["Eval/return"]
    assert float(last["Perf/updates"]) == 160 / 4 - 32 / 4 + 1
    content = json.loads((run / "run_config.json").read_text())
    assert content["critic_obs"] == "obs"
    assert content["obs_groups"] == {"obs": 3}
    assert content["actor_semantics"]["action_transform"] == "tanh"
    assert content["config"]["algo"]["num_envs"] == 4
    assert content["device_resolution"] == {"learner": "cpu", "collector_tensor": "cpu"}


@pytest.mark.slow
def test_pipelined_run_trains_evaluates_and_resumes(tmp_path):
    run = tmp_path / "run"
    pipelined = [*TINY, f"training.run_dir={run}", "training.collector=pipelined"]
    assert train(compose(pipelined)) == 0
    last = rows(run)[-1]
    assert float(last["Perf/updates"]) == 160 / 4 - 32 / 4 + 1
    assert last["Eval/return"]
    assert float(last["Episode_Termination/time_out"]) == 1.0
    assert train(compose([f"training.resume={run}", "algo.total_frames=240"])) == 0
    assert int(rows(run)[-1]["frames"]) == 240


def test_critic_reads_its_own_group_if_the_task_has_one(tmp_path):
    run = tmp_path / "run"
    overrides = [o for o in TINY if not o.startswith(("task=", "env."))]
    cfg = compose(
        [
            "task=go2_velocity_flat",
            *overrides,
            "algo.algo_params.compile=false",
            "algo.total_frames=48",
            f"training.run_dir={run}",
            "training.eval_interval=null",
        ]
    )
    assert train(cfg) == 0
    content = json.loads((run / "run_config.json").read_text())
    assert content["critic_obs"] == "critic"
    assert content["obs_groups"]["critic"] > content["obs_groups"]["obs"]


def test_finished_run_continues_with_more_steps(tmp_path, capsys):
    run = tmp_path / "run"
    train(compose([*TINY, f"training.run_dir={run}", "training.save_replay=true"]))
    before = rows(run)
    resume = f"training.resume={run}"
    with pytest.raises(ConfigError, match="total_frames"):
        train(compose([resume]))
    assert rows(run) == before

    assert train(compose([resume, "algo.total_frames=240"])) == 0
    assert "Finished: 240 steps" in capsys.readouterr().out
    after = rows(run)
    assert after[: len(before)] == before
    assert int(after[-1]["frames"]) == 240
    # With the replay contents back, an update follows every one of the 20 steps.
    assert float(after[-1]["Perf/updates"]) == float(before[-1]["Perf/updates"]) + 20
    assert (
        json.loads((run / "run_config.json").read_text())["config"]["algo"]["total_frames"] == 240
    )


def test_other_networks_are_refused_and_the_run_is_left_as_it_was(tmp_path):
    run = tmp_path / "run"
    train(compose([*TINY, f"training.run_dir={run}"]))
    files = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    wider = ["algo.algo_params.actor_hidden_dim=16", "algo.total_frames=240"]
    with pytest.raises(CheckpointError, match="hidden_dim"):
        train(compose([f"training.resume={run}", *wider]))
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == files


CUSTOM = "algo.algo_params.actor_config.builder=reference.actors:PlainActor"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([CUSTOM, "algo.algo_params.use_whole_cycle_cuda_graph=true"], "use_whole_cycle_cuda"),
        ([CUSTOM, "algo.algo_params.actor_normalize_parameters=false"], "actor_normalize"),
        (["env.decimate=4"], r"'decimate'.*decimation"),
        (["algo.gamma=1.5"], "gamma"),
        (["algo.algo_params.tau=2.0"], "tau"),
        (["algo.algo_params.lr=0.0"], "lr"),
        (["algo.algo_params.num_bins=1"], "num_bins"),
        (["algo.algo_params.v_min=6.0"], "v_min"),
    ],
)
def test_setting_that_cannot_train_is_refused_before_the_run_has_a_folder(
    tmp_path, overrides, name
):
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=name):
        train(compose([*TINY, *overrides, f"training.run_dir={run}"]))
    assert not run.exists()


@pytest.mark.slow
def test_ctrl_c_saves_and_leaves_with_a_summary(tmp_path):
    process = subprocess.Popen(
        [
            sys.executable,
            str(SCRIPT),
            *TINY,
            "algo.total_frames=100_000_000",
            "training.log_interval_s=0.01",
            "training.run_dir=run",
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The first line of progress: the loop is running.
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert "steps/s" in first, first + err
    assert process.returncode == 130, err
    assert "Traceback" not in err
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    frames = int(checkpoint.name.split("-")[1])
    assert f"Stopped at 0%: {frames:,} steps" in out
    assert out.rstrip().endswith("training.resume=run")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
