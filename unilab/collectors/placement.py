"""Placement of collected tensors: one setting decides, everything else follows (ADR-0018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from unilab.errors import ConfigError, PlacementError

SETTING = "training.collector_tensor_device"
SHAREABLE = ("cuda",)
"""Types of accelerators whose memory two processes can share."""


@dataclass(frozen=True)
class Placement:
    """Devices of environment, ring and learner, and the way between them.

    A device without an index is the current one of its type.
    """

    env_device: torch.device
    ring_device: torch.device
    learner_device: torch.device
    transport: str
    """Kind of memory that both processes use: ``host``, or the type of an accelerator."""
    staging: Literal["none", "pinned"]
    """``pinned``: what a tick publishes is copied to the learner's device in one piece, from memory
    that is page-locked if there is an accelerator."""

    def __post_init__(self) -> None:
        for name in ("env_device", "ring_device", "learner_device"):
            object.__setattr__(self, name, _with_index(getattr(self, name)))
        ring, learner = self.ring_device, self.learner_device
        host = ring.type == "cpu"
        legal = (
            self.env_device == ring
            and (host or (ring == learner and ring.type in SHAREABLE))
            and self.transport == ("host" if host else ring.type)
            and self.staging == ("none" if ring == learner else "pinned")
        )
        if not legal:
            raise PlacementError(
                f"placement must be one that {SETTING} can give, got {self}: use "
                "resolve_collector_tensor_placement"
            )

    def device_resolution(self) -> dict[str, str]:
        """What ``run_config.json`` records under this name."""
        return {
            "learner": str(self.learner_device),
            "collector_tensor": str(self.ring_device),
            "env": str(self.env_device),
            "transport": self.transport,
        }

    def check_env(self, device: torch.device | None) -> None:
        """Refuse an environment on another device; None is the CPU."""
        device = _with_index(device or torch.device("cpu"))
        if device != self.env_device:
            raise PlacementError(
                f"device of the environment must be {self.env_device} as placed, got {device}: "
                f"make it there, or change {SETTING} or the learner's device"
            )


def resolve_collector_tensor_placement(
    setting: str, learner_device: torch.device | str
) -> Placement:
    """Placement that follows from the setting, one of auto, cpu and cuda, and the learner's device.

    Examples:
        >>> resolve_collector_tensor_placement("auto", "cpu").transport
        'host'
    """
    learner = _with_index(torch.device(learner_device))
    if setting not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"{SETTING} must be one of auto, cpu, cuda, got {setting!r}")
    if setting == "cuda" and learner.type != "cuda":
        raise PlacementError(f"{SETTING} must be cpu or auto with a learner on {learner}, got cuda")
    shared = learner.type in SHAREABLE and setting != "cpu"
    device = learner if shared else torch.device("cpu")
    return Placement(
        env_device=device,
        ring_device=device,
        learner_device=learner,
        transport=device.type if shared else "host",
        staging="none" if learner == device else "pinned",
    )


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return torch.device("cpu")
    if device.index is not None:
        return device
    current = torch.accelerator.current_accelerator(check_available=True)
    here = current is not None and current.type == device.type
    return torch.device(device.type, torch.accelerator.current_device_index() if here else 0)
