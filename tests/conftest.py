"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch
from reference.warm import WarmStarts

from unilab.collectors import child


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Its batches gain nothing from more, and test processes run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def heeded_hangup() -> Iterator[None]:
    """Under nohup a suite ignores SIGHUP, and so would every program that it starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def warm_starts() -> Iterator[WarmStarts]:
    starts = WarmStarts()
    yield starts
    starts.close()


@pytest.fixture
def warm_start(warm_starts: WarmStarts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collector processes begin with everything imported; how they start is tested elsewhere."""
    monkeypatch.setattr(child, "start", warm_starts.start)
