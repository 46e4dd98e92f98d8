"""Ring of transitions and the memory it is in."""

from __future__ import annotations

import os
import resource

import pytest
import torch
from tensordict import TensorDict

from unilab.collectors.ring import Layout, Ring, SharedBlock
from unilab.errors import CollectorError, ConfigError


def transition(value: float = 0.0) -> TensorDict:
    flag = torch.zeros(3, 1, dtype=torch.bool)
    return TensorDict(
        {
            "obs": torch.full((3, 5), float(value)),
            "count": torch.full((3,), int(value)),
            "done": flag,
            "action": torch.full((3, 2), value, dtype=torch.float64),
            "next": {"obs": torch.full((3, 5), value + 0.5), "done": ~flag},
        },
        [3],
    )


@pytest.fixture
def layout() -> Layout:
    return Layout.of(transition(), ["action"])


def ring(layout: Layout, ticks: int) -> Ring:
    """Four slots, written for this many ticks."""
    made = Ring(torch.zeros(4 * layout.size(layout.keys), dtype=torch.uint8), layout, 4)
    for tick in range(ticks):
        made.write(tick, transition(tick), layout.root_keys + layout.input_keys + layout.next_keys)
    return made


def test_later_ticks_take_the_slots_of_the_oldest_and_entries_do_not_overlap(layout):
    held = ring(layout, 6)
    for tick in (2, 3, 4, 5):
        assert (held.slot(tick) == transition(tick)).all()
    assert held.slot(5)["obs"].data_ptr() == held.slot(1)["obs"].data_ptr()


def test_batch_is_the_slots_in_time_order_without_a_copy(layout):
    held = ring(layout, 4)
    batch = held.batch(2, 2)
    assert batch.batch_size == torch.Size([3, 2])
    assert batch.names == [None, "time"]
    assert (batch == torch.stack([transition(2), transition(3)], 1)).all()
    held.slot(3)["obs"].fill_(7.0)
    assert (batch["obs"][:, 1] == 7.0).all()


@pytest.mark.parametrize("tick", [-1, 0, 2, 3])
def test_copy_published_copies_what_a_tick_publishes_and_nothing_else(layout, tick):
    source, copy = ring(layout, 4), ring(layout, 0)
    source.slot(0)["obs"].fill_(9.0)
    copy.copy_published(tick, source)
    if tick >= 0:
        assert (copy.slot(tick)["next"] == source.slot(tick)["next"]).all()
    root = source.slot(tick + 1).select(*layout.root_keys)
    assert (copy.slot(tick + 1).select(*layout.root_keys) == root).all()
    published = layout.size(layout.next_keys) * (tick >= 0) + layout.size(layout.root_keys)
    assert 0 < copy.memory.count_nonzero() <= published
    assert not copy.slot(tick + 1)["action"].any()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("obs", torch.zeros(3, 6)),
        ("obs", torch.zeros(3, 1)),
        ("count", torch.zeros(3)),
        ("count", None),
    ],
)
def test_entry_unlike_the_specs_is_refused(layout, key, value):
    source = transition().exclude(key) if value is None else transition().set(key, value)
    with pytest.raises(CollectorError, match=key):
        ring(layout, 0).write(0, source, layout.root_keys)


def test_entry_that_is_not_a_tensor_is_refused():
    with pytest.raises(ConfigError, match="name"):
        Layout.of(transition().set_non_tensor("name", "three"), ["action"])


@pytest.mark.parametrize("memfd", [True, False])
def test_c29_block_has_no_name_and_is_shared_through_its_descriptor(monkeypatch, memfd):
    if not memfd:  # as on macOS
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.delattr(os, "posix_fallocate")
    block = SharedBlock()
    block.grow(1000)
    block.map(1000).fill_(3)
    same = SharedBlock(os.dup(block.fd))
    assert same.map(1000).eq(3).all()
    block.header[2] = 5
    assert same.header[2] == 5
    assert os.fstat(block.fd).st_nlink == 0
    for each in (block, same):
        each.close()


def test_memory_that_is_not_there_is_refused_with_the_size():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    block = SharedBlock()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CollectorError, match=r"8\.0 MiB"):
            block.grow(8 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        block.close()
