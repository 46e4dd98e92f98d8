"""Timing contenders against each other in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    # What this thread used, for a machine that others use too; meant for --threads 1.
    "cpu": time.thread_time,
}


def interleaved(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: str = "wall"
) -> dict[str, float]:
    """Median seconds of each contender; they take turns, so that all meet the same disturbances.

    Args:
        contenders: what to call, by name.
        rounds: calls of each.
        clock: a key of :data:`CLOCKS`.
    """
    now = CLOCKS[clock]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = now()
            call()
            seconds[name].append(now() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table with the first column left, the others right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *rest)))
