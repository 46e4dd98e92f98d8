"""Placement of collected tensors: one setting decides, everything else follows (ADR-0018)."""

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
    """Devices of environment, ring and learner, and the way between them."""

    env_device: torch.device
    """Of the environment's tensors."""
    ring_device: torch.device
    """Of the ring between collector and learner."""
    learner_device: torch.device
    transport: Literal["host", "cuda"]
    """Kind of memory that both processes use."""
    staging: Literal["none", "pinned"]
    """``pinned``: what a tick publishes is copied to the learner's device in one piece, from memory
    that is page-locked if there is CUDA."""

    def device_resolution(self) -> dict[str, str]:
        """What ``run_config.json`` records under this name."""
        return {"learner": str(self.learner_device), "collector_tensor": self.ring_device.type}

    def check_env(self, device: torch.device | None) -> None:
        """Refuse an environment on another device; None is the CPU."""
        if device is None:
            device = torch.device("cpu")
        if device.type != self.env_device.type:
            raise PlacementError(
                f"device of the environment must be {self.env_device} as placed, got {device}: "
                f"make it there, or set {SETTING}={device.type} (without a configuration, "
                f"placement=resolve_collector_tensor_placement({device.type!r}, learner_device))"
            )


def select_collector_tensor_device(
    setting: str, learner_device: torch.device | str
) -> Literal["cpu", "cuda"]:
    """Kind of device of the collected tensors.

    Args:
        setting: ``cpu``, ``cuda``, or ``auto``: CUDA if the learner is on it.
        learner_device: resolved.
    """
    learner = torch.device(learner_device)
    if setting == "auto":
        return "cuda" if learner.type == "cuda" else "cpu"
    if setting == "cpu":
        return "cpu"
    if setting != "cuda":
        raise ConfigError(f"{SETTING} must be one of auto, cpu, cuda, got {setting!r}")
    if learner.type != "cuda":
        raise PlacementError(f"{SETTING} must be cpu or auto with a learner on {learner}, got cuda")
    return "cuda"


def resolve_collector_tensor_placement(
    setting: str, learner_device: torch.device | str
) -> Placement:
    """Placement that follows from the setting and the learner's device.

    Args:
        setting: ``auto``, ``cpu`` or ``cuda``.
        learner_device: resolved.

    Raises:
        PlacementError: ``cuda`` without a CUDA learner.

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
