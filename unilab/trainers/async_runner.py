"""The lifecycle of a loop over a collector, whichever process its environment is in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from tensordict import TensorDictBase
from torch import nn
from torchrl.envs import EnvBase

from unilab.collectors import PipelinedCollector
from unilab.collectors.spans import LEARNER_SPANS, Span, Spans, milliseconds, report_spans
from unilab.trainers.signals import StopRequest

__all__ = ["AsyncRunner"]

_IN_METRICS = ("inference", "ring wait", "physics", "managers", "reset", "replay", "update")


class AsyncRunner:
    """Runs a collector for a training loop, and always ends it.

    From entering to leaving, Ctrl-C, SIGTERM and SIGHUP are requests to stop, which the learner
    alone answers: iteration ends after the batch at hand, or at once where the collector is waiting
    for its environment, and the loop's owner may still save. Leaving, after an error too, shuts the
    collector down: its process ends and its shared memory is freed. An error in the collector's
    process is raised here while iterating, as a :class:`~unilab.errors.CollectorError`.

    Args:
        collector: a TorchRL collector, or any iterable of TensorDicts. An interruptor that it has
            may end the iteration as well.

    Attributes:
        stop: whether a signal asked to stop, and the exit code that goes with it.
        error: what collecting raised; None: nothing did.
        tick: of the last transitions that the loop was given; -1 before the first.

    Examples:
        >>> from tensordict import TensorDict
        >>> with AsyncRunner([TensorDict({}, [4])]) as running:
        ...     frames = sum(batch.numel() for batch in running)
        >>> frames, running.stop.exit_code
        (4, 0)
    """

    def __init__(self, collector: Iterable[TensorDictBase]) -> None:
        self.collector: Any = collector
        self.stop = StopRequest()
        self.error: Exception | None = None
        self.tick = -1
        self._spans = Spans(LEARNER_SPANS)
        self._collecting = False
        self._inference_began = 0
        self._env: EnvBase | None = None
        self._hooks: list[Any] = []
        self._counted = self._account()

    def __enter__(self) -> AsyncRunner:
        self.stop.__enter__()
        # Not TorchRL's own: asked to stop inside a batch, it hands out a part that is not filled.
        if isinstance(self.collector, PipelinedCollector):
            self._theirs = self.collector.interruptor, self.collector.spans
            self.stop.beside = self.collector.interruptor
            self.collector.interruptor, self.collector.spans = self.stop, self._spans
        else:
            self._watch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._unwatch()
            self.close()
        finally:
            self.stop.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[TensorDictBase | None]:
        """The collector's batches, until it ends or a stop is asked for.

        None for one that went into the collector's own replay buffer.
        """
        batches = iter(self.collector)
        while True:
            began, self._collecting = time.perf_counter_ns(), True
            try:
                batch = next(batches)
            except StopIteration:
                return
            except Exception as error:
                self.error = error
                raise
            finally:
                self._collecting = False
            if batch is None:
                self.tick += self.collector.frames_per_batch
            else:
                self.tick += batch.shape[1] if batch.batch_dims > 1 else 1
            self._spans.add("collect", began, time.perf_counter_ns(), self.tick)
            yield batch
            if self.stop.requested:
                return

    def span(self, name: str) -> AbstractContextManager[None]:
        """Account for the body of a ``with`` as a part of the tick, such as ``"update"``."""
        return self._spans.span(name, self.tick)

    def timings(self) -> dict[str, float]:
        """Where the learner's process spent its time since the last call.

        Returns:
            ``Perf/<name>_ms``, means over the ticks, of inference, waiting for the ring, replay and
            update; where the environment is in this process and says so, also of physics, managers
            and reset. ``Perf/collect_share``: of the time between two calls. Empty without a tick.
        """
        now, before = self._account(), self._counted
        self._counted = now
        spent = {name: now[name] - before[name] for name in now}
        if not spent["ticks"]:
            return {}
        share = {"Perf/collect_share": spent["collect"] / spent["time"]}
        return milliseconds({name: spent[name] for name in _IN_METRICS}, spent["ticks"]) | share

    def metrics_at_hand(self) -> bool:
        """Whether the environment's metrics can be had without waiting; if not, asks for them."""
        piped = isinstance(self.collector, PipelinedCollector)
        return not piped or self.collector.env.metrics_at_hand()

    def latest_spans(self) -> dict[str, tuple[int, list[Span]]]:
        """The latest spans of each process, with its id, by what it is."""
        spans = {"learner": (os.getpid(), self._spans.latest())}
        if isinstance(self.collector, PipelinedCollector):
            env = self.collector.env
            spans["collector"] = (env.pid, env.spans.latest())
        return spans

    def close(self) -> None:
        """Shut the collector down; a second call does nothing."""
        shutdown = getattr(self.collector, "shutdown", None)
        if shutdown is not None:
            shutdown()

    def _account(self) -> dict[str, int]:
        return self._spans.totals() | {"ticks": self.tick + 1, "time": time.perf_counter_ns()}

    def _watch(self) -> None:
        """Have a collector of this process say what it does inside of a batch."""
        env = getattr(self.collector, "env", None)
        if isinstance(env, EnvBase):
            self._env = env
            report_spans(env, self._on_span)
        policy = getattr(self.collector, "policy", None)
        if isinstance(policy, nn.Module):
            self._hooks = [
                policy.register_forward_pre_hook(self._before_inference),
                policy.register_forward_hook(self._after_inference),
            ]

    def _unwatch(self) -> None:
        if isinstance(self.collector, PipelinedCollector):
            self.collector.interruptor, self.collector.spans = self._theirs
        if self._env is not None:
            report_spans(self._env, None)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _on_span(self, name: str, begin_ns: int, end_ns: int) -> None:
        self._spans.add(name, begin_ns, end_ns, self.tick + 1)

    def _before_inference(self, *_: Any) -> None:
        self._inference_began = time.perf_counter_ns()

    def _after_inference(self, *_: Any) -> None:
        # The policy may be used elsewhere, in an evaluation for example.
        if self._collecting:
            self._on_span("inference", self._inference_began, time.perf_counter_ns())
