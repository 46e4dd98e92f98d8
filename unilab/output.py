"""Output and exit codes of commands: one line for an expected error, output that cannot fail."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from unilab.errors import UnilabError, mujoco_imports

_REFUSALS = [
    os.strerror(number)
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EFBIG, errno.EROFS, errno.EIO)
]
_TRACEBACKS = os.environ.get("HYDRA_FULL_ERROR") == "1"


def exit_code(run: Callable[[], int | None]) -> int:
    """Run a command; returns its exit code, 0 by default.

    An expected error, or a file that the system refuses, is one line and 2; with
    ``HYDRA_FULL_ERROR=1`` it is raised. Ctrl-C is 130. A standard output that nobody reads any
    more, as after ``| head``, is 141.
    """
    _open_standard_streams()
    try:
        with mujoco_imports():
            code = run() or 0
        if sys.stdout is not None:  # it was closed when Python started
            sys.stdout.flush()
        return code
    except Exception as error:
        if isinstance(error, BrokenPipeError) and not _is_read(sys.stdout):
            return 128 + signal.SIGPIPE
        cause = _expected(error)
        if cause is None or _TRACEBACKS:
            raise
        say(f"error: {cause}", *getattr(cause, "__notes__", ()), stream=sys.stderr)
        return 2
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
        say("Interrupted.", stream=sys.stderr)
        return 130
    finally:
        for stream in (sys.stdout, sys.stderr):
            flush(stream)  # or Python would fail to, with exit code 120


def _open_standard_streams() -> None:
    """Give closed ones (``>&-``) to /dev/null, or the next files opened would take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _expected(error: BaseException | None) -> BaseException | None:
    """The error to show for an exception; None if it is a bug."""
    if isinstance(error, UnilabError | OSError):
        return error
    # Libraries fail in their own ways when the system refuses a file.
    while error is not None and not any(text in str(error) for text in _REFUSALS):
        error = error.__cause__ or error.__context__
    return error


def say(*lines: str, stream: TextIO | None = None) -> None:
    """Print lines, to standard output by default, if it can be written."""
    stream = sys.stdout if stream is None else stream
    try:
        print(*lines, sep="\n", file=stream, flush=True)
    except (OSError, ValueError):
        drop(stream)


def flush(stream: TextIO | None) -> None:
    """Write what was printed to a stream, if it can be written."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        drop(stream)


def _is_read(stream: TextIO) -> bool:
    """Whether a pipe has a reader."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return not poll.poll(0)


def drop(stream: TextIO | None) -> None:
    """Drop what is printed to a stream that failed: closed terminal, no reader, full disk."""
    with suppress(AttributeError, OSError, ValueError):  # not a file, or closed
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)
