"""The lifecycle of a loop over a collector, whichever process its environment is in."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from tensordict import TensorDictBase

from unilab.collectors import PipelinedCollector
from unilab.trainers.signals import StopRequest

__all__ = ["AsyncRunner"]


class AsyncRunner:
    """Runs a collector for a training loop, and always ends it.

    From entering to leaving, Ctrl-C and SIGTERM are requests to stop, which the learner alone
    answers: iteration ends after the batch at hand, or at once where the collector is waiting for
    its environment, and the loop's owner may still save. Leaving, after an error too, shuts the
    collector down: its process ends and its shared memory is freed. An error in the collector's
    process is raised here while iterating, as a :class:`~unilab.errors.CollectorError`.

    Args:
        collector: a TorchRL collector, or any iterable of TensorDicts.

    Attributes:
        stop: whether a signal asked to stop, and the exit code that goes with it.
        collecting_s: seconds spent in the collector since :meth:`lap`.

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
        self.collecting_s = 0.0

    def __enter__(self) -> AsyncRunner:
        self.stop.__enter__()
        # Not TorchRL's own: asked to stop inside a batch, it hands out a part that is not filled.
        if isinstance(self.collector, PipelinedCollector):
            self.collector.interruptor = self.stop
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        finally:
            self.stop.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[TensorDictBase]:
        """The collector's batches, until it ends or a stop is asked for."""
        asked = time.perf_counter()
        for batch in self.collector:
            self.collecting_s += time.perf_counter() - asked
            yield batch
            if self.stop.requested:
                return
            asked = time.perf_counter()

    def lap(self) -> float:
        """Seconds spent in the collector since the last call."""
        seconds, self.collecting_s = self.collecting_s, 0.0
        return seconds

    def close(self) -> None:
        """Shut the collector down; a second call does nothing."""
        shutdown = getattr(self.collector, "shutdown", None)
        if shutdown is not None:
            shutdown()
