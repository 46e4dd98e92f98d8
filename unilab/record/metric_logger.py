"""Writers of a run's metrics: progress.csv and TensorBoard's event file."""

from __future__ import annotations

import csv
import io
import math
import os
import socket
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unilab.errors import ConfigError
from unilab.record.metric_schema import as_scalars
from unilab.record.run_folder import RunFolder, append_whole, unwritable, write_whole


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
        self._complete = True
        """Whether the file has all rows."""
        if self.path.exists():
            last = math.inf if until_frames is None else until_frames
            try:
                columns, rows = read_progress(self.path)
            except OSError as error:
                raise unwritable(self.path, error) from error
            self._columns = columns or self._columns
            self._rows = [row for row in rows if int(row["frames"]) <= last]
        self._rewrite()

    def write(self, frames: int, minutes: float, values: Mapping[str, float]) -> None:
        """Appends one row, or adds to the last one if it has as many frames.

        A row that cannot be written is written with the next one.
        """
        if reserved := {"frames", "minutes"} & set(values):
            raise ConfigError(
                f"a metric must not be named frames or minutes, got {reserved}: rename it, "
                "they are columns of the table"
            )
        row = {"frames": str(frames), "minutes": f"{minutes:.4f}"}
        row |= {tag: f"{value:.6g}" for tag, value in values.items()}
        same = bool(self._rows) and self._rows[-1]["frames"] == row["frames"]
        if same:
            row = self._rows.pop() | row
        self._rows.append(row)
        new = [tag for tag in row if tag not in self._columns]
        self._columns += sorted(new)
        appends = self._complete and not new and not same and self.path.exists()
        self._complete = False
        if appends:
            append_whole(self.path, self._table([row]))
        else:  # rare, and the file is small
            self._rewrite()
        self._complete = True

    def _rewrite(self) -> None:
        header = dict(zip(self._columns, self._columns, strict=True))
        write_whole(self.path, self._table([header, *self._rows]))

    def _table(self, rows: list[dict[str, str]]) -> bytes:
        table = io.StringIO()
        csv.DictWriter(table, self._columns, restval="").writerows(rows)
        return table.getvalue().encode()


def read_progress(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows of a :class:`ProgressCsv`'s file, without rows that were cut or joined."""
    rows = []
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or ())
            for row in reader:
                if None not in row and row["minutes"]:  # else it has too many or too few cells
                    int(row["frames"]), [float(cell) for cell in row.values() if cell]
                    rows.append(row)
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} must be the table of this run ({type(error).__name__}: {error}): move it away "
            "to continue with a new one"
        ) from error
    return columns, rows


class EventFile:
    """A TensorBoard event file, which has each row when :meth:`write` returns.

    TorchRL's ``TensorboardLogger`` writes from a thread, whose errors end the run with a traceback.

    Args:
        folder: TensorBoard's log directory.
        first_step: events from here on in earlier files are dropped, because a resumed run writes
            them again.
    """

    def __init__(self, folder: Path, *, first_step: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._writer = Event, Summary, RecordWriter
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._head = self._record(file_version="brain.Event:2")
        if first_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._head += self._record(step=first_step, session_log=start)
        self._append(b"")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one row."""
        scalars = [self._summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
        self._append(self._record(step=step, summary=self._summary(value=scalars)))

    def _record(self, **content: Any) -> bytes:
        event = self._event(wall_time=time.time(), **content)
        record = io.BytesIO()
        self._writer(record).write(event.SerializeToString())
        return record.getvalue()

    def _append(self, record: bytes) -> None:
        try:
            self.path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(self.path.parent, error) from error
        append_whole(self.path, record, self._head)


class MetricLogger:
    """Writes a run's scalars to progress.csv and TensorBoard, and locks the folder until closed.

    Args:
        run: the run's folder.
        until_frames: continue the tables from here (see :class:`ProgressCsv`).
    """

    def __init__(self, run: RunFolder, *, until_frames: int | None = None) -> None:
        self._unlock = weakref.finalize(self, os.close, run.lock())
        self.csv = ProgressCsv(run.progress_file, until_frames=until_frames)
        first = None if until_frames is None else until_frames + 1
        self.events = EventFile(run.tensorboard, first_step=first)

    def log(self, frames: int, minutes: float, values: Mapping[str, float]) -> None:
        """Logs one row of scalars by tag; NaN means "nothing to report" and is left out."""
        known = {tag: value for tag, value in as_scalars(values).items() if not math.isnan(value)}
        self.csv.write(frames, minutes, known)
        self.events.write(frames, known)

    def close(self) -> None:
        """Unlocks the folder."""
        self._unlock()
