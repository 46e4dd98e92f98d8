"""Console output of a run: progress, and a closing summary with the commands to type next."""

from __future__ import annotations

import math
import re
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from unilab.output import drop
from unilab.record.run_folder import RunFolder

_RATE_WINDOW = 12
"""Rows of metrics over which lines average their steps/s."""
_SHOWN = {"return": "Train/return", "length": "Train/episode_length", "eval": "Eval/return"}


class Progress:
    """A bar with steps/s, return and ETA on a terminal; elsewhere a line for each row of metrics.

    Output errors (closed terminal, broken pipe, full disk) end the output, not the run.

    Args:
        total: environment steps of the whole run.
        initial: steps that an earlier part of the run took.
        max_minutes: wall time after which the run stops, for the ETA of the lines.
        stream: where to write, standard error by default; decides between bar and lines.
    """

    def __init__(
        self,
        total: int,
        *,
        initial: int = 0,
        max_minutes: float | None = None,
        stream: TextIO | None = None,
    ) -> None:
        # sys.stderr is None where standard error is closed.
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._total = total
        self._frames = initial
        now = time.perf_counter()
        self._rows = deque([(now, initial)], maxlen=_RATE_WINDOW)
        self._stops_at = math.inf if max_minutes is None else now + 60.0 * max_minutes
        self._bar = None
        if self._stream is not None and self._stream.isatty():
            self._bar = Bar(
                total=total,
                initial=initial,
                unit=" steps",
                unit_scale=True,
                dynamic_ncols=True,
                smoothing=0.05,
                file=self._stream,
            )

    def advance(self, frames: int) -> None:
        self._frames += frames
        if self._bar is not None:
            with self._ignoring_output_errors():
                self._bar.update(frames)

    def show(self, metrics: Mapping[str, float], evaluated_at: int | None = None) -> None:
        """Show the latest metrics; those of the evaluation with their number of steps."""
        if self._stream is None:
            return
        values = {name: metrics.get(tag, math.nan) for name, tag in _SHOWN.items()}
        shown = {name: f"{value:.4g}" for name, value in values.items() if not math.isnan(value)}
        if "eval" in shown and evaluated_at not in (None, self._frames):
            shown["eval"] += f" (at {evaluated_at:,})"
        with self._ignoring_output_errors():
            if self._bar is not None:
                self._bar.set_postfix(shown)
            else:
                print(self._line(shown), file=self._stream, flush=True)

    def _line(self, shown: Mapping[str, str]) -> str:
        now, (then, frames) = time.perf_counter(), self._rows[0]
        rate = (self._frames - frames) / max(now - then, 1e-9)
        self._rows.append((now, self._frames))
        left = (self._total - self._frames) / max(rate, 1e-9)
        left = max(0.0, min(left, self._stops_at - now))
        parts = [f"{self._frames:,}/{self._total:,} steps", f"{rate:,.0f} steps/s"]
        parts += [f"{name} {value}" for name, value in shown.items()]
        return "  ".join([*parts, f"ETA {_duration(left)}"])

    def close(self) -> None:
        if self._bar is not None:
            with self._ignoring_output_errors():
                self._bar.close()

    @contextmanager
    def _ignoring_output_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):
            drop(self._stream)
            if self._bar is not None:
                self._bar.disable = True  # or it would write again when it is deleted
            self._stream = self._bar = None


class Bar(tqdm):
    """A bar without tqdm's named semaphore, which a killed process would leave behind."""


Bar.set_lock(threading.RLock())


def closing_summary(
    run: RunFolder,
    *,
    frames: int,
    total_frames: int,
    minutes: float,
    metrics: Mapping[str, float],
    evaluated_at: int | None = None,
) -> str:
    """How far a run came, where its files are and what to type next, on several lines."""
    done = frames >= total_frames
    end = "Finished" if done else f"Stopped at {frames / total_frames:.0%}"
    tags = [tag for tag in metrics if tag.startswith("Eval/") and tag.count("/") == 1]
    late = f" (at {evaluated_at:,} steps)" if tags and evaluated_at not in (None, frames) else ""
    tags = tags or [tag for tag in ("Train/return", "Train/episode_length") if tag in metrics]
    path = shlex.quote(str(run.path))
    command = program()
    is_command_line = command == "unilab" or "train" in sys.orig_argv  # not a training script
    lines = [f"{end}: {frames:,} steps in {minutes:.1f} min."]
    if tags:
        results = ", ".join(f"{tag} {metrics[tag]:.4g}" for tag in tags)
        lines.append(f"Results      {results}{late}")
    lines.append(f"Run folder   {run.path}")
    lines.append(f"TensorBoard  tensorboard --logdir {path}")
    lines.append(f"Picture      unilab plot {path}")
    content = run.read_config()
    if (content.get("actor_semantics") or {}).get("builder") is not None:
        lines.append(f"Play         {command if is_command_line else 'unilab'} play {path}")
    train = f"{command} train" if is_command_line else command
    lines.append(f"Continue     {train} {_override('training.resume', str(run.path))}")
    if done:
        lines[-1] += f" algo.total_frames={2 * total_frames}"
    elif content["config"].get("training", {}).get("max_minutes") is not None:
        lines[-1] += " training.max_minutes=null"
    return "\n".join(lines)


def program() -> str:
    """The command that started this process: ``unilab``, or a program with tasks of its own."""
    script = Path(sys.argv[0])
    is_ours = script.name in ("unilab", "__main__.py") or not script.is_file()
    return "unilab" if is_ours else shlex.join(["python", str(script)])


def _override(key: str, value: str) -> str:
    """An override for a shell, with the quotes that Hydra needs around special characters."""
    if not re.fullmatch(r"[\w./-]+", value, re.ASCII):
        value = '"' + value.replace('"', r"\"") + '"'
    return shlex.quote(f"{key}={value}")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(min(seconds, 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
