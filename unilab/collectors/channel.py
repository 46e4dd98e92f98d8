"""Messages between the learner and its collector process."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cloudpickle

from unilab.errors import CollectorError

__all__ = ["Channel", "by_value"]

_SIZE = struct.Struct("!Q")
_CHUNK = 1 << 16


class Channel:
    """One end of a connection, for whole messages of any size.

    Args:
        end: of a pair of stream sockets; closed by :meth:`close`.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._came = bytearray()
        self._unsent = b""

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def send(self, message: Any, wait: Callable[[], None] | None = None) -> None:
        """Send a message.

        Args:
            message: may hold instances of classes that the receiver sent, importable or not.
            wait: called while the other side takes no more; None: blocks. What it raises leaves
                the rest of the message to go before the next one.

        Raises:
            CollectorError: it cannot be pickled; nothing was sent.
            OSError: the other end is closed.
        """
        body = _pickled(message)
        data = memoryview(self._unsent + _SIZE.pack(len(body)) + body)
        flags = 0 if wait is None else socket.MSG_DONTWAIT
        try:
            while data:
                try:
                    data = data[self._socket.send(data, flags) :]
                except BlockingIOError:
                    assert wait is not None
                    wait()
        finally:
            self._unsent = bytes(data)

    def receive(self, wait: Callable[[], None] | None = None) -> Any:
        """The next message.

        Args:
            wait: returns once there is something to read; what it raises loses nothing.

        Raises:
            EOFError: the other end is closed.
        """
        while (body := self._whole()) is None:
            if wait is not None:
                wait()
            came = self._socket.recv(_CHUNK)
            if not came:
                raise EOFError
            self._came += came
        return pickle.loads(body)

    def close(self) -> None:
        """Close this end, which the other reads at once; a second call does nothing."""
        # Closing alone would not tell it, while a fork of this process holds the socket as well.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _whole(self) -> bytes | None:
        if len(self._came) < _SIZE.size:
            return None
        end = _SIZE.size + _SIZE.unpack_from(self._came)[0]
        if len(self._came) < end:
            return None
        body = bytes(self._came[_SIZE.size : end])
        del self._came[:end]
        return body


def by_value(what: str, value: Any) -> bytes:
    """Pickle what may be of the running script, which the other process does not import.

    Raises:
        CollectorError: it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise CollectorError(
            f"{what} cannot be sent between learner and collector process ({error}): use tensors, "
            "numbers, strings and containers of them"
        ) from error


def _pickled(message: Any) -> bytes:
    try:
        return pickle.dumps(message)
    except Exception:
        return by_value(f"a {message[0]!r} message", message)
