"""Ctrl-C and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopRequest"]


class StopRequest:
    """While entered, the first SIGINT or SIGTERM is noted instead of raised; a second one ends.

    Outside the main thread, where Python delivers no signals, nothing is installed.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.signum is not None

    def collection_stopped(self) -> bool:
        """The same, as TorchRL's collectors ask an interruptor."""
        return self.requested

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process ended by the signal (130 for Ctrl-C), else 0."""
        return 0 if self.signum is None else 128 + self.signum

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
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
        self.signum = signum
        # Someone who asks twice does not want to wait for the step to end.
        self._restore()

    def _restore(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous.clear()
