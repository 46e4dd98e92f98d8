"""Placement of collected tensors: one setting decides, everything else follows (ADR-0018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from unilab.errors import ConfigError, PlacementError

SETTING = "training.collector_tensor_device"


@dataclass(frozen=True)
class Placement:
    """Devices of environment, ring and learner, and the way between them."""

    env_device: torch.device
    ring_device: torch.device
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
        device = device or torch.device("cpu")
        if device.type != self.env_device.type:
            raise PlacementError(
                f"device of the environment must be {self.env_device} as placed, got {device}: "
                f"make it there, or set {SETTING}={device.type}"
            )


def resolve_collector_tensor_placement(
    setting: str, learner_device: torch.device | str
) -> Placement:
    """Placement that follows from the setting, one of auto, cpu and cuda, and the learner's device.

    Examples:
        >>> resolve_collector_tensor_placement("auto", "cpu").transport
        'host'
    """
    learner = torch.device(learner_device)
    if setting not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"{SETTING} must be one of auto, cpu, cuda, got {setting!r}")
    if setting == "cuda" and learner.type != "cuda":
        raise PlacementError(f"{SETTING} must be cpu or auto with a learner on {learner}, got cuda")
    cuda = learner.type == "cuda" and setting != "cpu"
    device = learner if cuda else torch.device("cpu")
    return Placement(
        env_device=device,
        ring_device=device,
        learner_device=learner,
        transport="cuda" if cuda else "host",
        staging="none" if learner == device else "pinned",
    )
