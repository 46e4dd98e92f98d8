"""Learning curves."""

from __future__ import annotations

import sys

import pytest
from matplotlib.figure import Figure

from unilab.errors import CapabilityError, CheckpointError, ConfigError
from unilab.record import ProgressCsv, RunFolder, plot_learning_curve


@pytest.fixture
def run(tmp_path):
    folder = RunFolder.create("pendulum_swingup", 0, path=tmp_path / "run")
    folder.write_config({"task": "pendulum_swingup"})
    return folder


def log(run: RunFolder) -> None:
    table = ProgressCsv(run.progress_file)
    for i in range(1, 6):
        values = {"Train/return": float(i), "Train/episode_length": 10.0 * i}
        if i % 2:
            values |= {"Eval/return": 2.0 * i, "Eval/Episode_Reward/upright": 0.5}
        table.write(100 * i, 0.5 * i, values)


def test_the_image_of_a_run_is_in_its_folder(run):
    log(run)
    picture = plot_learning_curve(run.path)
    assert picture == run.path / "learning_curve.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_title_says_task_algorithm_and_minutes(run, monkeypatch):
    log(run)
    run.write_config({"task": "go2_velocity_flat", "algo": {"name": "ppo"}})
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: drawn.append(figure))
    plot_learning_curve(run.path)
    assert drawn[0].axes[0].get_title().split() == ["go2_velocity_flat", "ppo", "2.5", "min"]


def test_a_run_without_rows_is_refused(run):
    with pytest.raises(CheckpointError, match=r"progress\.csv"):
        plot_learning_curve(run.path)


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe", b"nan,1\n", b"600,4,a\n", b'"' + 200_000 * b"a"],
    ids=["not text", "no number of frames", "no number", "long"],
)
def test_a_damaged_table_is_refused(run, damage):
    log(run)
    with run.progress_file.open("ab") as file:
        file.write(damage)
    with pytest.raises(ConfigError, match=r"progress\.csv"):
        plot_learning_curve(run.path)


def test_a_picture_of_an_unknown_kind_is_refused(run):
    log(run)
    with pytest.raises(ConfigError, match=r"out .*curve\.zzz"):
        plot_learning_curve(run.path, "curve.zzz")


def test_without_matplotlib_the_error_names_it(run, monkeypatch):
    log(run)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CapabilityError, match="matplotlib"):
        plot_learning_curve(run.path)
