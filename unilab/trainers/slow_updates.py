"""Warning for updates that take many times their median."""

from __future__ import annotations

import statistics
import warnings
from collections import deque

import torch

_WINDOW, _TIMES, _SLOW = 50, 5, 5


class SlowUpdates:
    """Watches the times of updates on CPU threads, and warns once if several are far too slow.

    Threads that wait for each other spin. If another program takes the core of one of them, the
    others spin on cores that the program could use instead, and all become slow.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._warned = False

    def add(self, seconds: float) -> None:
        """Add the time of one update."""
        self._seconds.append(seconds)
        if self._warned or len(self._seconds) < _WINDOW // 2:
            return
        median = statistics.median(self._seconds)
        if seconds <= _TIMES * median or torch.get_num_threads() == 1:
            return
        slow = sum(each > _TIMES * median for each in self._seconds)
        if slow >= _SLOW:
            self._warned = True
            warnings.warn(
                f"{slow} of {len(self._seconds)} updates took more than {_TIMES} times their "
                f"median of {1e3 * median:.0f} ms, the last one {1e3 * seconds:.0f} ms: "
                f"{torch.get_num_threads()} threads wait for each other on cores that other "
                "programs use. Set training.num_threads=1 or call torch.set_num_threads(1), or "
                "start Python with GOMP_SPINCOUNT=10000",
                RuntimeWarning,
                stacklevel=3,
            )
