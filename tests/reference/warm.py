"""Collector processes forked from one that has imported everything already.

A new interpreter takes seconds to import torch. Tests that make many collectors, and do not ask how
a process starts, have them forked; what runs in them from there on is the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import NoReturn

from unilab.collectors import entry
from unilab.collectors.ring import SharedBlock

_SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER``: orphans among its descendants become a process's own children."""


class WarmStarts:
    """A process to fork from, until :meth:`close`."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = (json.dumps(sys.path), str(os.getpid()), str(theirs.fileno()))
        self._server = subprocess.Popen(
            [sys.executable, __file__, *arguments], pass_fds=(theirs.fileno(),)
        )
        theirs.close()

    def start(self, end: socket.socket, block: SharedBlock) -> ForkedProcess:
        """As :func:`unilab.collectors.child.start`."""
        libc = ctypes.CDLL(None)
        libc.prctl(_SUBREAPER, 1)
        try:
            path = json.dumps(sys.path).encode()
            socket.send_fds(self._connection, [path], [end.fileno(), block.fd, 1, 2])
            pid = int(self._connection.recv(100))
            self._connection.recv(100)  # from now on it is a child of this process
        finally:
            libc.prctl(_SUBREAPER, 0)
        return ForkedProcess(pid)

    def close(self) -> None:
        """End the process to fork from."""
        self._connection.close()
        self._server.wait(60.0)


class ForkedProcess:
    """What :class:`subprocess.Popen` offers, of a child that was not started here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(entry.__file__, timeout or 0.0)
            time.sleep(0.001)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _serve(tests: int, connection: socket.socket) -> None:
    """Fork a process for each request; it becomes a child of the tests'."""
    from unilab.collectors import worker  # noqa: F401  what a process would import

    signal.pthread_sigmask(signal.SIG_BLOCK, entry.LEARNERS)  # as the real start does
    while True:
        path, fds, _, _ = socket.recv_fds(connection, 1 << 20, 4)
        if not path:
            return
        between = os.fork()
        if not between:
            pid = os.fork()
            if not pid:
                _run(tests, connection, path, fds)
            connection.send(str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        connection.send(b"an orphan now")
        for fd in fds:
            os.close(fd)


def _run(tests: int, connection: socket.socket, path: bytes, fds: list[int]) -> NoReturn:
    connection.close()
    while os.getppid() != tests:
        time.sleep(0.0001)
    sys.path[:] = json.loads(path)
    for stream, fd in zip((1, 2), fds[2:], strict=True):
        os.dup2(fd, stream)
        os.close(fd)
    entry.main(tests, *fds[:2])
    os._exit(1)  # it does not return


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])
    _serve(int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
