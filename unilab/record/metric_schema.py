"""Metrics of a run: the schema of tags, and the writer of progress.csv and TensorBoard."""

from __future__ import annotations

import csv
import io
import math
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unilab.errors import ConfigError, did_you_mean
from unilab.record.run_folder import RunFolder, unwritable, write_whole


@dataclass(frozen=True)
class Metric:
    """One scalar, or a family of scalars if the tag ends with ``/`` or ``_``."""

    tag: str
    """Name in TensorBoard and column in progress.csv."""
    unit: str
    """``1`` for a plain number."""
    aggregation: Literal["mean", "last", "rate"]
    """How the values between two rows become one; rate: count over time."""
    owner: str
    """Module that computes the value."""


_RUNNER = "unilab.trainers.runner"
_LEARNER = "unilab.trainers.learner"
_EVALUATION = "unilab.trainers.evaluation"
_ENV = "unilab.envs"

METRICS: dict[str, Metric] = {
    entry.tag: entry
    for entry in (
        Metric("Train/return", "reward", "mean", _RUNNER),
        Metric("Train/episode_length", "control step", "mean", _RUNNER),
        Metric("Train/episodes", "episode", "last", _RUNNER),
        Metric("Perf/steps_per_second", "frame/s", "rate", _RUNNER),
        Metric("Perf/updates_per_second", "update/s", "rate", _RUNNER),
        Metric("Perf/updates", "update", "last", _RUNNER),
        Metric("Perf/buffer_size", "transition", "last", _RUNNER),
        Metric("Perf/collect_ms", "ms a control step", "mean", _RUNNER),
        Metric("Perf/learn_ms", "ms a control step", "mean", _RUNNER),
        Metric("Perf/update_ms", "ms a control step", "mean", _RUNNER),
        Metric("Perf/collect_share", "share of time", "mean", _RUNNER),
        Metric("Perf/physics_ms", "ms a control step", "mean", _ENV),
        Metric("Perf/managers_ms", "ms a control step", "mean", _ENV),
        Metric("Perf/reset_ms", "ms a control step", "mean", _ENV),
        Metric("Loss/actor", "1", "mean", _LEARNER),
        Metric("Loss/qvalue", "nat", "mean", _LEARNER),
        Metric("Loss/alpha", "1", "mean", _LEARNER),
        Metric("Policy/alpha", "1", "mean", _LEARNER),
        Metric("Policy/entropy", "nat", "mean", _LEARNER),
        Metric("Critic/q_mean", "normalised reward", "mean", _LEARNER),
        Metric("Eval/return", "reward", "mean", _EVALUATION),
        Metric("Eval/episode_length", "control step", "mean", _EVALUATION),
        Metric("Eval/terminated", "share of episodes", "mean", _EVALUATION),
        Metric("Loss/aux_", "1", "mean", "the actor's own losses"),
        Metric("Episode_Reward/", "reward/s", "mean", _ENV),
        Metric("Episode_Termination/", "share", "mean", _ENV),
        Metric("Metrics/", "1", "mean", _ENV),
        Metric("Curriculum/", "1", "last", _ENV),
        Metric("Eval/Episode_Reward/", "reward/s", "mean", _ENV),
        Metric("Eval/Episode_Termination/", "share", "mean", _ENV),
        Metric("Eval/Metrics/", "1", "mean", _ENV),
        Metric("Eval/Curriculum/", "1", "last", _ENV),
    )
}
"""Scalars by tag, and open families by prefix: terms of a task, auxiliary losses of an actor."""


def metric(tag: str) -> Metric:
    """The schema's entry for a tag, or for its family, e.g. ``"Episode_Reward/upright"``."""
    families = [prefix for prefix in METRICS if prefix.endswith(("/", "_"))]
    if tag in METRICS and tag not in families:
        return METRICS[tag]
    for prefix in families:
        if tag.startswith(prefix) and tag != prefix:
            return METRICS[prefix]
    raise ConfigError(
        f"metric {tag!r} must be in the schema{did_you_mean(tag, METRICS)}: add it to "
        f"unilab.record.metric_schema, or use one of the prefixes {families}"
    )


class ProgressCsv:
    """A CSV with a row for each call and a column for each metric; columns are added as needed.

    TorchRL's ``CSVLogger`` writes one headerless file a tag; this is the table for
    ``pandas.read_csv`` or a spreadsheet. A value that a row lacks is an empty cell.

    Args:
        path: the file; an existing one is continued.
        until_frames: rows of an existing file with more frames are dropped, because a resumed run
            writes them again.
    """

    def __init__(self, path: str | Path, *, until_frames: int | None = None) -> None:
        self.path = Path(path)
        self._columns: list[str] = ["frames", "minutes"]
        self._rows: list[dict[str, str]] = []
        if self.path.exists():
            last = math.inf if until_frames is None else until_frames
            try:
                with self.path.open(newline="") as file:
                    reader = csv.DictReader(file)
                    self._columns = list(reader.fieldnames or self._columns)
                    self._rows = [row for row in reader if int(row["frames"]) <= last]
            except OSError as error:
                raise unwritable(self.path, error) from error
            except (csv.Error, KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self.path} must be the table of this run ({error}): move it away to "
                    "continue with a new one"
                ) from error
        self._rewrite()

    def write(self, frames: int, minutes: float, values: Mapping[str, float]) -> None:
        """Appends one row."""
        row = {"frames": str(frames), "minutes": f"{minutes:.4f}"}
        row |= {tag: f"{value:.6g}" for tag, value in values.items()}
        self._rows.append(row)
        new = [tag for tag in row if tag not in self._columns]
        if new:
            # New columns are rare (first update, first evaluation) and the file is small.
            self._columns += sorted(new)
            self._rewrite()
        else:
            try:
                with self.path.open("a", newline="") as file:
                    csv.DictWriter(file, self._columns, restval="").writerow(row)
            except OSError as error:
                raise unwritable(self.path, error) from error

    def _rewrite(self) -> None:
        table = io.StringIO()
        writer = csv.DictWriter(table, self._columns, restval="")
        writer.writeheader()
        writer.writerows(self._rows)
        write_whole(self.path, table.getvalue().encode())


class MetricLogger:
    """Writes a run's scalars to progress.csv and TensorBoard, and locks the folder until closed.

    Args:
        run: the run's folder.
        until_frames: continue the tables from here (see :class:`ProgressCsv`).
    """

    def __init__(self, run: RunFolder, *, until_frames: int | None = None) -> None:
        from torchrl.record.loggers import TensorboardLogger  # not needed to read a run

        self._unlock = weakref.finalize(self, os.close, run.lock())
        self.csv = ProgressCsv(run.progress_file, until_frames=until_frames)
        try:
            self.tensorboard = TensorboardLogger(run.tensorboard.name, log_dir=str(run.path))
        except OSError as error:
            raise unwritable(run.tensorboard, error) from error

    def log(self, frames: int, minutes: float, values: Mapping[str, float]) -> None:
        """Logs one row of scalars by tag; NaN means "nothing to report" and is left out."""
        for tag in values:
            metric(tag)
        known = {tag: value for tag, value in values.items() if not math.isnan(value)}
        self.csv.write(frames, minutes, known)
        self.tensorboard.log_metrics(dict(known), step=frames)

    def close(self) -> None:
        """Flushes and closes the files, and unlocks the folder."""
        self.tensorboard.close()
        self._unlock()
