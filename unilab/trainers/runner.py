"""Training loops: clocks, metrics, evaluation and checkpoints around a loop over batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch.profiler import ProfilerAction, profile, record_function
from torchrl import timeit

from unilab.data.ticks import as_ticks
from unilab.errors import CheckpointError, ConfigError, NonFiniteError
from unilab.trainers.async_runner import AsyncRunner
from unilab.trainers.checkpoint import Stateful
from unilab.trainers.run import Run, warning_if_unwritable

if TYPE_CHECKING:
    from unilab.settings import TrainingCfg

_TAGS = {
    "alpha": "Policy/alpha",
    "entropy": "Policy/entropy",
    "kl": "Policy/kl",
    "clip_fraction": "Policy/clip_fraction",
    "learning_rate": "Policy/learning_rate",
    "explained_variance": "Critic/explained_variance",
    "q_mean": "Critic/q_mean",
    "q_clipped": "Critic/q_clipped",
}
_TIMED = ("collect", "learn", "update", "sync")
"""Names of ``torchrl.timeit``; the learner times its own update, ranks their mean gradients."""


class _Learner(Stateful, Protocol):
    update_count: int


class TrainingRunner(AsyncRunner):
    """Iterates a collector's batches and does everything around the loop's body.

    The body is the algorithm. Between two batches the runner counts frames, logs, evaluates and
    saves as ``training`` says. When the ``with`` block ends it evaluates and saves once more, and
    shuts the collector down.

    An error while collecting, evaluating or logging saves a checkpoint before it is raised. An
    error in the loop's body does not, because the update may be half done, and neither does a
    :class:`~unilab.errors.NonFiniteError`. Ctrl-C, SIGTERM and SIGHUP end the loop after the
    current batch (:class:`~unilab.trainers.AsyncRunner`).

    With several :class:`~unilab.trainers.Ranks` all start from rank 0's learner. Rank 0 alone logs,
    evaluates and saves, while the others wait. Frames are those of all ranks, episodes rank 0's.

    Args:
        collector: yields transitions ``[N, T]`` in time order, of the same ``N`` environments: a
            TorchRL collector or any iterable of TensorDicts.
        learner: its ``update_count`` is logged. Several ranks also need its ``state_dict`` and
            ``load_state_dict``.
        training: intervals of evaluation, checkpoints and metrics, the time limit, the trace.
        run: where metrics and checkpoints go; nowhere by default.
        evaluate: returns evaluation metrics.
        drain_metrics: returns the environment's own metrics since the last call.
    """

    _trace_cycle = 100
    """Batches of which the last fifth is traced; of the first cycle all are."""

    def __init__(
        self,
        collector: Iterable[TensorDictBase],
        learner: _Learner,
        *,
        training: TrainingCfg,
        run: Run | None = None,
        evaluate: Callable[[], dict[str, float]] | None = None,
        drain_metrics: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        if getattr(collector, "replay_buffer", None) is not None:
            raise ConfigError(
                "collector must have no replay_buffer, or the loop gets no data: make it without "
                "one and extend the buffer in the loop"
            )
        super().__init__(collector)
        self.learner = learner
        self.training = training
        self.run = run if run is not None else Run()
        self.evaluate = evaluate if self.ranks.is_first else None
        self.drain_metrics = drain_metrics
        self._ticks = 0
        self._updates: list[TensorDict] = []
        self._episodes = EpisodeTracker()
        self._saved_at = self._evaluated_at = -1

    def __enter__(self) -> Self:
        super().__enter__()
        self.run.attach(self.collector, self._episodes)
        if self.ranks.size > 1:
            self.ranks.broadcast(self.learner)
        self._started = time.perf_counter()
        self._minutes_before = self.run.counters.minutes
        self._last_row = self._totals()
        self._profiler = None
        if self.training.trace and self.run.folder is not None:
            self._profiler = _start_profiler(self.run.folder.trace_file, self._trace_cycle)
        return self

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Yields each batch to the loop's body; logs, evaluates and saves between two batches."""
        batches = super().__iter__()
        while True:
            with self._saving_on_error(), self._timed("collect"):
                data = next(batches, None)
            if data is None:
                return
            with self._timed("learn"):
                yield data
            with self._saving_on_error():
                self._after_step(data)

    def record(self, metrics: TensorDict) -> None:
        """Keeps the metrics of one update for the next row, without waiting for the device."""
        self._updates.append(metrics)

    def __exit__(self, *error: Any) -> None:
        with ExitStack() as closing:
            if self._profiler is not None:
                closing.callback(self._profiler.stop)
            closing.callback(self.run.close)
            closing.callback(super().__exit__, *error)
            if error[0] is None:
                with self._saving_on_error():
                    self._finish()
                self.ranks.max(0)  # rank 0 has saved

    def _after_step(self, data: TensorDictBase) -> None:
        before = self.run.counters.frames
        self.run.advance(data.numel())
        self._update_minutes()
        self._ticks += as_ticks(data).shape[1]
        self._episodes.update(data)
        if self._profiler is not None:
            self._profiler.step()
        evaluated = self._evaluate() if self._due(self.training.eval_interval, before) else {}
        save = self._due(self.training.checkpoint_interval, before)
        row_age = time.perf_counter() - self._last_row["seconds"]
        if evaluated or save or row_age >= self.training.log_interval_s:
            self._log(evaluated)
        if save:
            with warning_if_unwritable():
                self._save()

    def _due(self, interval: int | None, before: int) -> bool:
        return interval is not None and before // interval < self.run.counters.frames // interval

    def _finish(self) -> None:
        frames = self.run.counters.frames
        evaluated = self._evaluate() if frames != self._evaluated_at else {}
        if frames != self._last_row["frames"]:
            self._log(evaluated)
        elif evaluated:
            self.run.log(evaluated)  # the row is there
        if frames != self._saved_at:
            self._save()

    def _evaluate(self) -> dict[str, float]:
        """Evaluation metrics; empty if there is no evaluation or a signal aborted it."""
        if self.evaluate is None or self.training.eval_interval is None:
            return {}
        self._evaluated_at = self.run.counters.frames
        return self.abort_on_stop(self.evaluate) or {}

    def _save(self) -> None:
        self.run.save()
        self._saved_at = self.run.counters.frames

    def _update_minutes(self) -> None:
        passed = (time.perf_counter() - self._started) / 60
        self.run.counters.minutes = self._minutes_before + passed

    def _time_is_up(self) -> bool:
        limit = self.training.max_minutes
        return limit is not None and self.run.counters.minutes - self._minutes_before >= limit

    @contextmanager
    def _saving_on_error(self) -> Iterator[None]:
        """Saves what was learned so far if an error ends the run.

        Unless NaN caused it, or a checkpoint that cannot be written.
        """
        try:
            yield
        except Exception as error:
            # NaN weights surface first as an error of the environment. This raises an error that
            # names the metric which became NaN, if there is one.
            self._mean_updates()
            unsafe = NonFiniteError | CheckpointError
            if not any(isinstance(e, unsafe) for e in (error, error.__cause__)):
                try:
                    self._save()
                except CheckpointError as unsaved:
                    error.add_note(f"And {unsaved}.")
                else:
                    if self.run.checkpointer is not None:
                        error.add_note(f"Saved a checkpoint at {self.run.counters.frames} frames.")
            raise

    def _log(self, evaluated: dict[str, float]) -> None:
        """Writes a row of what has gathered since the last one; waits for the device."""
        row = self._mean_updates()
        row["Train/return"], row["Train/episode_length"], episodes = self._episodes.drain()
        row["Train/episodes"] = episodes
        if self.drain_metrics is not None:
            row |= self.drain_metrics()
        row |= self._timings()
        row["Perf/updates"] = self.learner.update_count
        self._update_minutes()
        self.run.log(row | self._own_metrics() | evaluated)

    def _own_metrics(self) -> dict[str, float]:
        """What only one kind of runner logs."""
        return {}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        label = record_function(name) if self._profiler is not None else nullcontext()
        with timeit(name), label:
            yield

    def _timings(self) -> dict[str, float]:
        """Rates and times since the last row."""
        last, self._last_row = self._last_row, self._totals()
        passed = {name: total - last[name] for name, total in self._last_row.items()}
        if not passed["ticks"]:
            return {}
        return {
            "Perf/steps_per_second": passed["frames"] / passed["seconds"],
            "Perf/updates_per_second": passed["updates"] / passed["seconds"],
            "Perf/collect_share": passed["collect"] / (passed["collect"] + passed["learn"]),
            **{
                f"Perf/{name}_ms": 1e3 * passed[name] / passed["ticks"]
                for name in _TIMED
                if name != "sync" or self.ranks.size > 1
            },
        }

    def _totals(self) -> dict[str, float]:
        spent = timeit.todict(percall=False)
        return {
            "seconds": time.perf_counter(),
            "frames": self.run.counters.frames,
            "updates": self.learner.update_count,
            "ticks": self._ticks,
            **{name: spent.get(name, 0.0) for name in _TIMED},
        }

    def _mean_updates(self) -> dict[str, float]:
        """Means of the learner's metrics since the last row; none may be NaN or infinite."""
        if not self._updates:
            return {}
        stacked: Any = TensorDict.maybe_dense_stack(self._updates)
        self._updates.clear()
        names = list(stacked.keys())
        for name in names:
            if stacked.get(name).ndim != 1:
                shape = tuple(stacked.get(name).shape[1:])
                raise ConfigError(
                    f"metric {name!r} of an update must be a number, got shape {shape}: take its "
                    "mean"
                )
        values = torch.stack([stacked.get(name).float() for name in names]).cpu()
        # The first bad update names the cause: soon after, everything is NaN.
        for row in values.T.tolist():
            bad = [name for name, value in zip(names, row, strict=True) if not math.isfinite(value)]
            if bad:
                raise NonFiniteError(
                    f"{', '.join(bad)} became NaN or infinite before {self.run.counters.frames} "
                    "frames: lower the learning rate, or look for NaN in the environment's rewards "
                    "and observations; the checkpoints before this are kept"
                )
        return {_tag(name): mean for name, mean in zip(names, values.mean(1).tolist(), strict=True)}


class OffPolicyRunner(TrainingRunner):
    """A :class:`TrainingRunner` whose loop stores each batch and samples from a buffer.

    ``examples/train_flashsac.py`` has the loop.

    Args:
        buffer: its length is logged.
        settings: as :class:`TrainingRunner`.
    """

    def __init__(
        self,
        collector: Iterable[TensorDictBase],
        learner: _Learner,
        buffer: Sized,
        **settings: Any,
    ) -> None:
        super().__init__(collector, learner, **settings)
        self.buffer = buffer

    def _own_metrics(self) -> dict[str, float]:
        return {"Perf/buffer_size": len(self.buffer)}


class OnPolicyRunner(TrainingRunner):
    """A :class:`TrainingRunner` whose loop learns from each batch, a rollout, and drops it.

    ``examples/train_ppo.py`` has the loop. The checkpoints of its runs hold no transitions. With a
    :class:`~unilab.collectors.RolloutCollector` it logs how old the policies of the rollouts were.
    """

    _trace_cycle = 5  # a batch is a whole rollout with all of its updates

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._updates_before: list[int] = []
        self._staleness: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Yields each rollout to the loop's body; logs, evaluates and saves between two."""
        for data in super().__iter__():
            if (rollouts := getattr(self.collector, "staleness", None)) is not None:
                self._updates_before.append(self.learner.update_count)
                updates = self.learner.update_count - self._updates_before[-1 - rollouts]
                self._staleness.append((rollouts, updates))
            yield data

    def _own_metrics(self) -> dict[str, float]:
        """Mean staleness of the rollouts since the last row."""
        if not self._staleness:
            return {}
        rollouts, updates = map(fmean, zip(*self._staleness, strict=True))
        self._staleness.clear()
        return {"Policy/staleness": rollouts, "Policy/staleness_updates": updates}


def _start_profiler(trace: Path, cycle: int) -> profile:
    """Profiles the first cycle, then the last fifth of each; the file has the latest ones."""

    def action(step: int) -> ProfilerAction:
        place, first = step % cycle, cycle - cycle // 5
        if step >= cycle and place < first:
            return ProfilerAction.WARMUP if place == first - 1 else ProfilerAction.NONE
        last = place == cycle - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    profiler = profile(
        schedule=action, on_trace_ready=lambda done: done.export_chrome_trace(str(trace))
    )
    profiler.start()
    return profiler


def _tag(name: str) -> str:
    return _TAGS.get(name) or "Loss/" + name.removeprefix("loss_")


class EpisodeTracker:
    """Returns and lengths of the episodes that end; stays on the data's device until drained."""

    def __init__(self) -> None:
        self._running: torch.Tensor | None = None
        self._ended: torch.Tensor | None = None

    def update(self, data: TensorDictBase) -> None:
        """Adds a batch in time order, of the shapes that a collector gives."""
        data = as_ticks(data)
        reward, done = (data.get(("next", k)).reshape(data.shape) for k in ("reward", "done"))
        done = done.bool()
        if self._running is None or self._ended is None:
            # Rows: return and length of each running episode; then their sums and the count.
            self._running = reward.new_zeros(2, reward.shape[0])
            self._ended = reward.new_zeros(3)
        step = torch.ones_like(reward[:, 0])
        for r, d in zip(reward.unbind(1), done.unbind(1), strict=True):
            # Masks, because an infinite return times 0 would stay as NaN.
            self._running += torch.stack((r, step))
            self._ended[:2] += self._running.masked_fill(~d, 0.0).sum(1)
            self._ended[2] += d.sum()
            self._running.masked_fill_(d, 0.0)

    def state_dict(self) -> dict[str, torch.Tensor | None]:
        """Sums of the running episodes, and of the ended ones that were not drained."""
        return {"running": self._running, "ended": self._ended}

    def load_state_dict(self, state: dict[str, torch.Tensor | None]) -> None:
        """Continue from a :meth:`state_dict`."""
        self._running, self._ended = state["running"], state["ended"]

    def drain(self) -> tuple[float, float, int]:
        """Mean return, mean length and number of the episodes that ended since the last call.

        The means are NaN if no episode ended.
        """
        if self._ended is None:
            return math.nan, math.nan, 0
        total, length, count = self._ended.tolist()
        self._ended.zero_()
        if count == 0:
            return math.nan, math.nan, 0
        return total / count, length / count, int(count)
