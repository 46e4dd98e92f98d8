"""Where time goes: what is added up, what is kept, who reports."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest
from reference.counting import Counting
from torchrl.envs import InitTracker, TransformedEnv

import unilab
from unilab.collectors.ring import SharedBlock
from unilab.collectors.spans import COLLECTOR_SPANS, Spans, milliseconds, report_spans

KEPT = 8188


def test_spans_are_added_up_by_name_and_kept_in_the_order_of_their_ends():
    spans = Spans(("outer", "inner", "never"))
    spans.add("inner", 100, 130, 4)
    spans.add("outer", 90, 150, 4)
    spans.add("inner", 200, 205, 5)
    assert spans.totals() == {"outer": 60, "inner": 35, "never": 0}
    assert spans.latest() == [("inner", 100, 130, 4), ("outer", 90, 150, 4), ("inner", 200, 205, 5)]


def test_the_body_of_a_with_is_a_span_even_if_it_raises():
    spans = Spans(("work",))
    before = time.perf_counter_ns()
    with pytest.raises(ZeroDivisionError), spans.span("work", 7):
        _ = 1 / 0
    (span,) = spans.latest()
    assert before <= span.begin_ns <= span.end_ns <= time.perf_counter_ns()
    assert span.tick == 7
    assert spans.totals() == {"work": span.end_ns - span.begin_ns}


def test_only_the_latest_are_kept_and_all_are_added_up():
    spans = Spans(("work",))
    for i in range(KEPT + 100):
        spans.add("work", i, i + 1, i)
    # One less than there is room for: the oldest may be just about to be overwritten.
    assert [span.tick for span in spans.latest()] == list(range(101, KEPT + 100))
    assert spans.totals() == {"work": KEPT + 100}


def test_another_process_sees_them_in_shared_memory():
    block = SharedBlock()
    Spans(COLLECTOR_SPANS, block.spans).add("physics", 1, 3, 0)
    seen = SharedBlock(block.fd)
    assert Spans(COLLECTOR_SPANS, seen.spans).latest() == [("physics", 1, 3, 0)]
    block.close()


def test_reading_while_another_adds_gives_whole_spans_only():
    spans = Spans(("work",))
    end = time.monotonic() + 1.0

    def add() -> None:
        i = 0
        while time.monotonic() < end:
            spans.add("work", i, 3 * i, 2 * i)
            i += 1

    thread = threading.Thread(target=add)
    thread.start()
    reads = 0
    while thread.is_alive():
        latest = spans.latest()
        assert all(s.end_ns == 3 * s.begin_ns and s.tick == 2 * s.begin_ns for s in latest)
        assert all(b.tick - a.tick == 2 for a, b in pairwise(latest))
        reads += 1
    assert reads > 3
    assert spans.totals()["work"] > 0


def test_an_environment_reports_its_physics_managers_and_resets_under_transforms():
    env = TransformedEnv(unilab.make("pendulum_swingup", num_envs=2, seed=0), InitTracker())
    seen = []
    report_spans(env, lambda *span: seen.append(span))
    env.step(env.rand_action(env.reset()))
    assert [name for name, _, _ in seen] == ["reset", "physics", "managers"]
    times = [moment for _, *moments in seen for moment in moments]
    assert times == sorted(times)
    report_spans(env, None)
    env.reset()
    assert len(seen) == 3


def test_an_environment_that_reports_nothing_is_left_as_it_is():
    env = Counting()()
    report_spans(env, print)
    assert "on_span" not in vars(env)


def test_metrics_are_means_over_ticks_of_what_took_time():
    assert milliseconds({"ring wait": 6_000_000, "reset": 0}, 3) == {"Perf/ring_wait_ms": 2.0}
