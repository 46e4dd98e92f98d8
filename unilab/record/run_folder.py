"""The folder of one training run: what lies where, and how it is made and found again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from unilab.errors import CheckpointError, ConfigError

__all__ = ["RunFolder", "package_versions"]

_PACKAGES = ("unilab-torchrl", "torch", "torchrl", "tensordict", "mujoco", "numpy")


@dataclass(frozen=True)
class RunFolder:
    """One run on disk: ``run_config.json``, ``progress.csv``, ``tensorboard``, ``checkpoints``."""

    path: Path
    """The folder itself."""

    @property
    def config_file(self) -> Path:
        """The resolved configuration and how it was resolved."""
        return self.path / "run_config.json"

    @property
    def progress_file(self) -> Path:
        """One row of metrics a log interval."""
        return self.path / "progress.csv"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    @property
    def trace_file(self) -> Path:
        """Chrome trace of the last ticks, of a run with ``training.trace``."""
        return self.path / "trace.json"

    @property
    def checkpoints(self) -> Path:
        """Rotated checkpoints."""
        return self.path / "checkpoints"

    @classmethod
    def create(
        cls, task: str, seed: int, *, log_root: str | Path = "runs", path: str | Path | None = None
    ) -> RunFolder:
        """Makes the folder of a new run and proves that it can be written.

        Args:
            task: first level below ``log_root``.
            seed: part of the folder's name.
            log_root: parent of all runs.
            path: the folder itself, in place of ``<log_root>/<task>/<timestamp>_seed<seed>``.

        Returns:
            The new run's folder.

        Raises:
            ConfigError: the folder cannot be written, or holds a run already.
        """
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        run = cls(Path(log_root) / task / f"{stamp}_seed{seed}" if path is None else Path(path))
        try:
            if path is not None:
                run._require_unused()
            if path is None:
                run = cls(_claimed(run.path))
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            probe = run.path / f".write-test-{uuid.uuid4().hex}"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"run folder {run.path} cannot be written ({error.strerror or error}): set "
                "training.run_dir or training.log_root to a folder you may write"
            ) from error
        return run

    def _require_unused(self) -> None:
        """Raises ConfigError for a folder that holds a run, or checkpoints of one."""
        saved = self.checkpoints.exists() and any(self.checkpoints.iterdir())
        if self.config_file.exists():
            what = "a run" if saved else "a run, though no checkpoint to continue from"
            way_out = f"continue it with training.resume={self.path}" if saved else "remove it"
        elif saved:
            what = "checkpoints, though no run_config.json to continue them by"
            way_out = "remove them"
        else:
            return
        raise ConfigError(
            f"run folder {self.path} already holds {what}: {way_out}, or choose another "
            "training.run_dir"
        )

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Finds the folder of an existing run.

        Raises:
            CheckpointError: the path is no run folder, or cannot be written.
        """
        run = cls(Path(path))
        if not run.config_file.is_file():
            what = "does not exist" if not run.path.exists() else "is no run folder"
            raise CheckpointError(
                f"{run.path} {what}: a run folder holds run_config.json, progress.csv and "
                "checkpoints/; give the folder that the run printed when it started"
            )
        if not os.access(run.path, os.W_OK):
            raise CheckpointError(f"run folder {run.path} cannot be written: check its permissions")
        return run

    def lock(self) -> int:
        """Keep other trainings from writing here until the descriptor is closed.

        The end of this process closes it too, however it comes.

        Returns:
            a file descriptor, to be closed.

        Raises:
            ConfigError: another training writes here.
        """
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise ConfigError(
                f"another training writes to run folder {self.path}: wait for its end, or choose "
                "another training.run_dir"
            ) from None
        except OSError:  # some network file systems have no locks
            pass
        return folder

    def write_config(self, config: Mapping[str, Any], **resolved: Any) -> None:
        """Writes ``run_config.json``: the configuration, what was resolved from it, versions.

        Raises:
            CheckpointError: it cannot be written; an older one is left as it is.
        """
        content = {
            "config": dict(config),
            **resolved,
            "versions": package_versions(),
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        write_whole(self.config_file, json.dumps(content, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        """What :meth:`write_config` wrote.

        Raises:
            CheckpointError: the file is not the JSON object that it was.
        """
        try:
            content = json.loads(self.config_file.read_text())
            if not isinstance(content["config"], dict):
                raise TypeError("config is no object")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.config_file} is damaged ({error}): restore it, or start a new run"
            ) from error
        return content


def _claimed(path: Path) -> Path:
    """The folder, made here and now, or one beside it: two runs can start in the same second."""
    claimed = path
    while True:
        try:
            claimed.mkdir(parents=True)
            return claimed
        except FileExistsError:
            claimed = path.with_name(f"{path.name}_{uuid.uuid4().hex[:4]}")


def write_whole(path: Path, text: str) -> None:
    """Writes a file at once or not at all.

    Raises:
        CheckpointError: it cannot be written; an older file is left as it is.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(text, newline="")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> CheckpointError:
    """The error for a file of a run that cannot be written."""
    return CheckpointError(
        f"{path} cannot be written ({error.strerror or error}): free space or fix its permissions"
    )


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide what a run computes."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            # A source tree on sys.path has no distribution metadata of its own.
            found[package] = "not installed as a distribution"
    return found
