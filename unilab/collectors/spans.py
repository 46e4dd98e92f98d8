"""Where time goes: totals by name, and the latest spans for a trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import NamedTuple

from torchrl.envs import EnvBase, TransformedEnv

__all__ = [
    "COLLECTOR_SPANS",
    "LEARNER_SPANS",
    "SPANS_BYTES",
    "OnSpan",
    "Span",
    "Spans",
    "milliseconds",
    "report_spans",
]

COLLECTOR_SPANS = ("wait", "step", "physics", "managers", "reset")
"""Of the collector process: waiting for an action; a whole step and what it consists of."""
LEARNER_SPANS = (
    "collect",
    "inference",
    "ring wait",
    "physics",
    "managers",
    "reset",
    "replay",
    "update",
    "evaluate",
    "log",
    "save",
)
"""Of the learner's process; physics, managers and reset where the environment is in it as well."""

OnSpan = Callable[[str, int, int], None]
"""Called with a name, a begin and an end in ns of ``time.perf_counter_ns``."""

_HEAD, _RECORD = 16, 4
_KEPT = 8188
SPANS_BYTES = 8 * (_HEAD + _RECORD * _KEPT)
"""Memory that :class:`Spans` takes, whole pages."""


class Span(NamedTuple):
    """One piece of work; times are of ``time.perf_counter_ns``."""

    name: str
    begin_ns: int
    end_ns: int
    tick: int
    """Of the transitions that the work is for."""


class Spans:
    """Adds spans up by name and keeps the latest 8188 of them.

    ``time.perf_counter_ns`` is one clock for all processes of a machine, so spans of several can be
    laid side by side. In shared memory one process adds and another may read at any time.

    Args:
        names: that there will be, 15 at most.
        memory: ``SPANS_BYTES`` as int64 words, zero at first; None: of its own.
    """

    def __init__(self, names: Iterable[str], memory: memoryview | None = None) -> None:
        # Word 0 counts the spans, one word each adds up a name, then name, begin, end, tick.
        self._words = memoryview(bytearray(SPANS_BYTES)).cast("q") if memory is None else memory
        self._names = tuple(names)
        self._number = {name: i for i, name in enumerate(self._names, 1)}

    def add(self, name: str, begin_ns: int, end_ns: int, tick: int) -> None:
        """Account for a piece of work."""
        words, number = self._words, self._number[name]
        count = words[0]
        at = _HEAD + _RECORD * (count % _KEPT)
        words[at] = number
        words[at + 1] = begin_ns
        words[at + 2] = end_ns
        words[at + 3] = tick
        words[number] += end_ns - begin_ns
        words[0] = count + 1

    def span(self, name: str, tick: int) -> _Open:
        """The same for the body of a ``with``."""
        return _Open(self, name, tick)

    def totals(self) -> dict[str, int]:
        """Nanoseconds by name, since the beginning."""
        return {name: self._words[number] for name, number in self._number.items()}

    def latest(self) -> list[Span]:
        """The latest spans, in the order in which they ended."""
        end = self._words[0]
        records = {i: self._record(i) for i in range(max(0, end - _KEPT), end)}
        # What was overwritten meanwhile, the record being written now included, is none.
        first = self._words[0] + 1 - _KEPT
        return [record for i, record in records.items() if i >= first]

    def _record(self, index: int) -> Span:
        at = _HEAD + _RECORD * (index % _KEPT)
        number, begin, end, tick = self._words[at : at + _RECORD].tolist()
        return Span(self._names[number - 1], begin, end, tick)


class _Open:
    __slots__ = ("_begin", "_name", "_spans", "_tick")

    def __init__(self, spans: Spans, name: str, tick: int) -> None:
        self._spans = spans
        self._name = name
        self._tick = tick

    def __enter__(self) -> None:
        self._begin = time.perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spans.add(self._name, self._begin, time.perf_counter_ns(), self._tick)


def report_spans(env: EnvBase, on_span: OnSpan | None) -> None:
    """Have an environment report its physics, managers and resets, if it is one that does.

    Args:
        env: maybe under transforms; reports if its class has an attribute ``on_span``.
        on_span: whom to report to; None: nobody.
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if hasattr(type(env), "on_span"):
        env.on_span = on_span


def milliseconds(spent_ns: Mapping[str, int], ticks: int) -> dict[str, float]:
    """Metrics of the time that pieces of work took, as means over ticks.

    Args:
        spent_ns: time by name; names without any are left out.
        ticks: control steps of all environments.

    Returns:
        ``Perf/<name>_ms``.
    """
    return {
        f"Perf/{name.replace(' ', '_')}_ms": spent / ticks / 1e6
        for name, spent in spent_ns.items()
        if spent
    }
