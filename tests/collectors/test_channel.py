"""Whole messages over a pair of sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilab.collectors.channel import Channel
from unilab.errors import CollectorError

LARGE = b"x" * 5_000_000


class Given(Exception):
    """What a wait raises."""


def stop() -> None:
    raise Given


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ends = [Channel(end) for end in socket.socketpair()]
    yield ends[0], ends[1]
    for end in ends:
        end.close()


@given(st.lists(st.tuples(st.text(), st.binary(max_size=300)), max_size=20))
def test_messages_arrive_whole_and_in_their_order(messages):
    ours, theirs = (Channel(end) for end in socket.socketpair())
    for message in messages:
        ours.send(message)
    assert [theirs.receive() for _ in messages] == messages
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
    theirs.close()


def test_what_interrupts_a_message_leaves_the_rest_of_it_to_go_before_the_next(pair):
    ours, theirs = pair
    with pytest.raises(Given):
        ours.send(LARGE, stop)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.extend(theirs.receive() for _ in range(2)))
    reader.start()
    ours.send(b"next")
    reader.join()
    assert received == [LARGE, b"next"]


def test_what_interrupts_receiving_loses_nothing(pair):
    ours, theirs = pair
    with pytest.raises(Given):
        ours.send(LARGE, stop)
    waits = iter([lambda: None, stop])
    with pytest.raises(Given):
        theirs.receive(lambda: next(waits)())
    writer = threading.Thread(target=ours.send, args=(b"next",))
    writer.start()
    assert [theirs.receive(), theirs.receive()] == [LARGE, b"next"]
    writer.join()


def test_what_cannot_be_pickled_is_refused_before_anything_is_sent(pair):
    ours, theirs = pair
    with pytest.raises(CollectorError, match=r"a 'lock' message cannot be sent .*: use tensors"):
        ours.send(("lock", threading.Lock()))
    ours.send("next")
    assert theirs.receive() == "next"
