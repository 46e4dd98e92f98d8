"""Settings of a collector, refused where they are none."""

from __future__ import annotations

from typing import Any, Protocol

from torchrl.envs.utils import ExplorationType

from unilab.collectors.placement import Placement
from unilab.errors import ConfigError

__all__ = ["Interruptor", "check_kinds", "require_integer", "require_seconds"]


class Interruptor(Protocol):
    """Says when to stop collecting, as in TorchRL's collectors."""

    def collection_stopped(self) -> bool:
        """Whether a stop was asked for."""
        ...


def require_integer(name: str, value: Any, *, least: int | None = None) -> int:
    """A setting that counts something.

    Raises:
        ConfigError: it is no integer, or below ``least``; names it.
    """
    too_small = isinstance(value, int) and least is not None and value < least
    if isinstance(value, bool) or not isinstance(value, int) or too_small:
        at_least = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name}={value!r}: expected an integer{at_least}")
    return value


def require_seconds(name: str, value: Any) -> None:
    """A setting that is a time to wait.

    Raises:
        ConfigError: it is no number, or not above 0; names it.
    """
    if not (isinstance(value, int | float) and value > 0.0):
        raise ConfigError(f"{name}={value!r}: expected seconds, more than 0")


def check_kinds(placement: Any, exploration_type: Any, interruptor: Any) -> None:
    """Settings that are objects; None where one may be absent.

    Raises:
        ConfigError: one is of another kind; names it.
    """
    if not isinstance(placement, Placement | None):
        raise ConfigError(
            f"placement={placement!r}: expected a Placement, such as "
            "resolve_collector_tensor_placement('auto', learner_device)"
        )
    if not isinstance(exploration_type, ExplorationType):
        raise ConfigError(
            f"exploration_type={exploration_type!r}: expected an ExplorationType, such as "
            "torchrl.envs.utils.ExplorationType.RANDOM"
        )
    if interruptor is not None and not hasattr(interruptor, "collection_stopped"):
        raise ConfigError(
            f"interruptor={interruptor!r}: expected an object with collection_stopped()"
        )
