"""What tests of collectors share."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from unilab.collectors import PipelinedCollector


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process, descriptor, thread, shared memory or semaphore more than before.

    POSIX semaphores are mapped from /dev/shm, as named memory is.
    """

    def held() -> dict[str, Any]:
        gc.collect()
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "segments": Path("/proc/self/maps").read_text().count("unilab-ring"),
            "named": Path("/proc/self/maps").read_text().count("/dev/shm/"),
            "system v": [Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem")],
            "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
        }

    resource_tracker.ensure_running()  # of multiprocessing, one for the rest of this process
    before = held()
    yield
    assert held() == before


@pytest.fixture
def pipelined() -> Iterator[Callable[..., PipelinedCollector]]:
    made: list[PipelinedCollector] = []

    def make(*args: Any, **kwargs: Any) -> PipelinedCollector:
        made.append(PipelinedCollector(*args, **kwargs))
        return made[-1]

    yield make
    for collector in made:
        collector.shutdown()
