"""Progress lines and the closing summary."""

from __future__ import annotations

import io
import itertools
import math
import re
import shlex
import sys
import time
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from reference.processes import semaphores

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


def test_an_earlier_evaluation_is_shown_with_its_steps(tmp_path):
    stream = io.StringIO()
    progress = Progress(1000, stream=stream)
    for frames, evaluated_at in ((600, 600), (75, 600)):
        progress.advance(frames)
        progress.show({"Eval/return": 2.0}, evaluated_at)
    first, second = stream.getvalue().splitlines()
    assert "eval 2  ETA" in first
    assert "eval 2 (at 600)  ETA" in second
    assert "Results      Eval/return 12.5 (at 400 steps)" in summary(
        tmp_path / "a", evaluated_at=400
    )
    assert "Results      Eval/return 12.5" in summary(tmp_path / "b", evaluated_at=500)


@pytest.fixture
def ten_seconds_a_row(monkeypatch):
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))


@pytest.mark.usefixtures("ten_seconds_a_row")
def test_the_rate_is_averaged_over_the_last_rows():
    stream = io.StringIO()
    progress = Progress(100_000, stream=stream)
    for frames in [10] * 20 + [1000] * 13:  # random warm-up, then something faster
        progress.advance(frames)
        progress.show({})
    assert stream.getvalue().endswith("  100 steps/s  ETA 14:28\n")


@pytest.mark.usefixtures("ten_seconds_a_row")
def test_the_eta_of_a_resumed_run_is_the_time_limit_if_it_comes_first():
    stream = io.StringIO()
    progress = Progress(100_000, initial=600, max_minutes=1.0, stream=stream)
    progress.advance(10)
    progress.show({"Train/return": math.nan})
    assert stream.getvalue() == "610/100,000 steps  1 steps/s  ETA 0:50\n"


def test_on_a_terminal_a_bar_shows_the_return_and_makes_no_semaphore():
    stream, before = Terminal(), semaphores()
    progress = Progress(1000, stream=stream)
    assert semaphores() <= before
    progress.advance(1000)
    progress.show({"Train/return": 3.14159})
    progress.close()
    assert "100%" in stream.getvalue()
    assert "return=3.142" in stream.getvalue()


def summary(
    folder: Path, *, frames=500, builder="my.module:Actor", metrics=None, config=None, **more
) -> list[str]:
    run = RunFolder.create("t", 0, path=folder)
    run.write_config(config or {}, actor_semantics={"builder": builder})
    metrics = {"Eval/return": 12.5, "Eval/Episode_Reward/x": 1.0} if metrics is None else metrics
    return closing_summary(
        run, frames=frames, total_frames=1000, minutes=2.0, metrics=metrics, **more
    ).splitlines()


def test_the_summary_of_a_stopped_run_says_how_far_it_came_and_how_to_continue(tmp_path):
    run = tmp_path / "a b"
    lines = summary(run)
    assert lines[0] == "Stopped at 50%: 500 steps in 2.0 min."
    assert lines[1] == "Results      Eval/return 12.5"
    assert f"Run folder   {run}" in lines
    assert lines[-2] == f"Play         unilab play '{run}'"


@pytest.mark.parametrize("name", ["run", "a b", "a=b", "a,b (c)", "[a]{b}", "it's", 'a"b', "ö#$"])
def test_the_command_to_continue_has_the_path_after_shell_and_hydra(tmp_path, name):
    *command, override = shlex.split(summary(tmp_path / name)[-1])
    assert command == ["Continue", "unilab", "train"]
    parsed = OverridesParser.create().parse_override(override)
    assert (parsed.key_or_group, parsed.value()) == ("training.resume", str(tmp_path / name))


def test_the_summary_of_a_finished_run_offers_more_steps(tmp_path):
    lines = summary(tmp_path / "run", frames=1000)
    assert lines[0].startswith("Finished: 1,000 steps")
    assert lines[-1].endswith(f"training.resume={tmp_path}/run algo.total_frames=2000")


def test_a_run_that_its_time_limit_stopped_is_continued_without_the_limit(tmp_path):
    lines = summary(tmp_path / "run", config={"training": {"max_minutes": 1.0}})
    assert lines[-1].endswith(f"training.resume={tmp_path}/run training.max_minutes=null")


@pytest.mark.parametrize(
    ("arguments", "play", "train"),
    [(["train"], "python {}", "python {} train"), ([], "unilab", "python {}")],
)
def test_a_program_of_the_user_is_named_in_the_next_commands(
    tmp_path, monkeypatch, arguments, play, train
):
    """One that registers tasks and calls the command line, or a training script."""
    script = tmp_path / "arm.py"
    script.touch()
    monkeypatch.setattr("sys.argv", [str(script)])
    monkeypatch.setattr("sys.orig_argv", ["python", str(script), *arguments])
    lines = summary(tmp_path / "run")
    assert lines[-2].startswith(f"Play         {play.format(script)} play")
    assert lines[-1].startswith(f"Continue     {train.format(script)} training.resume=")


def test_without_an_evaluation_the_training_return_is_shown(tmp_path):
    lines = summary(tmp_path / "run", metrics={"Train/return": 7.0})
    assert lines[1] == "Results      Train/return 7"


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
