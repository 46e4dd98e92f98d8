"""Whether a process runs, its semaphores, and waiting for what another one does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def semaphores() -> set[str]:
    """Named semaphores that this process has open."""
    return set(re.findall(r"/dev/shm/sem\.\w+", Path("/proc/self/maps").read_text()))


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
    return time.monotonic() - began
