"""``unilab export``: a run's policy as a file for the robot."""

from __future__ import annotations

import shlex
from pathlib import Path

from unilab.cli.runs import TrainedTask, check_widths
from unilab.export import export_onnx
from unilab.modules import actor_semantics
from unilab.record.console import program
from unilab.trainers import load_play_actor


def export_run(run: str | Path, out: str | Path | None = None) -> Path:
    """Write a run's policy as ONNX, with what a robot needs to know in the file's metadata."""
    task = TrainedTask.of(run)
    actor = load_play_actor(task.path)
    semantics = actor_semantics(actor)
    env = task.make_env(num_envs=1, seed=0)
    check_widths(env, (semantics["obs_dim"], semantics["action_dim"]), str(task.path))
    metadata = {
        "task": task.name,
        "run": task.run.path.resolve().name,
        **env.deployment_metadata(),
    }
    env.close()
    path = Path(out) if out is not None else task.run.path / "policy.onnx"
    written = export_onnx(actor, path, obs_dim=semantics["obs_dim"], metadata=metadata)
    print(
        f"{written.path}: obs [batch, {written.obs_dim}] -> action [batch, {written.action_dim}], "
        f"opset {written.opset}\n"
        f"Largest difference between onnxruntime and the checkpoint: {written.max_abs_diff:.2e}\n"
        f"Try it       {program()} play {shlex.quote(str(run))} --policy {shlex.quote(str(path))}"
    )
    return written.path
