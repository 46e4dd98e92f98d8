"""What a person sees: progress while a run goes on, and a closing summary of what to do next."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from tqdm import tqdm

from unilab.record.run_folder import RunFolder

__all__ = ["Progress", "closing_summary", "command_line", "running_program", "started_as"]

_RATE_WINDOW = 12
"""Rows of metrics over which lines average their steps/s."""
_OTHER = re.compile(r"null|true|false|[+-]?(inf|nan|[\d_.]+(e[+-]?\d+)?)", re.IGNORECASE)
"""Words that Hydra reads as something else than a string."""
_SHOWN = {"return": "Train/return", "length": "Train/episode_length", "eval": "Eval/return"}


class Progress:
    """A bar with steps/s, return and ETA on a terminal; elsewhere a line for each row of metrics.

    A run outlives its audience: once nothing can be written any more, nothing is shown.

    Args:
        total: environment steps of the whole run.
        initial: steps that an earlier part of the run took.
        max_minutes: wall time after which the run stops, for the ETA of the lines.
        stream: where to write; decides between bar and lines.
    """

    def __init__(
        self,
        total: int,
        *,
        initial: int = 0,
        max_minutes: float | None = None,
        stream: TextIO | None = None,
    ) -> None:
        # None: standard error is closed.
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._total = total
        self._frames = initial
        now = time.perf_counter()
        self._marks = deque([(now, initial)], maxlen=_RATE_WINDOW)
        self._stops_at = math.inf if max_minutes is None else now + 60.0 * max_minutes
        self._bar = (
            tqdm(
                total=total,
                initial=initial,
                unit=" steps",
                unit_scale=True,
                dynamic_ncols=True,
                smoothing=0.05,
                file=self._stream,
            )
            if self._stream is not None and self._stream.isatty()
            else None
        )

    def advance(self, frames: int) -> None:
        """Counts environment steps."""
        self._frames += frames
        if self._bar is not None:
            with self._while_heard():
                self._bar.update(frames)

    def show(self, metrics: Mapping[str, float]) -> None:
        """Shows the latest metrics."""
        shown = {
            name: metrics[tag]
            for name, tag in _SHOWN.items()
            if not math.isnan(metrics.get(tag, math.nan))
        }
        if self._stream is None:
            return
        if self._bar is not None:
            with self._while_heard():
                self._bar.set_postfix({name: f"{value:.4g}" for name, value in shown.items()})
            return
        now, (then, frames) = time.perf_counter(), self._marks[0]
        rate = (self._frames - frames) / max(now - then, 1e-9)
        self._marks.append((now, self._frames))
        left = (self._total - self._frames) / max(rate, 1e-9)
        left = max(0.0, min(left, self._stops_at - now))
        parts = [f"{self._frames:,}/{self._total:,} steps", f"{rate:,.0f} steps/s"]
        parts += [f"{name} {value:.4g}" for name, value in shown.items()]
        parts.append(f"ETA {_duration(left)}")
        with self._while_heard():
            print("  ".join(parts), file=self._stream, flush=True)

    def close(self) -> None:
        """Leaves the terminal to what comes next."""
        if self._bar is not None:
            with self._while_heard():
                self._bar.close()

    @contextmanager
    def _while_heard(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # a broken pipe, a full disk, a terminal that was closed
            if self._bar is not None:
                self._bar.disable = True  # or it would try once more when it is collected
            self._stream = self._bar = None


class Result(Protocol):
    """How far a run came; :class:`~unilab.trainers.RunResult` is one."""

    @property
    def frames(self) -> int:
        """Environment steps taken."""
        ...

    @property
    def minutes(self) -> float:
        """Training time."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Latest value of every metric."""
        ...


def closing_summary(
    run: RunFolder, result: Result, *, total_frames: int, command: str | None = None
) -> str:
    """Says how far a run came, where its files are and what to type next.

    Args:
        run: the run's folder.
        result: how far it came.
        total_frames: steps that were asked for.
        command: what started the run, for the line that continues it; None: this process's own.

    Returns:
        The text, several lines.
    """
    command = started_as() if command is None else command
    frames, metrics = result.frames, result.metrics
    done = frames >= total_frames
    how = "Finished" if done else f"Stopped at {frames / total_frames:.0%}"
    lines = [f"{how}: {frames:,} steps in {result.minutes:.1f} min."]
    results = [f"{tag} {metrics[tag]:.4g}" for tag in _results(metrics)]
    if results:
        lines.append("Results      " + ", ".join(results))
    more = f" algo.total_frames={2 * total_frames}" if done else ""
    own = command.endswith(" train")  # a program with unilab's commands
    program = command.removesuffix(" train") if own else _program("unilab")
    path = shlex.quote(str(run.path))
    resume, _, which = override("training.resume", str(run.path)).partition("=")
    lines += [
        f"Run folder   {run.path}",
        f"TensorBoard  {_program('tensorboard')} --logdir {path}",
        f"Picture      {program} plot {path}",
    ]
    if _can_be_played(run):
        lines.append(f"Play         {command_line(program, 'play', run.path)}")
    lines.append(f"Continue     {command_line(command)} {resume}={shlex.quote(which)}{more}")
    return "\n".join(lines)


def override(key: str, value: str) -> str:
    """A Hydra override that gives a key a string, whatever characters it is made of.

    Args:
        key: dotted.
        value: the string.
    """
    plain = re.fullmatch(r"[\w./-]+( [\w./-]+)*", value, re.ASCII)
    if plain and re.search("[a-z/]", value, re.IGNORECASE) and not _OTHER.fullmatch(value):
        return f"{key}={value}"
    # Quotes and interpolations are escaped, and so are the backslashes before them.
    escaped = re.sub(r'(\\*)("|\$\{|$)', lambda m: 2 * m[1] + (f"\\{m[2]}" if m[2] else ""), value)
    return f'{key}="{escaped}"'


def command_line(program: str, *words: str | Path) -> str:
    """A command to type, with the place where this process finds modules of the user's own.

    Args:
        program: how it begins, as :func:`running_program` says.
        *words: its arguments, to be quoted.
    """
    found = os.environ.get("PYTHONPATH")
    prefix = f"PYTHONPATH={shlex.quote(found)} " if found else ""
    return " ".join([prefix + program, *(shlex.quote(str(word)) for word in words)])


def running_program() -> str:
    """The program that runs, as one would type it: ``unilab``, or Python and a script."""
    script = Path(sys.argv[0])
    if script.suffix != ".py":
        return _program(script.name)
    return f"{_program('python')} {shlex.quote(sys.argv[0])}"


def started_as() -> str:
    """The command that started this training, without its overrides, as one would type it."""
    return running_program() + ("" if sys.argv[0].endswith(".py") else " train")


def _program(name: str) -> str:
    """``name``, with its path if this environment's is not the one that the shell would find."""
    own = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found).parent == own.parent:
        return name
    here = own.is_relative_to(Path.cwd())
    return shlex.quote(str(own.relative_to(Path.cwd()) if here else own))


def _can_be_played(run: RunFolder) -> bool:
    """Whether its checkpoints say how to build the actor; one of another algorithm may not."""
    semantics = run.read_config().get("actor_semantics")
    return isinstance(semantics, dict) and semantics.get("builder") is not None


def _results(metrics: Mapping[str, float]) -> list[str]:
    evaluated = [t for t in metrics if t.startswith("Eval/") and t.count("/") == 1]
    tags = evaluated or ["Train/return", "Train/episode_length"]
    return [tag for tag in tags if not math.isnan(metrics.get(tag, math.nan))]


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(min(seconds, 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
