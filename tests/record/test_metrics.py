"""The schema of metrics, progress.csv and TensorBoard."""

from __future__ import annotations

import contextlib
import csv
import math
from pathlib import Path

import pytest
import torch
from reference.disk import largest_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unilab.errors import CheckpointError, ConfigError
from unilab.record import MetricLogger, ProgressCsv, RunFolder, metric


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_resumed_table_continues_after_the_checkpoint(tmp_path):
    path = tmp_path / "progress.csv"
    first = ProgressCsv(path)
    for frames in (100, 200, 300):
        first.write(frames, frames / 100, {"a": float(frames)})
    # The checkpoint was at 200: the row at 300 is about to be written again.
    resumed = ProgressCsv(path, until_frames=200)
    resumed.write(300, 3.5, {"a": 1.0, "b": 2.0})  # and a column more
    assert [(r["frames"], r["a"], r["b"]) for r in rows(path)] == [
        ("100", "100", ""),
        ("200", "200", ""),
        ("300", "1", "2"),
    ]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"frames,minutes\nmany,2\n", b"a,b\n1,2\n"])
def test_a_file_that_is_no_table_is_refused_and_unchanged(tmp_path, content):
    path = tmp_path / "progress.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"progress\.csv"):
        ProgressCsv(path, until_frames=5)
    assert path.read_bytes() == content


@pytest.mark.parametrize("tag", ["a", "b"])
def test_c23_a_full_disk_is_one_clear_error_and_keeps_the_table(tmp_path, tag):
    table = ProgressCsv(tmp_path / "progress.csv")
    table.write(1, 0.0, {"a": 1.0})
    size = table.path.stat().st_size
    with largest_file(size), pytest.raises(CheckpointError, match=r"progress\.csv"):
        table.write(2, 0.0, {tag: 1.0})  # a row more, or a column more
    assert [row["frames"] for row in rows(table.path)] == ["1"]
    assert [p.name for p in tmp_path.iterdir()] == ["progress.csv"]


@pytest.mark.parametrize("name", ["tensorboard", "progress.csv"])
def test_another_entry_in_the_place_of_a_file_is_named(tmp_path, name):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    if name == "tensorboard":
        run.tensorboard.write_text("")
    else:
        run.progress_file.mkdir()
    with pytest.raises(CheckpointError, match=name):
        MetricLogger(run)


def test_scalars_reach_both_files_and_nan_is_left_out(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    logger = MetricLogger(run)
    logger.log(512, 1.0, {"Loss/actor": -0.5, "Train/return": math.nan})
    logger.close()
    assert rows(run.progress_file) == [{"frames": "512", "minutes": "1.0000", "Loss/actor": "-0.5"}]
    assert scalars(run, "Loss/actor") == [(512, -0.5)]
    with pytest.raises(KeyError):
        scalars(run, "Train/return")


def scalars(run: RunFolder, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_a_metric_of_the_user_is_logged(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    MetricLogger(run).log(8, 0.0, {"Grasp/slip": 0.25})
    assert rows(run.progress_file)[0]["Grasp/slip"] == "0.25"
    assert scalars(run, "Grasp/slip") == [(8, 0.25)]


@pytest.mark.parametrize(
    ("tag", "value"), [("a", None), ("a", "1"), ("a", torch.ones(3)), (3, 1.0)]
)
def test_a_metric_that_is_no_number_with_a_name_is_refused(tmp_path, tag, value):
    logger = MetricLogger(RunFolder.create("t", 0, path=tmp_path / "run"))
    with pytest.raises(ConfigError, match=repr(tag)):
        logger.log(8, 0.0, {tag: value})


def test_rows_with_too_many_cells_are_dropped(tmp_path):
    path = tmp_path / "progress.csv"
    path.write_text("frames,minutes,a\n100,1.0,1\n200,2.0,1200,2.0,2\n300,3.0,3\n")
    ProgressCsv(path, until_frames=300).write(400, 4.0, {"a": 4.0})
    assert [(row["frames"], row["a"]) for row in rows(path)] == [
        ("100", "1"),
        ("300", "3"),
        ("400", "4"),
    ]


def test_metrics_of_the_same_frames_share_a_row(tmp_path):
    table = ProgressCsv(tmp_path / "progress.csv")
    table.write(100, 1.0, {"a": 1.0, "b": 1.0})
    table.write(100, 1.5, {"b": 2.0})
    assert rows(table.path) == [{"frames": "100", "minutes": "1.5000", "a": "1", "b": "2"}]


def test_a_metric_with_the_name_of_a_column_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="frames"):
        ProgressCsv(tmp_path / "progress.csv").write(8, 0.0, {"frames": 1.0})


def test_c23_rows_follow_once_a_full_disk_has_space_again(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    logger = MetricLogger(run)
    logger.log(1, 0.0, {"a": 1.0})
    size = max(p.stat().st_size for p in (run.progress_file, logger.events.path))
    with largest_file(size + 9):
        for frames in range(2, 20):
            with contextlib.suppress(CheckpointError):
                logger.log(frames, 0.0, {"a": 1.0})
    logger.log(20, 0.0, {"a": 1.0})
    assert [row["frames"] for row in rows(run.progress_file)] == [str(n) for n in range(1, 21)]
    assert [step for step, _ in scalars(run, "a")][:: len(scalars(run, "a")) - 1] == [1, 20]


def test_events_of_a_resumed_run_are_there_once(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    for until, frames in ((0, (100, 200, 300)), (200, (300, 400))):
        logger = MetricLogger(run, until_frames=until)
        for each in frames:
            logger.log(each, 0.0, {"a": float(until)})
        logger.close()
    assert scalars(run, "a") == [(100, 0.0), (200, 0.0), (300, 200.0), (400, 200.0)]


@pytest.mark.parametrize(
    ("tag", "entry"),
    [
        ("Loss/actor", "Loss/actor"),
        ("Eval/Episode_Termination/fell", "Eval/Episode_Termination/"),
        ("Loss/aux_decoder", "Loss/aux_"),
    ],
)
def test_a_tag_is_in_the_schema_or_of_an_open_family(tag, entry):
    assert metric(tag).tag == entry


@pytest.mark.parametrize("tag", ["Loss/actr", "Loss/aux_", "Metrics/"])
def test_a_tag_outside_the_schema_is_refused(tag):
    with pytest.raises(ConfigError, match=tag):
        metric(tag)


def test_two_trainings_do_not_write_to_one_folder(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    logger = MetricLogger(run)
    before = run.progress_file.read_bytes()
    with pytest.raises(ConfigError, match=str(run.path)):
        MetricLogger(run)
    assert run.progress_file.read_bytes() == before
    logger.close()
    MetricLogger(run).close()
