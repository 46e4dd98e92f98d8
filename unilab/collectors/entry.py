"""Where the collector process begins: a script of the standard library alone, run by its path.

Importing torch takes seconds, and signals and the end of the learner do not wait for it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from types import FrameType

LEARNERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that only the learner answers."""
_WATCH_S = 0.5


def main(learner: int, connection_fd: int, block_fd: int) -> None:
    """The process, until the learner closes the connection or is gone."""
    threading.Thread(target=_exit_with, args=(learner,), daemon=True).start()
    # Ctrl-C, and often the others, reach every process of the group; what they mean is the
    # learner's to decide. A handler, unlike SIG_IGN, is not inherited: they end what is started
    # here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave_to_the_learner)
    signal.signal(signal.SIGHUP, _leave_to_the_learner)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEARNERS)
    from unilab.collectors import worker

    worker.main(connection_fd, block_fd)


def _exit_with(learner: int) -> None:
    """End this process, whatever it is doing, soon after the learner ended."""
    while os.getppid() == learner:
        time.sleep(_WATCH_S)
    os._exit(1)


def _leave_to_the_learner(signum: int, frame: FrameType | None) -> None: ...


def _open_streams() -> None:
    """Have no later file take the place of a standard stream that is closed."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(fd)


if __name__ == "__main__":
    _open_streams()
    sys.path[:] = json.loads(sys.argv[1])
    main(*map(int, sys.argv[2:]))
