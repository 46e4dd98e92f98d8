"""The off-policy training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer

from unilab.data import RewardNormalizer
from unilab.errors import ConfigError, NonFiniteError, UnilabError
from unilab.record.console import Progress
from unilab.record.metrics import MetricLogger
from unilab.record.trace import write_trace
from unilab.trainers.async_runner import AsyncRunner
from unilab.trainers.checkpoint import Checkpointer, Counters
from unilab.trainers.episodes import EpisodeTracker

__all__ = ["OffPolicyRunner", "RunResult"]

_TAGS = {"alpha": "Policy/alpha", "entropy": "Policy/entropy", "q_mean": "Critic/q_mean"}


class Learner(Protocol):
    """What the runner needs of a learner; :class:`~unilab.trainers.FlashSACLearner` is one."""

    update_count: int

    def update(self, tensordict: TensorDictBase, /) -> TensorDict:
        """One update; 0-dim metrics, without waiting for the device."""
        ...


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    frames: int
    """Environment steps taken, earlier parts of a resumed run included."""
    minutes: float
    """Training time, earlier parts included."""
    metrics: dict[str, float]
    """The latest value of every metric."""
    exit_code: int
    """0, or 128 + the signal that stopped the run (130 for Ctrl-C)."""


class OffPolicyRunner:
    """Collects, stores and updates until the collector ends, and looks after everything around it.

    Args:
        collector: yields transitions ``[N, T]`` (or ``[N]``) in time order: a TorchRL collector or
            any iterable of TensorDicts; shut down at the end.
        learner: gets a batch with normalised rewards.
        buffer: TorchRL replay buffer with its batch size set. It is extended with the collector's
            batches as they are; :func:`~unilab.data.make_replay_buffer` makes single rows of them.
        rewards: statistics of the return, which scale the rewards.

    Keyword Args:
        learning_starts: transitions in the buffer before the first update.
        updates_per_step: updates for each batch collected.
        counters: where a resumed run stands.
        logger: where metrics go, closed at the end; None: nowhere.
        checkpointer: saves at ``checkpoint_interval`` and at the end; None: never.
        evaluate: returns evaluation metrics; called every ``eval_interval`` frames and at the end.
        drain_metrics: the environment's own metrics since the last call.
        progress: the console; None: silent.
        eval_interval: environment steps between evaluations; None: never.
        checkpoint_interval: environment steps between checkpoints; None: only at the end.
        log_interval_s: seconds between two rows of metrics.
        max_minutes: stop after this wall time; None: never.
        trace: file for a Chrome trace of the run's last ticks; None: none.

    Raises:
        ConfigError: the collector extends a replay buffer itself.
    """

    def __init__(
        self,
        collector: Iterable[TensorDictBase],
        learner: Learner,
        buffer: ReplayBuffer,
        rewards: RewardNormalizer,
        *,
        learning_starts: int,
        updates_per_step: int = 1,
        counters: Counters | None = None,
        logger: MetricLogger | None = None,
        checkpointer: Checkpointer | None = None,
        evaluate: Callable[[], dict[str, float]] | None = None,
        drain_metrics: Callable[[], dict[str, float]] | None = None,
        progress: Progress | None = None,
        eval_interval: int | None = None,
        checkpoint_interval: int | None = None,
        log_interval_s: float = 5.0,
        max_minutes: float | None = None,
        trace: Path | None = None,
    ) -> None:
        if getattr(collector, "replay_buffer", None) is not None:
            raise ConfigError(
                "the collector has a replay_buffer of its own, so this loop would get no data: "
                "make the collector without it"
            )
        self.collector = collector
        self.learner = learner
        self.buffer = buffer
        self.rewards = rewards
        self.learning_starts = learning_starts
        self.updates_per_step = updates_per_step
        self.counters = counters if counters is not None else Counters()
        self.logger = logger
        self.checkpointer = checkpointer
        self.evaluate = evaluate
        self.drain_metrics = drain_metrics
        self.progress = progress
        self.eval_interval = eval_interval if evaluate is not None else None
        self.checkpoint_interval = checkpoint_interval
        self.log_interval_s = log_interval_s
        self.max_minutes = max_minutes
        self.trace = trace
        self.metrics: dict[str, float] = {}
        self._episodes = EpisodeTracker()
        self._updates: list[TensorDict] = []
        self._updating = False
        self._evaluated_at = -1
        self._saved_at = -1
        self._evaluation: dict[str, float] = {}

    def run(self) -> RunResult:
        """Trains until the collector ends, time is up, or Ctrl-C; always leaves a checkpoint.

        An error, unless of an update, leaves one as well before it is raised.

        Returns:
            How the run ended.

        Raises:
            NonFiniteError: a metric of the learner is NaN or infinite; no checkpoint is written
                then, the earlier ones are kept.
            CollectorError: the collector's process died, raised or hung.
        """
        self._start_clocks()
        self._running = AsyncRunner(self.collector)
        try:
            with self._running:
                try:
                    self._train()
                    self._finish(interrupted=self._running.stop.requested)
                except Exception as error:
                    if not self._updating:
                        self._save_after(error)
                    raise
        except UnilabError:
            # A policy of NaN fails in the environment first; the metrics know where it began.
            self._drain_updates()
            raise
        finally:
            self._close()
        counters, stop = self.counters, self._running.stop
        return RunResult(counters.frames, counters.minutes, self.metrics, stop.exit_code)

    def _train(self) -> None:
        span = self._running.span
        for data in self._running:
            with span("replay"):
                self.rewards.update(data)
                self.buffer.extend(data)
            if len(self.buffer) >= self.learning_starts:
                for _ in range(self.updates_per_step):
                    with span("replay"):
                        batch = self.rewards.normalize(self.buffer.sample())
                    self._updating = True  # and half done, should it fail
                    with span("update"):
                        self._updates.append(self.learner.update(batch))
                    self._updating = False
            self._after_step(data)
            if self._time_is_up():
                break

    def _start_clocks(self) -> None:
        now = time.perf_counter()
        self._started = self._logged = now
        self._minutes_before = self.counters.minutes
        self._logged_frames = self.counters.frames
        self._logged_updates = self.learner.update_count

    def _after_step(self, data: TensorDictBase) -> None:
        self._episodes.update(data)
        before, self.counters.frames = self.counters.frames, self.counters.frames + data.numel()
        if self.progress is not None:
            self.progress.advance(data.numel())
        if _crossed(self.eval_interval, before, self.counters.frames):
            self._evaluate()
        if _crossed(self.checkpoint_interval, before, self.counters.frames):
            self._log()
            self._save()
        elif time.perf_counter() - self._logged >= self.log_interval_s and self._metrics_at_hand():
            self._log()

    def _time_is_up(self) -> bool:
        if self.max_minutes is None:
            return False
        return (time.perf_counter() - self._started) / 60 >= self.max_minutes

    def _finish(self, *, interrupted: bool) -> None:
        if self.eval_interval and not interrupted and self._evaluated_at != self.counters.frames:
            self._evaluate()
        if self._evaluation or self._saved_at != self.counters.frames:
            self._log()
        if self._saved_at != self.counters.frames:
            self._save()

    def _save_after(self, error: Exception) -> None:
        """Keep what was learned until something failed, unless NaN made it fail."""
        if isinstance(error, NonFiniteError) or isinstance(error.__cause__, NonFiniteError):
            return
        if self._saved_at != self.counters.frames:
            try:
                self._log()
            except NonFiniteError:
                raise
            except Exception as again:  # it may be what failed before
                error.add_note(f"The last metrics are not logged: {again}")
            self._save()
        if self.checkpointer is not None:
            error.add_note(f"What was learned in {self.counters.frames} frames is saved.")

    def _close(self) -> None:
        if self.progress is not None:
            self.progress.close()
        if self.logger is not None:
            self.logger.close()
        if self.trace is not None:
            write_trace(self.trace, self._running.latest_spans())

    def _evaluate(self) -> None:
        if self.evaluate is not None:
            with self._running.span("evaluate"):
                metrics = self._running.stop.cutting_short(self.evaluate)
            if metrics is not None:
                self._evaluation = metrics
                self._evaluated_at = self.counters.frames

    def _save(self) -> None:
        if self.checkpointer is not None:
            with self._running.span("save"):
                self.checkpointer.save(self.counters)
        self._saved_at = self.counters.frames

    def _metrics_at_hand(self) -> bool:
        return self.drain_metrics is None or self._running.metrics_at_hand()

    def _log(self) -> None:
        """Turns what has gathered since the last row into numbers, the only wait for the device."""
        with self._running.span("log"):
            self._log_row()

    def _log_row(self) -> None:
        now = time.perf_counter()
        elapsed = now - self._logged
        self.counters.minutes = self._minutes_before + (now - self._started) / 60
        row = self._drain_updates()
        row["Train/return"], row["Train/episode_length"], episodes = self._episodes.drain()
        row["Train/episodes"] = episodes
        if self.drain_metrics is not None:
            row |= self.drain_metrics()
        frames, updates = self.counters.frames, self.learner.update_count
        row["Perf/steps_per_second"] = (frames - self._logged_frames) / elapsed
        row["Perf/updates_per_second"] = (updates - self._logged_updates) / elapsed
        row |= self._running.timings()
        row["Perf/updates"] = updates
        row["Perf/buffer_size"] = len(self.buffer)
        row |= self._evaluation
        self._evaluation = {}
        if self.logger is not None:
            self.logger.log(frames, self.counters.minutes, row)
        self.metrics |= {tag: value for tag, value in row.items() if not math.isnan(value)}
        if self.progress is not None:
            self.progress.show(self.metrics)
        self._logged, self._logged_frames, self._logged_updates = now, frames, updates

    def _drain_updates(self) -> dict[str, float]:
        """Means of the learner's metrics since the last row.

        Raises:
            NonFiniteError: one of them is not a finite number.
        """
        if not self._updates:
            return {}
        stacked: Any = TensorDict.maybe_dense_stack(self._updates)
        names = list(stacked.keys())
        values = torch.stack([stacked.get(name).float() for name in names])
        means, table = values.mean(1).tolist(), values.T.tolist()
        self._updates.clear()
        # The first update that went wrong says where it began: everything is NaN soon after.
        for row in table:
            bad = [name for name, value in zip(names, row, strict=True) if not math.isfinite(value)]
            if bad:
                raise NonFiniteError(
                    f"{', '.join(bad)} became NaN or infinite before {self.counters.frames} "
                    "frames: lower the learning rate or look for NaN in the environment's rewards "
                    "and observations; checkpoints before this are kept"
                )
        return {_tag(name): value for name, value in zip(names, means, strict=True)}


def _crossed(interval: int | None, before: int, after: int) -> bool:
    return interval is not None and before // interval < after // interval


def _tag(name: str) -> str:
    return _TAGS.get(name) or "Loss/" + name.removeprefix("loss_")
