"""Where scalars go: a wide CSV for people, TensorBoard for curves, both behind one schema check."""

from __future__ import annotations

import csv
import io
import math
import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from torchrl.record.loggers import TensorboardLogger

from unilab.errors import ConfigError
from unilab.record.run_folder import RunFolder, unwritable, write_whole
from unilab.record.schema import metric

__all__ = ["MetricLogger", "ProgressCsv"]

INDEX = ("frames", "minutes")
"""First columns of progress.csv: environment steps taken and training time spent."""


class ProgressCsv:
    """A CSV with one row a call and one column a metric, which grows columns as metrics appear.

    TorchRL's ``CSVLogger`` writes one headerless file a tag; this is the table that one loads with
    ``pandas.read_csv`` or opens in a spreadsheet. A value that a row lacks is an empty cell.

    Args:
        path: the file; an existing one is continued.
        until_frames: rows of an existing file past this frame count are dropped, because the run
            continues from an earlier checkpoint and will write them again.

    Raises:
        ConfigError: the existing file is no such table.
        CheckpointError: the file cannot be written.
    """

    def __init__(self, path: str | Path, *, until_frames: int | None = None) -> None:
        self.path = Path(path)
        self._columns: list[str] = list(INDEX)
        self._rows: list[dict[str, str]] = []
        if self.path.exists():
            try:
                self._read(until_frames)
            except OSError as error:
                raise unwritable(self.path, error) from error
            except (UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self.path} is no table of this run ({error}): move it away to continue the "
                    "run with a new one"
                ) from error
        self._rewrite()

    def _read(self, until_frames: int | None) -> None:
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            self._columns = list(reader.fieldnames or INDEX)
            self._rows = [
                row for row in reader if until_frames is None or int(row["frames"]) <= until_frames
            ]

    def write(self, frames: int, minutes: float, values: Mapping[str, float]) -> None:
        """Appends one row.

        Raises:
            CheckpointError: the file cannot be written.
        """
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
        write_whole(self.path, table.getvalue())


class MetricLogger:
    """Writes a run's scalars to progress.csv and TensorBoard; a tag outside the schema is an error.

    Until it is closed, the run's folder is locked: no other training writes there.

    Args:
        run: the run's folder.
        until_frames: continue the tables from here (see :class:`ProgressCsv`).

    Raises:
        ConfigError: another training writes there.
        CheckpointError: a file cannot be written.
    """

    def __init__(self, run: RunFolder, *, until_frames: int | None = None) -> None:
        self._unlock = weakref.finalize(self, os.close, run.lock())
        self.csv = ProgressCsv(run.progress_file, until_frames=until_frames)
        try:
            self.tensorboard = TensorboardLogger(run.tensorboard.name, log_dir=str(run.path))
        except OSError as error:
            raise unwritable(run.tensorboard, error) from error

    def log(self, frames: int, minutes: float, values: Mapping[str, float]) -> None:
        """Logs one row of scalars; NaN means "nothing to report" and is left out.

        Args:
            frames: environment steps taken so far, TensorBoard's step.
            minutes: training time so far.
            values: tag -> value.

        Raises:
            ConfigError: a tag is not in the schema.
        """
        for tag in values:
            metric(tag)
        known = {tag: value for tag, value in values.items() if not math.isnan(value)}
        self.csv.write(frames, minutes, known)
        self.tensorboard.log_metrics(dict(known), step=frames)

    def close(self) -> None:
        """Flushes and closes the files, and unlocks the folder."""
        self.tensorboard.close()
        self._unlock()
