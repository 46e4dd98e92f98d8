"""Learning curves."""

from __future__ import annotations

import sys

import pytest

from unilab.errors import CapabilityError, CheckpointError
from unilab.record import ProgressCsv, RunFolder, plot_learning_curve


@pytest.fixture
def run(tmp_path):
    folder = RunFolder.create("pendulum_swingup", 0, path=tmp_path / "run")
    folder.write_config({"task": "pendulum_swingup"})
    return folder


def log(run: RunFolder, **terms: float) -> None:
    table = ProgressCsv(run.progress_file)
    for i in range(1, 6):
        values = {"Train/return": float(i), "Train/episode_length": 10.0 * i}
        if i % 2:
            values |= {"Eval/return": 2.0 * i, **terms}
        table.write(100 * i, 0.5 * i, values)


def test_the_image_of_a_run_is_in_its_folder(run):
    log(run)
    picture = plot_learning_curve(run.path)
    assert picture == run.path / "learning_curve.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_reward_terms_are_drawn(run, tmp_path):
    log(run)
    plain = plot_learning_curve(run.path, tmp_path / "plain.png").read_bytes()
    run.progress_file.unlink()
    log(run, **{"Episode_Reward/upright": 0.5})
    terms = plot_learning_curve(run.path, tmp_path / "terms.png").read_bytes()
    assert plain != terms


def test_a_run_without_rows_is_refused(run):
    with pytest.raises(CheckpointError, match=r"progress\.csv"):
        plot_learning_curve(run.path)


def test_without_matplotlib_the_error_names_it(run, monkeypatch):
    log(run)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CapabilityError, match="matplotlib"):
        plot_learning_curve(run.path)


def test_an_image_that_cannot_be_written_is_one_clear_error(run, tmp_path):
    log(run)
    with pytest.raises(CheckpointError, match=r"picture\.png"):
        plot_learning_curve(run.path, tmp_path / "no" / "picture.png")
