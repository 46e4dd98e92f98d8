"""Where collected tensors live: one setting decides, everything else follows from it (ADR-0018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from unilab.errors import ConfigError, PlacementError

__all__ = [
    "Placement",
    "resolve_collector_tensor_placement",
    "select_collector_tensor_device",
]

SETTING = "training.collector_tensor_device"


@dataclass(frozen=True)
class Placement:
    """Devices of environment, ring and learner, and how transitions travel between them."""

    env_device: torch.device
    """Of the environment's tensors."""
    ring_device: torch.device
    """Of the ring between collector and learner."""
    learner_device: torch.device
    transport: Literal["host", "cuda"]
    """Kind of memory that the two processes share."""
    staging: Literal["none", "pinned"]
    """``pinned``: what a tick publishes crosses to the learner's device in one copy, from memory
    that is pinned where there is CUDA; elsewhere nothing is to be pinned."""

    def device_resolution(self) -> dict[str, str]:
        """What ``run_config.json`` records under this name."""
        return {"learner": str(self.learner_device), "collector_tensor": self.ring_device.type}

    def check_env(self, device: torch.device | None) -> None:
        """Confirm that an environment lives where it was told to.

        Args:
            device: where it lives; None, for an environment without one, is the CPU.

        Raises:
            PlacementError: it does not.
        """
        if device is None:
            device = torch.device("cpu")
        if device.type != self.env_device.type:
            raise PlacementError(
                f"the environment's tensors are on {device}, the placement says {self.env_device}: "
                f"make it with device={str(self.env_device)!r}, or place collected tensors there: "
                f"placement=resolve_collector_tensor_placement({device.type!r}, learner_device), "
                f"and in a configuration {SETTING}={device.type}"
            )


def select_collector_tensor_device(
    setting: str, learner_device: torch.device | str
) -> Literal["cpu", "cuda"]:
    """The kind of device on which collected tensors live.

    Args:
        setting: ``auto`` follows the learner (CUDA: ``cuda``, any other: ``cpu``); ``cpu`` and
            ``cuda`` are what they say.
        learner_device: the learner's, resolved.

    Raises:
        ConfigError: another setting.
        PlacementError: ``cuda`` while the learner is elsewhere.
    """
    learner = torch.device(learner_device)
    if setting == "auto":
        return "cuda" if learner.type == "cuda" else "cpu"
    if setting == "cpu":
        return "cpu"
    if setting != "cuda":
        raise ConfigError(f"{SETTING}={setting!r}: must be one of auto, cpu, cuda")
    if learner.type != "cuda":
        raise PlacementError(
            f"{SETTING}=cuda, but the learner is on {learner}: use cpu or auto, or a CUDA learner"
        )
    return "cuda"


def resolve_collector_tensor_placement(
    setting: str, learner_device: torch.device | str
) -> Placement:
    """Everything that follows from the setting and the learner's device.

    Args:
        setting: ``auto``, ``cpu`` or ``cuda``.
        learner_device: the learner's, resolved.

    Raises:
        ConfigError: another setting.
        PlacementError: ``cuda`` while the learner is elsewhere.

    Examples:
        >>> resolve_collector_tensor_placement("auto", "cpu").transport
        'host'
    """
    learner = torch.device(learner_device)
    kind = select_collector_tensor_device(setting, learner)
    device = learner if kind == "cuda" else torch.device("cpu")
    return Placement(
        env_device=device,
        ring_device=device,
        learner_device=learner,
        transport="cuda" if kind == "cuda" else "host",
        staging="none" if learner == device else "pinned",
    )
