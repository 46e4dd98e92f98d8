"""What all tests share."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing import forkserver

import pytest
import torch
from reference.accelerator import Traffic, attached

from unilab.collectors import process


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


@pytest.fixture
def accelerator() -> Iterator[Traffic]:
    """Attach the emulated device ``reference.accelerator.DEVICE``; its copies and waits so far."""
    with attached() as traffic:
        yield traffic


@pytest.fixture
def warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork collector processes from one that has imported torch; a spawned one takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unilab.collectors.worker"])
    forkserver.ensure_running()
    monkeypatch.setattr(process, "_CONTEXT", context)
