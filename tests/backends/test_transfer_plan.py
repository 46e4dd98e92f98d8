"""Packed reads: one fixed layout, one copy a phase."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unilab.backends import HostBridgeTransferPlan
from unilab.errors import ConfigError

N = 4
CPU = torch.device("cpu")
VIEWS = {
    "a": torch.arange(N * 6, dtype=torch.float64).reshape(N, 6),
    "b": 100 + torch.arange(N * 3, dtype=torch.float64).reshape(N, 3),
}


def blocks() -> st.SearchStrategy[list[tuple[str, slice]]]:
    def cut(name: str) -> st.SearchStrategy[tuple[str, slice]]:
        width = VIEWS[name].shape[1]
        return st.tuples(st.integers(0, width - 1), st.integers(1, width)).map(
            lambda t: (name, slice(t[0], min(width, t[0] + t[1])))
        )

    return st.lists(st.sampled_from(sorted(VIEWS)).flatmap(cut), min_size=1, max_size=6)


@settings(deadline=None)
@given(blocks())
def test_every_block_is_at_its_columns_and_shared_columns_are_read_once(sources):
    plan = HostBridgeTransferPlan(VIEWS, sources, CPU)
    packet = plan.read()
    assert packet.dtype == torch.float32
    for (name, cols), at in zip(sources, plan.columns, strict=True):
        assert torch.equal(packet[:, at], VIEWS[name][:, cols].float())
    columns = {(name, c) for name, cols in sources for c in range(cols.start, cols.stop)}
    assert packet.shape == (N, len(columns))
    assert (plan.transfers, plan.bytes) == (0, 0)


def test_columns_that_lie_side_by_side_in_memory_are_one_copy():
    rows = torch.arange(N * 8, dtype=torch.float64).reshape(N, 8)
    views = {"left": rows[:, 1:4], "right": rows[:, 4:6], "apart": rows[:, 7:]}
    plan = HostBridgeTransferPlan(views, [(name, slice(None)) for name in views], CPU)
    assert sorted(tuple(v.shape) for v in plan._views) == [(N, 1), (N, 5)]
    packet = plan.read()
    for name, at in zip(views, plan.columns, strict=True):
        assert torch.equal(packet[:, at], views[name].float()), name


def test_reading_rows_updates_those_rows_only():
    views = {"a": VIEWS["a"].clone()}
    plan = HostBridgeTransferPlan(views, [("a", slice(1, 3))], CPU)
    plan.read()
    before = plan.packet.clone()
    views["a"] += 1000.0
    plan.read_rows(torch.tensor([0, 3]))
    assert torch.equal(plan.packet[[0, 3]], before[[0, 3]] + 1000.0)
    assert torch.equal(plan.packet[[1, 2]], before[[1, 2]])


@pytest.mark.parametrize("columns", [slice(0, 6, 2), slice(None, None, -1)])
def test_columns_that_are_not_adjacent_are_refused(columns):
    with pytest.raises(ConfigError, match="'a'"):
        HostBridgeTransferPlan(VIEWS, [("a", columns)], CPU)
