"""The library's errors: each says what was given, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnilabError(Exception):
    """Base of every error that unilab raises on purpose."""


class ConfigError(UnilabError, ValueError):
    """A name, key, value or shape in a configuration or call is not usable."""


class CapabilityError(UnilabError):
    """A backend lacks something that a task asks for."""


class PlacementError(UnilabError):
    """The requested devices cannot be combined, or are not there."""


class ActorContractError(UnilabError):
    """An actor breaks a clause of the actor contract."""


class CheckpointError(UnilabError):
    """A run or checkpoint cannot be written, read or continued."""


class NonFiniteError(UnilabError, FloatingPointError):
    """A NaN or infinity crossed a checked boundary; ``rows`` are the environments, if known."""

    def __init__(self, message: str, rows: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.rows = sorted(set(rows))


class EnvFaultedError(UnilabError, RuntimeError):
    """The environment failed after it began to change state and can no longer be used."""


class CollectorError(UnilabError, RuntimeError):
    """The environment process died, hung or raised."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """The nearest options as a hint to append to a message, e.g. ``" (did you mean 'a'?)"``.

    Empty when nothing is near.
    """
    near = difflib.get_close_matches(str(name), [str(o) for o in options], n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def first_line(error: BaseException) -> str:
    """First line of an error's message, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def why_unreadable(error: BaseException) -> str:
    """What is wrong with a file that PyTorch refused, without its advice.

    PyTorch recommends ``weights_only=False``, which would run the code in the file.
    """
    text = str(error).strip() or type(error).__name__
    before, refused, advice = text.partition("Weights only load failed")
    if not refused:
        return text
    detail = advice.partition("WeightsUnpickler error:")[2].strip().partition("\n")[0]
    detail = detail.partition(" was not an allowed global")[0]
    return f"{before}it holds more than tensors and plain values{detail and f': {detail}'}"
