"""Progress lines and the closing summary."""

from __future__ import annotations

import io
import itertools
import re
import sys
import time
from pathlib import Path

import pytest

from unilab.record import Progress, RunFolder, closing_summary


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_each_row_is_a_line_with_rate_and_eta():
    stream = io.StringIO()
    progress = Progress(1000, stream=stream)
    progress.advance(250)
    progress.show({"Train/return": 3.14159, "Train/episode_length": 20.0})
    progress.close()
    assert re.fullmatch(
        r"250/1,000 steps  [\d,]+ steps/s  return 3\.142  length 20  ETA [\d:]+\n",
        stream.getvalue(),
    )


def test_the_rate_is_averaged_over_the_last_rows(monkeypatch):
    clock = itertools.count(0.0, 10.0)  # ten seconds a row
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    stream = io.StringIO()
    progress = Progress(100_000, stream=stream)
    for frames in [10] * 20 + [1000] * 13:  # random warm-up, then something faster
        progress.advance(frames)
        progress.show({})
    last = stream.getvalue().splitlines()[-1]
    assert "  100 steps/s  " in last
    assert last.endswith("ETA 14:28")


def test_the_eta_is_the_time_limit_if_it_comes_first(monkeypatch):
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    stream = io.StringIO()
    progress = Progress(100_000, max_minutes=1.0, stream=stream)
    progress.advance(10)
    progress.show({})
    assert stream.getvalue().endswith("ETA 0:50\n")


def test_a_resumed_run_counts_on():
    stream = io.StringIO()
    progress = Progress(1000, initial=600, stream=stream)
    progress.advance(100)
    progress.show({})
    assert stream.getvalue().startswith("700/1,000 steps")


def test_metrics_that_are_missing_or_nan_are_not_shown():
    stream = io.StringIO()
    progress = Progress(1000, stream=stream)
    progress.show({"Train/return": float("nan")})
    assert "return" not in stream.getvalue()


def test_on_a_terminal_a_bar_shows_the_return():
    stream = Terminal()
    progress = Progress(1000, stream=stream)
    progress.advance(1000)
    progress.show({"Train/return": 3.14159})
    progress.close()
    assert "100%" in stream.getvalue()
    assert "return=3.142" in stream.getvalue()


def summary(folder: Path, *, frames=500, builder="my.module:Actor", metrics=None) -> list[str]:
    run = RunFolder.create("t", 0, path=folder)
    run.write_config({}, actor_semantics={"builder": builder})
    metrics = {"Eval/return": 12.5, "Eval/Episode_Reward/x": 1.0} if metrics is None else metrics
    return closing_summary(
        run, frames=frames, total_frames=1000, minutes=2.0, metrics=metrics
    ).splitlines()


def test_the_summary_of_a_stopped_run_says_how_far_it_came_and_how_to_continue(tmp_path):
    run = tmp_path / "a b"
    lines = summary(run)
    assert lines[0] == "Stopped at 50%: 500 steps in 2.0 min."
    assert lines[1] == "Results      Eval/return 12.5"
    assert f"Run folder   {run}" in lines
    assert lines[-2] == f"Play         unilab play '{run}'"
    assert lines[-1] == f"Continue     unilab train 'training.resume={run}'"


def test_the_summary_of_a_finished_run_offers_more_steps(tmp_path):
    lines = summary(tmp_path / "run", frames=1000)
    assert lines[0].startswith("Finished: 1,000 steps")
    assert lines[-1].endswith(f"training.resume={tmp_path}/run algo.total_frames=2000")


@pytest.mark.parametrize(
    ("metrics", "results"), [({"Train/return": 7.0}, ["Results      Train/return 7"]), ({}, [])]
)
def test_without_an_evaluation_the_training_return_is_shown(tmp_path, metrics, results):
    lines = summary(tmp_path / "run", metrics=metrics)
    assert [line for line in lines if line.startswith("Results")] == results


def test_an_actor_that_cannot_be_built_again_is_not_offered_to_play(tmp_path):
    assert not [line for line in summary(tmp_path / "run", builder=None) if "Play" in line]


class Gone(Terminal):
    """Breaks after some writes."""

    def __init__(self, lines: int, terminal: bool) -> None:
        super().__init__()
        self.lines, self.terminal = lines, terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.lines -= 1
        if self.lines < 0:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("lines", [1, 2, 3, 5])
def test_output_errors_end_the_output_and_not_the_run(lines, terminal):
    stream = Gone(lines, terminal)
    progress = Progress(100, stream=stream)
    for _ in range(10):
        progress.advance(10)
        progress.show({"Train/return": 1.0})
    progress.close()
    assert stream.lines < 0


def test_without_standard_error_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    progress = Progress(100)
    progress.advance(10)
    progress.show({"Train/return": 1.0})
    progress.close()
