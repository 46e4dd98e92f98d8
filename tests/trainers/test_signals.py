"""Signals become a request to stop."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from unilab.trainers.signals import StopRequest


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_first_signal_is_noted_with_the_exit_code_of_a_shell(signum, code):
    with StopRequest() as stop:
        assert not stop.requested
        assert stop.exit_code == 0
        os.kill(os.getpid(), signum)
        assert stop.requested
    assert stop.exit_code == code


def test_the_second_signal_is_noted_as_well_and_the_third_interrupts_at_once():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_ends_at_once_what_may_be_cut_short_and_nothing_else():
    with StopRequest() as stop:
        assert stop.cutting_short(lambda: 3) == 3
        assert stop.cutting_short(lambda: [os.kill(os.getpid(), signal.SIGINT), 3]) is None
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_came_before_ends_it_as_well():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.cutting_short(lambda: 3) is None


def test_handlers_are_put_back(monkeypatch):
    def mine(signum, frame):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with StopRequest():
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_terminal_that_closes_means_nothing_where_it_was_to_be_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_installed():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run():
        with StopRequest() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
