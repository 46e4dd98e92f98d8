"""The folder of one training run."""

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

_PACKAGES = ("unilab-torchrl", "torch", "torchrl", "tensordict", "mujoco", "numpy")


@dataclass(frozen=True)
class RunFolder:
    """One run on disk: ``run_config.json``, ``progress.csv``, ``tensorboard``, ``checkpoints``."""

    path: Path
    """``~`` is the home directory: no shell expands ``training.run_dir=~/runs``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(os.path.expanduser(self.path)))

    @property
    def config_file(self) -> Path:
        """The configuration and what was resolved from it."""
        return self.path / "run_config.json"

    @property
    def progress_file(self) -> Path:
        """Rows of metrics."""
        return self.path / "progress.csv"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    @property
    def trace_file(self) -> Path:
        """Chrome trace of the last steps, with ``training.trace``."""
        return self.path / "trace.json"

    @property
    def checkpoints(self) -> Path:
        """The newest checkpoints."""
        return self.path / "checkpoints"

    @classmethod
    def create(
        cls, task: str, seed: int, *, log_root: str | Path = "runs", path: str | Path | None = None
    ) -> RunFolder:
        """Makes the folder of a new run.

        Args:
            path: the folder itself, instead of ``<log_root>/<task>/<timestamp>_seed<seed>``.
        """
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        run = cls(Path(log_root) / task / f"{stamp}_seed{seed}" if path is None else Path(path))
        try:
            if path is None:
                run = cls(_make_unique(run.path))
            elif run.config_file.exists() or any(run.checkpoints.glob("*")):
                raise ConfigError(
                    f"run folder {run.path} already holds a run: continue it with "
                    f"training.resume={run.path}, remove it, or choose another training.run_dir"
                )
            run.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"run folder {run.path} cannot be written ({error.strerror or error}): set "
                "training.run_dir or training.log_root to a folder you may write"
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Finds the folder of an existing run."""
        run = cls(Path(path))
        if not run.config_file.is_file():
            raise CheckpointError(
                f"{run.path} must be a run folder, with run_config.json, progress.csv and "
                "checkpoints/: give the folder that the run printed when it started"
            )
        return run

    def lock(self) -> int:
        """Locks the folder against other trainings until the returned descriptor is closed.

        The end of the process closes it too.
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
        """Writes ``run_config.json``: the configuration, what was resolved from it, versions."""
        content = {
            "config": dict(config),
            **resolved,
            "versions": package_versions(),
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        write_whole(self.config_file, json.dumps(content, indent=2).encode() + b"\n")

    def read_config(self) -> dict[str, Any]:
        """The content of ``run_config.json``."""
        try:
            content = json.loads(self.config_file.read_text())
            if not isinstance(content["config"], dict):
                raise TypeError("config is not an object")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.config_file} is damaged ({error}): restore it, or start a new run"
            ) from error
        return content


def _make_unique(path: Path) -> Path:
    """Makes the folder, or one beside it: two runs can start in the same second."""
    try:
        path.mkdir(parents=True)
        return path
    except FileExistsError:
        return _make_unique(path.with_name(f"{path.name}_{uuid.uuid4().hex[:4]}"))


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically; after an error an older file is unchanged."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def append_whole(path: Path, content: bytes, head: bytes = b"") -> None:
    """Appends to a file, or begins it with ``head``; after an error it is as before."""
    size = 0
    try:
        with path.open("ab") as file:
            size = file.tell()
            file.write(content if size else head + content)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.truncate(path, size)
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> CheckpointError:
    """The error for a file that cannot be written."""
    return CheckpointError(
        f"{path} cannot be written ({error.strerror or error}): free space or fix its permissions"
    )


def package_versions() -> dict[str, str]:
    """Versions of the packages that determine what a run computes."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a source tree on sys.path
            found[package] = "not installed as a distribution"
    return found
