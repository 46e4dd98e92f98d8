"""The collector process, seen from the learner's: its start and its end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from unilab.collectors import entry
from unilab.collectors.channel import Channel
from unilab.collectors.ring import SharedBlock
from unilab.collectors.worker import Phase, Word

__all__ = ["end", "end_quietly", "start"]


def start(end: socket.socket, block: SharedBlock) -> subprocess.Popen[bytes]:
    """Start the process, which shares ``block`` and talks through ``end``."""
    # Never those of the standard streams, which a daemon may have closed.
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (end.fileno(), block.fd)]
    # Not multiprocessing's spawn: that imports the caller's script again, which a script without an
    # `if __name__ == "__main__"` guard does not survive.
    arguments = (json.dumps(sys.path), os.getpid(), *fds)
    command = [sys.executable, entry.__file__, *map(str, arguments)]
    # The mask is inherited: a signal must not kill the process before it can ignore it itself.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, entry.LEARNERS)
    try:
        return subprocess.Popen(command, pass_fds=fds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd in fds:
            os.close(fd)


def end(
    process: subprocess.Popen[bytes], channel: Channel, block: SharedBlock, timeout_s: float
) -> None:
    """End the process, killing it if it takes longer than that, and free what it shares."""
    # The process reads the end of the connection and closes its environment, if it has one yet.
    channel.close()
    try:
        process.wait(0.0 if block.header[Word.PHASE] <= Phase.BUILD else timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except BaseException:
        # Ctrl-C: who does not want to wait does not want it to live on either.
        process.kill()
        process.wait()
        raise
    finally:
        block.close()


def end_quietly(
    owner: int, process: subprocess.Popen[bytes], channel: Channel, block: SharedBlock
) -> None:
    """The same as a finalizer of the process ``owner``; a fork of it has no part in this."""
    if os.getpid() != owner:
        return
    # No caller could catch a KeyboardInterrupt: Python would print its traceback.
    with suppress(KeyboardInterrupt):
        end(process, channel, block, 5.0)
