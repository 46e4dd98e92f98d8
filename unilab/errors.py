"""The library's errors: each says what was given, what was expected and what to do."""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


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


class RankError(UnilabError, RuntimeError):
    """A rank of a data-parallel training died, or lost the others."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """The nearest options as a hint to append to a message, e.g. ``" (did you mean 'a'?)"``.

    Empty when nothing is near.
    """
    name, names = str(name), [str(o) for o in options]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if not near and len(name) > 1:  # 'go2' for 'go2_velocity_flat'
        near = [option for option in names if name.lower() in option.lower()][:3]
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


@contextmanager
def mujoco_imports() -> Iterator[None]:
    """Explain the error of a MuJoCo import without the OpenGL library that ``MUJOCO_GL`` names."""
    try:
        yield
    except Exception as error:
        modules = (
            frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)
        )
        if not any(name.startswith("mujoco.") and name.endswith("gl_context") for name in modules):
            raise
        raise CapabilityError(
            f"MUJOCO_GL must name an OpenGL library that is installed, got "
            f"{os.environ.get('MUJOCO_GL')!r} ({first_line(error)}): install it, e.g. by apt-get "
            "install libosmesa6 for osmesa, or unset MUJOCO_GL"
        ) from error


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
