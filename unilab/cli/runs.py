"""A run on disk and the task that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unilab import registry
from unilab.envs import ManagerBasedRlEnv
from unilab.errors import CapabilityError, CheckpointError, ConfigError
from unilab.record import RunFolder
from unilab.tasks.suites.env import SuiteEnv

RobotEnv = ManagerBasedRlEnv | SuiteEnv
"""What can be played and exported."""


@dataclass(frozen=True)
class TrainedTask:
    """A run, or one of its checkpoints, and its task."""

    path: Path
    """The run's folder or a checkpoint in it, not a link to one."""
    run: RunFolder
    name: str
    """The task's name in the registry."""
    overrides: Mapping[str, Any]
    """The run's changes to the task."""

    @classmethod
    def of(cls, path: str | Path) -> TrainedTask:
        """Read the configuration of a run, or of the run that a checkpoint is in."""
        place, run = _find(Path(path))
        config = run.read_config()["config"]
        name, overrides = config.get("task"), config.get("env")
        if not isinstance(name, str) or not isinstance(overrides, dict):
            raise CheckpointError(
                f"{run.config_file} must name the task and its overrides (env): restore it, or "
                "start a new run"
            )
        return cls(place, run, name, overrides)

    def make_env(
        self, *, num_envs: int, seed: int, overrides: Mapping[str, Any] | None = None
    ) -> RobotEnv:
        """The task's environment as the run had it, with further overrides on top."""
        # Episodes that start at random times are for training only.
        merged = {**self.overrides, "init_at_random_ep_len": False, **(overrides or {})}
        env = registry.make(self.name, num_envs=num_envs, seed=seed, overrides=merged)
        if not isinstance(env, RobotEnv):
            raise CapabilityError(
                f"{self.name} must be a ManagerBasedRlEnv to be played or exported, got "
                f"{type(env).__name__}: use unilab.trainers.load_play_actor and your own loop"
            )
        return env


def _find(path: Path) -> tuple[Path, RunFolder]:
    """The path without links, and its run."""
    # A checkpoint is in its run's checkpoints/, which may be a link, or a link leads to it.
    for place in (path, path.resolve()):
        for folder in (place, place.absolute().parent.parent):
            run = RunFolder(folder)
            if run.config_file.is_file() and path.exists():
                return place, run
    raise CheckpointError(
        f"{path} is neither a run nor a checkpoint: give the folder that the run printed when it "
        "started, or one of its checkpoints/"
    )


def check_widths(env: RobotEnv, widths: tuple[int, int], what: str) -> None:
    """Check that a policy's observations and actions are as wide as the task's."""
    task = env.obs_groups_spec["obs"], env.action_spec.shape[-1]
    if widths != task:
        raise ConfigError(
            f"{what} maps {widths[0]} observations to {widths[1]} actions, but the task maps "
            f"{task[0]} to {task[1]}: it belongs to another task, or the task has changed"
        )
