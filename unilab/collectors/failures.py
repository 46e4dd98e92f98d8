"""What the learner is told when its collector process fails, dies or hangs."""

from __future__ import annotations

import signal

from unilab.collectors.worker import PHASE_NAMES, Phase, Word
from unilab.errors import CollectorError, NonFiniteError

__all__ = ["died", "failed", "hung", "where_in"]


def where_in(header: memoryview) -> str:
    """What the process was doing, and at which tick."""
    return f"{PHASE_NAMES[Phase(header[Word.PHASE])]} (tick {header[Word.TICK]})"


def failed(where: str, name: str, text: str, trace: str) -> CollectorError:
    """It raised something, of this class, with this text and traceback."""
    error = CollectorError(
        f"the collector process failed {where}: {name}: {text}\n"
        f"In the collector process:\n{trace.rstrip()}"
    )
    # Of NaN one may want to know: then it is the policy, rather than the environment.
    error.__cause__ = NonFiniteError(text) if name == NonFiniteError.__name__ else None
    error.__suppress_context__ = True
    return error


def died(where: str, code: int) -> CollectorError:
    """It ended, with this exit code, minus a signal's number if that was why."""
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    return CollectorError(
        f"the collector process died {where} ({how}). Signal SIGKILL is usually the system "
        "running out of memory; what it printed before it died may tell more"
    )


def hung(where: str, seconds: float) -> CollectorError:
    """It said nothing for longer than it may."""
    return CollectorError(
        f"the collector process hung {where} for more than {seconds:g} s "
        "and was killed: look for an endless loop in the environment or what may have "
        "stopped the process, or raise step_timeout_s"
    )
