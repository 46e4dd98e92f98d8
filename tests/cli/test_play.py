"""`unilab play`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import av
import pytest
import torch
from reference.opengl import needs_opengl

from unilab import cli, registry
from unilab.cli.play import play_episodes
from unilab.cli.play import play_run as play
from unilab.cli.visualize import views
from unilab.envs import TorchEnv
from unilab.errors import CapabilityError, CheckpointError, ConfigError
from unilab.export import export_onnx
from unilab.modules import FlashSACActor, FlashSACPolicy
from unilab.tasks import TASKS
from unilab.trainers import Evaluator, load_env_training_state, load_play_actor


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edited(run: Path, tmp_path: Path, **env) -> Path:
    """A copy of a run with other overrides of its task."""
    copy = shutil.copytree(run, tmp_path / "run")
    content = json.loads((copy / "run_config.json").read_text())
    content["config"]["env"] |= env
    (copy / "run_config.json").write_text(json.dumps(content))
    return copy


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_plays_prints_its_tables_and_writes_nothing(
    task, runs, tmp_path, monkeypatch, capsys
):
    run = runs(task)
    before = files(run)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["play", str(run), "--robots", "3", "--seconds", "0.4"]) == 0
    out = capsys.readouterr().out
    rows = [[c.strip() for c in line.strip("│").split("│")] for line in out.splitlines()]
    assert {"0", "1", "2", "mean"} <= {row[0] for row in rows if len(row) == 4}
    terms = {row[0] for row in rows if len(row) == 2 and row[1][0] in "+-"}
    assert terms == set(registry.config(task).rewards)
    assert files(run) == before
    assert list(tmp_path.iterdir()) == []


def test_returns_are_the_evaluators_on_the_same_episodes(go2):
    episodes = play(go2, robots=5, seed=3, seconds=1.0)
    overrides = {"num_threads": 1, "episode_length_s": 1.0}
    env = registry.make("go2_velocity_flat", num_envs=5, seed=3, overrides=overrides)
    metrics = Evaluator(env, FlashSACPolicy(load_play_actor(go2)))()
    env.close()
    assert sum(e.total for e in episodes) / 5 == pytest.approx(metrics["Eval/return"], abs=1e-4)
    fell = sum(e.ended_by != "time_out" for e in episodes) / 5
    assert fell == pytest.approx(metrics["Eval/terminated"], abs=1e-3)
    for episode in episodes:
        total = sum(episode.terms.values()) * episode.seconds
        assert total == pytest.approx(episode.total, abs=1e-5)


def test_curriculum_is_at_the_stage_of_the_run(go2, monkeypatch):
    reached = []
    monkeypatch.setattr(TorchEnv, "import_training_state", lambda env, s: reached.append(s))
    play(go2, robots=1, seconds=0.1)
    assert reached == [load_env_training_state(go2)]
    assert reached[0]["control_steps"] > 0


def test_episodes_start_at_their_beginning_from_the_states_of_the_seed(pendulum, tmp_path):
    run = edited(pendulum, tmp_path, init_at_random_ep_len=True)
    first, again, other = (play(run, seconds=0.6, seed=seed) for seed in (1, 1, 2))
    assert [e.seconds for e in first] == [pytest.approx(0.6)] * 4
    assert first == again
    assert [e.total for e in first] != [e.total for e in other]


@pytest.mark.slow
def test_exported_file_plays_like_its_checkpoint(runs, tmp_path):
    run = runs("g1_velocity_flat")
    assert cli.main(["export", str(run), "--out", str(tmp_path / "p.onnx")]) == 0
    checkpoint = play(run, robots=3, seconds=0.6)
    exported = play(run, robots=3, seconds=0.6, policy=tmp_path / "p.onnx")
    for a, b in zip(checkpoint, exported, strict=True):
        assert b.total == pytest.approx(a.total, abs=1e-3)
        assert (b.seconds, b.ended_by) == (a.seconds, a.ended_by)


@pytest.mark.slow
def test_checkpoint_plays_also_behind_links(pendulum, tmp_path):
    (checkpoint,) = (pendulum / "checkpoints").iterdir()
    episodes = play(pendulum, seconds=0.2)
    (tmp_path / "best").symlink_to(checkpoint)
    run = shutil.copytree(pendulum, tmp_path / "run")
    shutil.move(run / "checkpoints", tmp_path / "disk")
    (run / "checkpoints").symlink_to(tmp_path / "disk")
    for path in (checkpoint, tmp_path / "best", run / "checkpoints" / checkpoint.name):
        assert play(path, seconds=0.2) == episodes


@pytest.mark.parametrize("command", ["play", "export"])
def test_checkpoint_of_another_task_is_refused(pendulum, tmp_path, monkeypatch, capsys, command):
    run = shutil.copytree(pendulum, tmp_path / "run")
    (checkpoint,) = (run / "checkpoints").iterdir()
    manifest = checkpoint / "manifest.json"
    content = json.loads(manifest.read_text())
    content["metadata"]["identity"]["task"] = "cartpole_swingup"
    manifest.write_text(json.dumps(content))
    monkeypatch.chdir(checkpoint)
    for given in (run, checkpoint, Path("../../checkpoints") / checkpoint.name):
        assert cli.main([command, str(given)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "cartpole_swingup" in line
    assert not (run / "policy.onnx").exists()


def test_robot_that_ends_early_restarts_but_counts_once(runs):
    episodes = play(runs("g1_velocity_flat"), robots=6, seconds=4.0)
    assert [e.robot for e in episodes] == list(range(6))
    assert len({e.seconds for e in episodes}) > 1
    assert all(e.ended_by for e in episodes)


def test_endless_rollout_stops_when_it_is_told(pendulum):
    env = registry.make("pendulum_swingup", num_envs=2, seed=0, overrides={"episode_length_s": 0.1})
    steps = iter(range(1000))
    policy = FlashSACPolicy(load_play_actor(pendulum))
    episodes = play_episodes(env, policy, on_step=lambda: next(steps) < 11, endless=True)
    assert next(steps) == 12
    assert [e.seconds for e in episodes] == [pytest.approx(0.1)] * 2
    early = play_episodes(env, policy, on_step=lambda: False)
    assert [(e.seconds, e.ended_by) for e in early] == [(env.step_dt, "")] * 2
    env.close()


@pytest.mark.slow
def test_policy_that_does_not_fit_the_task_is_refused(pendulum, go2, tmp_path):
    cli.main(["export", str(pendulum), "--out", str(tmp_path / "p.onnx")])
    with pytest.raises(ConfigError, match="pendulum_swingup"):
        play(go2, policy=tmp_path / "p.onnx")
    export_onnx(FlashSACActor(4, 1, hidden_dim=8), tmp_path / "wide.onnx")
    with pytest.raises(ConfigError, match="wide"):
        play(pendulum, policy=tmp_path / "wide.onnx")
    with pytest.raises(ConfigError, match="observations"):
        play(edited(pendulum, tmp_path, **{"observations.obs.history_length": 2}))


@pytest.mark.parametrize("config", [None, {"env": {}}, {"task": 3, "env": {}}, {"task": "t"}])
def test_folder_that_is_not_a_run_is_refused(tmp_path, config):
    if config is not None:
        (tmp_path / "run_config.json").write_text(json.dumps({"config": config}))
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        play(tmp_path)


def test_task_that_is_not_registered_is_refused(pendulum, tmp_path):
    run = shutil.copytree(pendulum, tmp_path / "run")
    for file in (run / "run_config.json", *run.glob("checkpoints/*/manifest.json")):
        # As of a package that is not imported here.
        file.write_text(file.read_text().replace('"pendulum_swingup"', '"pendulum_swingap"'))
    with pytest.raises(ConfigError, match=r"pendulum_swingap.*did you mean"):
        play(run)


@needs_opengl
@pytest.mark.parametrize("task", ["pendulum_swingup", "go2_velocity_flat"])
def test_video_shows_every_other_control_step(task, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--robots", "2", "--seconds", "0.4", "--size", "256x128"]
    assert cli.main(["play", str(runs(task)), "--video", "out.mp4", *options]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]
    with av.open("out.mp4") as file:
        stream = file.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (256, 128, 25)
        frames = [f.to_ndarray(format="rgb24") for f in file.decode(video=0)]
    assert len(frames) == 10
    assert all(frame.std() > 10 for frame in frames)
    assert (frames[0] != frames[-1]).any()


def test_viewer_without_a_display_is_refused(pendulum, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(CapabilityError, match="--viewer"):
        play(pendulum, viewer=True)


def test_arrows_show_command_and_velocity_in_the_robots_frame():
    env = registry.make("go2_velocity_flat", num_envs=2, seed=0, overrides={"num_threads": 1})
    env.reset()
    turned = env.backend.default_qpos.repeat(2, 1)
    turned[:, :2] = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    turned[:, 3:7] = torch.tensor([0.5**0.5, 0.0, 0.0, 0.5**0.5])  # 90 degrees to the left
    moving = torch.zeros(2, env.backend.mj_model.nv, dtype=torch.float64)
    moving[0, :2] = torch.tensor([-0.2, 0.6])  # world: forward 0.6, left 0.2
    env.backend.set_state_tensor(torch.arange(2), turned, moving)
    command = env.command_manager.get_command("base_velocity")
    command.copy_(torch.tensor([[0.8, 0.0, 0.5], [0.0, 0.0, 0.0]]))
    first, second = views(env, 2)
    commanded, actual = first.markers
    assert commanded.vector == pytest.approx([0.0, 0.4, 0.0], abs=1e-6)
    assert actual.vector == pytest.approx([-0.1, 0.3, 0.0], abs=1e-6)
    assert commanded.start[:2] == pytest.approx([1.0, 2.0])
    assert "command +0.80 +0.00 +0.50" in first.title
    assert "actual  +0.60 +0.20 +0.00" in first.title
    assert second.markers == []
    env.close()


def test_tables_that_nobody_reads_end_the_command_as_others(pendulum):
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "unilab.cli", "play", str(pendulum), "--robots", "1"]
    done = subprocess.run([*command, "--seconds", "0.4"], stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_exits_without_a_traceback(pendulum, monkeypatch, capsys):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("unilab.cli.play.play_episodes", interrupt)
    assert cli.main(["play", str(pendulum)]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Interrupted")


@needs_opengl
def test_sigterm_while_filming_leaves_no_file(pendulum, tmp_path, monkeypatch):
    def terminated(env, policy, *, on_step, endless):
        env.reset()
        assert on_step()
        (partial,) = tmp_path.iterdir()
        assert partial.name.startswith(".out.")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("unilab.cli.play.play_episodes", terminated)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as exit_:
            cli.main(["play", str(pendulum), "--video", str(tmp_path / "out.mp4")])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert exit_.value.code == 143
    assert list(tmp_path.iterdir()) == []
