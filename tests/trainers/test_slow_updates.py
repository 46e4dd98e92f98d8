"""The warning for updates that take many times their median."""

from __future__ import annotations

import warnings

import pytest
import torch

from unilab.trainers.slow_updates import SlowUpdates


@pytest.fixture
def threads():
    """Sets the number of PyTorch's threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_updates_that_become_many_times_slower_on_several_threads_warn_once(threads):
    threads(2)
    updates = SlowUpdates()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seconds in [0.01] * 40 + [0.2] * 4:  # a few come from anything: a suspended program
            updates.add(seconds)
    with pytest.warns(RuntimeWarning, match=r"median of 10 ms.*training\.num_threads=1"):
        updates.add(0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updates.add(0.2)


@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        (1, [0.01] * 40 + [0.2] * 10),  # one thread waits for nobody
        (2, [0.01] * 40 + [0.04] * 10),  # the share of a busy machine
        (2, [60.0] * 5 + [0.01] * 40),  # compilation
    ],
)
@pytest.mark.filterwarnings("error")
def test_updates_without_threads_that_wait_for_each_other_do_not_warn(threads, count, seconds):
    threads(count)
    updates = SlowUpdates()
    for each in seconds:
        updates.add(each)
