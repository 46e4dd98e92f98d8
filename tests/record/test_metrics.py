"""progress.csv and TensorBoard of a run."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest
from reference.disk import largest_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unilab.errors import CheckpointError, ConfigError
from unilab.record import MetricLogger, ProgressCsv, RunFolder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_has_frames_minutes_and_its_values(tmp_path):
    table = ProgressCsv(tmp_path / "progress.csv")
    table.write(256, 0.5, {"Loss/actor": 0.125})
    assert rows(table.path) == [{"frames": "256", "minutes": "0.5000", "Loss/actor": "0.125"}]


def test_a_new_metric_adds_a_column_with_empty_cells_above(tmp_path):
    table = ProgressCsv(tmp_path / "progress.csv")
    table.write(1, 0.1, {"a": 1.0})
    table.write(2, 0.2, {"b": 2.0, "a": 3.0})
    table.write(3, 0.3, {"b": 4.0})
    assert [(r["a"], r["b"]) for r in rows(table.path)] == [("1", ""), ("3", "2"), ("", "4")]


def test_a_resumed_table_continues_after_the_checkpoint(tmp_path):
    path = tmp_path / "progress.csv"
    first = ProgressCsv(path)
    for frames in (100, 200, 300):
        first.write(frames, frames / 100, {"a": float(frames)})
    # The checkpoint was at 200: the row at 300 is about to be written again.
    resumed = ProgressCsv(path, until_frames=200)
    resumed.write(300, 3.5, {"a": 1.0, "b": 2.0})
    assert [(r["frames"], r["a"], r["b"]) for r in rows(path)] == [
        ("100", "100", ""),
        ("200", "200", ""),
        ("300", "1", "2"),
    ]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"frames,minutes\nmany,2\n", b"a,b\n1,2\n"])
def test_a_table_that_is_none_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "progress.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"progress.csv is no table of this run .* move it away"):
        ProgressCsv(path, until_frames=5)
    assert path.read_bytes() == content


def test_the_table_is_complete_after_every_row(tmp_path):
    table = ProgressCsv(tmp_path / "progress.csv")
    for frames in range(1, 4):
        table.write(frames, 0.0, {"a": 1.0})
        assert len(rows(table.path)) == frames
    assert [p.name for p in tmp_path.iterdir()] == ["progress.csv"]


@pytest.mark.parametrize("tag", ["a", "b"])
def test_a_table_that_does_not_fit_the_disk_is_one_clear_error(tmp_path, tag):
    table = ProgressCsv(tmp_path / "progress.csv")
    table.write(1, 0.0, {"a": 1.0})
    size = table.path.stat().st_size
    full = pytest.raises(CheckpointError, match=r"progress.csv cannot be written .*: free space or")
    with largest_file(size), full:
        table.write(2, 0.0, {tag: 1.0})  # a row more, or a column more
    assert [row["frames"] for row in rows(table.path)] == ["1"]
    assert [p.name for p in tmp_path.iterdir()] == ["progress.csv"]


def test_a_new_table_that_does_not_fit_the_disk_leaves_nothing(tmp_path):
    with largest_file(5), pytest.raises(CheckpointError, match=r"progress.csv cannot be written"):
        ProgressCsv(tmp_path / "progress.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_tensorboards_folder_is_named(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.tensorboard.write_text("")
    with pytest.raises(CheckpointError, match=r"tensorboard cannot be written .*File exists"):
        MetricLogger(run)


def test_scalars_reach_both_files_and_nan_is_left_out(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    logger = MetricLogger(run)
    logger.log(512, 1.0, {"Loss/actor": -0.5, "Train/return": math.nan})
    logger.close()
    assert rows(run.progress_file) == [{"frames": "512", "minutes": "1.0000", "Loss/actor": "-0.5"}]
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert events.Tags()["scalars"] == ["Loss/actor"]
    (event,) = events.Scalars("Loss/actor")
    assert (event.step, event.value) == (512, -0.5)


def test_a_tag_outside_the_schema_writes_nothing(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    logger = MetricLogger(run)
    with pytest.raises(ConfigError, match="'Loss/critic' is not in the schema"):
        logger.log(1, 0.0, {"Loss/actor": 1.0, "Loss/critic": 1.0})
    logger.close()
    assert rows(run.progress_file) == []


_OTHER = """
import sys
from pathlib import Path
from unilab.record import MetricLogger, RunFolder
MetricLogger(RunFolder(Path(sys.argv[1])))
"""


def test_two_trainings_do_not_write_to_one_folder(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    logger = MetricLogger(run)
    before = run.progress_file.read_bytes()
    message = f"another training writes to run folder {run.path}: wait for its end, or choose"
    with pytest.raises(ConfigError, match=message):
        MetricLogger(run)
    other = subprocess.run([sys.executable, "-c", _OTHER, run.path], capture_output=True, text=True)
    assert message in other.stderr
    assert run.progress_file.read_bytes() == before
    logger.close()
    MetricLogger(run).close()


def test_a_folder_in_the_place_of_the_table_is_named(tmp_path):
    (tmp_path / "progress.csv").mkdir()
    with pytest.raises(CheckpointError, match=r"progress.csv cannot be written \(Is a directory\)"):
        ProgressCsv(tmp_path / "progress.csv")
