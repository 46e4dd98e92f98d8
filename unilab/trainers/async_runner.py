"""Lifecycle of a training loop: the collector's shutdown, and signals as requests to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Self, TypeVar

from tensordict import TensorDictBase

from unilab.collectors import PipelinedCollector, RolloutCollector
from unilab.trainers.ranks import Ranks

_Result = TypeVar("_Result")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_SIGNALS = 3


class _Aborted(BaseException):
    """Raised by the signal handler inside :meth:`AsyncRunner.abort_on_stop`."""


class AsyncRunner:
    """Iterates a collector, stops it on signals, and always shuts it down.

    From entering to leaving, Ctrl-C, SIGTERM and SIGHUP are requests to stop: iteration ends after
    the current batch, or at once while a pipelined collector waits for its environment, so that the
    caller can still save. The second signal changes nothing; the third raises KeyboardInterrupt at
    once. SIGHUP stays ignored under ``nohup``. Outside the main thread, which alone receives
    signals in Python, no handlers are installed.

    Leaving shuts the collector down, after an error too: its process ends and its shared memory is
    freed. An error in the collector's process is raised here while iterating, as a
    :class:`~unilab.errors.CollectorError`.

    Several :class:`~unilab.trainers.Ranks` stop after the same batch, if a signal reached one.
    Their batches must be equal in number.

    Args:
        collector: a TorchRL collector, or any iterable of TensorDicts. A
            collector of ``unilab.collectors`` without an interruptor gets this runner as its
            interruptor.

    Examples:
        >>> from tensordict import TensorDict
        >>> with AsyncRunner([TensorDict({}, [4])]) as runner:
        ...     frames = sum(batch.numel() for batch in runner)
        >>> frames, runner.exit_code
        (4, 0)
    """

    def __init__(self, collector: Iterable[TensorDictBase]) -> None:
        self.collector: Any = collector
        self.ranks = Ranks()
        self._signum: int | None = None
        self._signals = 0
        self._aborting = False
        self._handlers: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """0, or 128 + the first signal received (130 for Ctrl-C), as shells expect."""
        return 0 if self._signum is None else 128 + self._signum

    def collection_stopped(self) -> bool:
        """Whether a signal asked to stop; the method that collectors ask of an interruptor."""
        return self._signum is not None

    def abort_on_stop(self, work: Callable[[], _Result]) -> _Result | None:
        """The result of ``work``; None if a stop signal aborts it or came before."""
        try:
            try:
                self._aborting = True
                return None if self.collection_stopped() else work()
            finally:
                self._aborting = False
        except _Aborted:
            return None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            for signum in _SIGNALS[: -1 if ignored else None]:
                self._handlers[signum] = signal.signal(signum, self._on_signal)
        # Not for TorchRL's collectors: stopped inside a batch, they return one with unfilled rows.
        # Nor for one of several ranks: the others would wait for the rest of its batch.
        if (
            isinstance(self.collector, PipelinedCollector | RolloutCollector)
            and self.collector.env.interruptor is None
            and self.ranks.size == 1
        ):
            self.collector.env.interruptor = self
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if hasattr(self.collector, "shutdown"):
                self.collector.shutdown()
        finally:
            self._restore_handlers()

    def __iter__(self) -> Iterator[TensorDictBase]:
        """The collector's batches, until it ends or a stop is requested.

        A collector with a replay buffer yields None for each batch.
        """
        for batch in self.collector:
            yield batch
            if self._agree_to_stop():
                return

    def _agree_to_stop(self) -> bool:
        """Whether a rank wants to stop now; the others take over the signal that it received."""
        wanted = self.ranks.max(2 * (self._signum or 0) + self._time_is_up())
        self._signum = self._signum or wanted // 2 or None
        return wanted > 0

    def _time_is_up(self) -> bool:
        """Whether to stop without a signal."""
        return False

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._signum = self._signum or signum
        self._signals += 1
        # A terminal's Ctrl-C reaches a rank twice, the launcher sends it too; that one has a limit.
        if self._signals == _MAX_SIGNALS and self.ranks.size == 1:
            self._restore_handlers()
            raise KeyboardInterrupt
        if self._aborting:
            self._aborting = False
            raise _Aborted

    def _restore_handlers(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())
