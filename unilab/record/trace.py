"""Chrome traces: which process did what when, for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unilab.record.run_folder import write_whole

__all__ = ["write_trace"]


def write_trace(
    path: Path, processes: Mapping[str, tuple[int, Sequence[tuple[str, int, int, int]]]]
) -> None:
    """Write spans of time as a trace in Chrome's JSON format.

    Args:
        path: the file.
        processes: name -> (process id, spans), a span being (name, begin in ns, end in ns, tick).
            All times are of one clock. The trace begins where the spans of every process do.

    Raises:
        CheckpointError: the file cannot be written.
    """
    begin = max((min(s[1] for s in spans) for _, spans in processes.values() if spans), default=0)
    events: list[dict[str, Any]] = []
    for order, (process, (pid, spans)) in enumerate(processes.items()):
        events += _named(process, pid, order)
        events += _complete(pid, spans, begin)
    write_whole(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _named(process: str, pid: int, order: int) -> Iterable[dict[str, Any]]:
    for kind, args in (
        ("process_name", {"name": process}),
        ("process_sort_index", {"sort_index": order}),
    ):
        yield {"ph": "M", "name": kind, "pid": pid, "tid": pid, "args": args}


def _complete(
    pid: int, spans: Iterable[tuple[str, int, int, int]], begin: int
) -> Iterable[dict[str, Any]]:
    for name, began, ended, tick in spans:
        if began >= begin:
            # Microseconds are the format's unit.
            yield {
                "ph": "X",
                "name": name,
                "pid": pid,
                "tid": pid,
                "ts": (began - begin) / 1e3,
                "dur": (ended - began) / 1e3,
                "args": {"tick": tick},
            }
