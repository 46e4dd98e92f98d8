"""Ctrl-C, SIGTERM and SIGHUP as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

from unilab.collectors.settings import Interruptor

__all__ = ["StopRequest"]

_Result = TypeVar("_Result")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 3


class _Cut(BaseException):
    """Ends what may be cut short."""


class StopRequest:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted, not raised; the third ends at once.

    The second is noted as well: whoever presses Ctrl-C twice still gets a checkpoint. The third
    raises KeyboardInterrupt wherever the program is. SIGHUP, which a terminal sends when it is
    closed, stays ignored where it was (``nohup``).

    Outside the main thread, where Python delivers no signals, nothing is installed.

    Attributes:
        beside: another that may end collecting, if not the program; None: nobody else.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.beside: Interruptor | None = None
        self._count = 0
        self._cutting = False
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.signum is not None

    def collection_stopped(self) -> bool:
        """Whether collecting is to end, as TorchRL's collectors ask an interruptor."""
        return self.requested or (self.beside is not None and self.beside.collection_stopped())

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process ended by the signal (130 for Ctrl-C), else 0."""
        return 0 if self.signum is None else 128 + self.signum

    def cutting_short(self, work: Callable[[], _Result]) -> _Result | None:
        """Do what is of no use once a stop is asked for: a signal ends it at once.

        Returns:
            what ``work`` returns; None if it was cut short, or a stop was asked for before it.
        """
        try:
            try:
                self._cutting = True
                return None if self.requested else work()
            finally:
                self._cutting = False
        except _Cut:
            return None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            for signum in _SIGNALS[: -1 if ignored else None]:
                self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        self._count += 1
        if self._count == _PATIENCE:
            self._restore()
            raise KeyboardInterrupt
        if self._cutting:
            self._cutting = False
            raise _Cut

    def _restore(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous.clear()
