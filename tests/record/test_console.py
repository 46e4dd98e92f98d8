"""Progress lines and the closing summary."""

from __future__ import annotations

import io
import itertools
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from unilab.record import Progress, RunFolder, closing_summary, started_as


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass
class Result:
    frames: int = 500
    minutes: float = 2.0
    metrics: Mapping[str, float] = field(
        default_factory=lambda: {"Eval/return": 12.5, "Eval/Episode_Reward/x": 1.0}
    )


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(name: str, builder: str | None = "my.module:Actor") -> RunFolder:
    run = RunFolder.create("t", 0, path=name)
    run.write_config({}, actor_semantics={"builder": builder})
    return run


def summary(command="unilab train", builder="my.module:Actor", **changes):
    run = written("runs/a b", builder) if not Path("runs").exists() else RunFolder(Path("runs/a b"))
    return closing_summary(run, Result(**changes), total_frames=1000, command=command)


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


def test_the_rate_is_that_of_the_last_rows(monkeypatch):
    clock = itertools.count(0.0, 10.0)  # ten seconds a row
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    stream = io.StringIO()
    progress = Progress(100_000, stream=stream)
    for frames in [10] * 20 + [1000] * 13:  # random warm-up, say, and then something faster
        progress.advance(frames)
        progress.show({})
    last = stream.getvalue().splitlines()[-1]
    assert "  100 steps/s  " in last
    assert last.endswith("ETA 14:28")


def test_the_eta_is_that_of_the_wall_time_where_it_ends_first(monkeypatch):
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    stream = io.StringIO()
    progress = Progress(100_000, max_minutes=1.0, stream=stream)
    progress.advance(10)
    progress.show({})
    assert stream.getvalue().endswith("ETA 0:50\n")


def test_a_resumed_run_counts_from_where_it_stood():
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


@pytest.fixture(autouse=True)
def _no_python_path(monkeypatch):
    """Which the summary would repeat."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_the_summary_of_a_stopped_run_says_how_far_and_how_to_continue():
    lines = summary().splitlines()
    assert lines[0] == "Stopped at 50%: 500 steps in 2.0 min."
    assert lines[1] == "Results      Eval/return 12.5"
    assert "Run folder   runs/a b" in lines
    assert re.fullmatch(r"Play         (\S*/)?unilab play 'runs/a b'", lines[-2])
    assert lines[-1] == "Continue     unilab train training.resume='runs/a b'"


def test_the_summary_names_the_program_that_knows_the_task():
    lines = summary(command="python arm.py train").splitlines()
    assert lines[-3:] == [
        "Picture      python arm.py plot 'runs/a b'",
        "Play         python arm.py play 'runs/a b'",
        "Continue     python arm.py train training.resume='runs/a b'",
    ]


def test_the_summary_of_a_finished_run_offers_more_steps():
    text = summary(frames=1000)
    assert text.startswith("Finished: 1,000 steps")
    assert text.endswith("training.resume='runs/a b' algo.total_frames=2000")


def test_without_an_evaluation_the_training_return_is_shown():
    text = summary(metrics={"Train/return": 7.0, "Train/episode_length": float("nan")})
    assert "Results      Train/return 7\n" in text


def test_without_results_there_is_no_line_for_them():
    assert "Results" not in summary(metrics={})


@pytest.mark.parametrize(
    ("argv0", "command"),
    [
        ("/somewhere/bin/unilab", r"(\S*/)?unilab train"),
        ("examples/train_flashsac.py", r"(\S*/)?python examples/train_flashsac.py"),
        ("my scripts/mine.py", r"(\S*/)?python 'my scripts/mine.py'"),
    ],
)
def test_the_command_to_continue_is_the_one_that_was_typed(monkeypatch, argv0, command):
    monkeypatch.setattr(sys, "argv", [argv0, "task=x"])
    assert re.fullmatch(command, started_as())


def test_a_program_off_the_path_is_shown_with_its_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["unilab"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert started_as() == "env/bin/unilab train"
    monkeypatch.setenv("PATH", str(tmp_path / "env" / "bin"))
    program = tmp_path / "env" / "bin" / "unilab"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    assert started_as() == "unilab train"


def test_commands_find_modules_where_this_run_found_them(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "my actors")
    lines = summary().splitlines()
    assert "PYTHONPATH='my actors' unilab train training.resume='runs/a b'" in lines[-1]
    assert lines[-2].split(maxsplit=1)[1].startswith("PYTHONPATH='my actors' ")
    monkeypatch.delenv("PYTHONPATH")
    assert "PYTHONPATH" not in summary()


def test_what_nobody_can_play_is_not_offered():
    assert "Play  " in summary()
    shutil.rmtree("runs")
    assert "Play  " not in summary(builder=None)


class Gone(Terminal):
    """Somebody reads for a while."""

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
def test_a_run_outlives_its_audience(lines, terminal):
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


NAMES = [
    "a b",
    "ü/日本",
    "x (1)",
    "a=b",
    "a,b",
    "[x]",
    "it's",
    'a"b',
    "a#b",
    "a\\",
    'a\\"b',
    "${x}",
]
NAMES += ["\\${x}", "$HOME", "~x", "{x}", "*", "null", "true", "nan", "1e3", "-3", ".5"]


@pytest.mark.parametrize("name", NAMES)
def test_the_line_that_continues_a_run_names_its_folder_whatever_it_is_called(name):
    result = closing_summary(written(name), Result(), total_frames=1000, command="train")
    *_, last = result.splitlines()
    resume = shlex.split(last)[2]
    config = OverridesParser.create().parse_override(resume)
    assert config.key_or_group == "training.resume"
    assert (
        OmegaConf.to_container(OmegaConf.create({"x": config.value()}), resolve=True)["x"] == name
    )
