"""The ring: where entries lie, what is refused, what memory it takes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

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


def ring(layout: Layout, num_slots: int = 4) -> Ring:
    memory = torch.zeros(num_slots * layout.size(), dtype=torch.uint8)
    return Ring(memory, layout, num_slots)


def fill(ring: Ring, ticks: int) -> None:
    keys = ring.layout.root_keys + ring.layout.input_keys + ring.layout.next_keys
    for tick in range(ticks):
        ring.write(tick, transition(tick), keys)


def test_a_slot_gives_back_what_was_written(layout):
    held = ring(layout)
    fill(held, 4)
    for tick in range(4):
        assert (held.slot(tick) == transition(tick)).all()


def test_entries_are_aligned_and_do_not_overlap(layout):
    slot = ring(layout).slot(0)
    keys = layout.root_keys + layout.input_keys + layout.next_keys
    starts = [slot[key].data_ptr() for key in keys]
    ends = [slot[key].data_ptr() + slot[key].nbytes for key in keys]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert all((start - starts[0]) % 64 == 0 for start in starts)


def test_a_batch_is_the_slots_in_time_order_without_a_copy(layout):
    held = ring(layout)
    fill(held, 4)
    batch = held.batch(2, 2)
    assert batch.batch_size == torch.Size([3, 2])
    assert batch.names == [None, "time"]
    assert (batch == torch.stack([transition(2), transition(3)], 1)).all()
    held.slot(3)["obs"].fill_(7.0)
    assert (batch["obs"][:, 1] == 7.0).all()


def test_later_ticks_take_the_places_of_the_oldest(layout):
    held = ring(layout)
    fill(held, 6)
    assert [held.slot(t)["count"][0].item() for t in (2, 3, 4, 5)] == [2, 3, 4, 5]
    assert held.slot(5)["obs"].data_ptr() == held.slot(1)["obs"].data_ptr()


@pytest.mark.parametrize("tick", [-1, 0, 2, 3])
def test_what_a_tick_publishes_is_all_that_is_copied(layout, tick):
    source, copy = ring(layout), ring(layout)
    fill(source, 4)
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
    ("change", "message"),
    [
        ({"obs": torch.zeros(3, 6)}, "obs"),
        ({"obs": torch.zeros(3, 1)}, "obs"),
        ({"count": torch.zeros(3)}, "count"),
    ],
)
def test_an_entry_that_changes_is_refused(layout, change, message):
    with pytest.raises(CollectorError, match=message):
        ring(layout).write(0, transition().update(change), layout.root_keys)


def test_an_entry_that_is_missing_is_refused(layout):
    with pytest.raises(CollectorError, match="action"):
        ring(layout).write(0, transition().exclude("action"), layout.input_keys, "the policy")


def test_an_entry_that_is_no_tensor_is_refused():
    named = transition()
    named["name"] = "three"
    with pytest.raises(ConfigError, match="name"):
        Layout.of(named, ["action"])


def test_a_block_is_in_no_directory_and_seen_through_its_descriptor():
    block = SharedBlock()
    assert os.readlink(f"/proc/self/fd/{block.fd}").startswith("/memfd:")
    block.grow(1000)
    block.map(1000).fill_(3)
    same = SharedBlock(os.dup(block.fd))
    assert same.map(1000).eq(3).all()
    block.header[2] = 5
    assert same.header[2] == 5
    for each in (block, same, same):
        each.close()


def test_a_system_without_memfd_has_a_file_without_a_name(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    block = SharedBlock()
    block.grow(1000)
    block.map(1000).fill_(3)
    assert block.map(1000).eq(3).all()
    assert os.fstat(block.fd).st_nlink == 0
    block.close()


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


def test_a_small_dev_shm_does_not_matter():
    """In a mount namespace of its own, where /dev/shm holds 4 KiB."""
    code = (
        "import subprocess; from unilab.collectors.ring import SharedBlock; b = SharedBlock(); "
        "b.grow(1 << 20); b.map(1 << 20).fill_(1); print('held')"
    )
    mount = 'mount -t tmpfs -o size=4k tmpfs /dev/shm && exec "$0" -c "$1"'
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("mounting takes the rights of an administrator")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, sys.executable, code], capture_output=True, text=True
    )
    assert done.stdout == "held\n", done.stderr
