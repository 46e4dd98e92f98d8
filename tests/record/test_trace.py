"""The trace file: Chrome's JSON format."""

from __future__ import annotations

import json

from unilab.record.trace import write_trace


def test_spans_become_complete_events_in_microseconds_of_one_clock(tmp_path):
    write_trace(
        tmp_path / "trace.json",
        {
            "learner": (10, [("update", 5_000, 9_000, 0), ("update", 12_000, 15_500, 1)]),
            "collector": (11, [("step", 7_000, 13_000, 1)]),
        },
    )
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {10: "learner", 11: "collector"}
    spans = [(e["pid"], e["name"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"]
    # From when both were there.
    assert spans == [(10, "update", 5.0, 3.5, {"tick": 1}), (11, "step", 0.0, 6.0, {"tick": 1})]
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_a_run_without_spans_has_an_empty_trace(tmp_path):
    write_trace(tmp_path / "trace.json", {"learner": (10, [])})
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M"}
