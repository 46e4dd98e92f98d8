"""Settings of APPO; ``task/`` holds what a task changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from unilab.checks import Count
from unilab.conf.ppo import PPOAlgoCfg
from unilab.errors import ConfigError
from unilab.settings import TrainingCfg

__all__ = ["APPOAlgoCfg", "APPOCfg"]


@dataclass(frozen=True, kw_only=True)
class APPOAlgoCfg(PPOAlgoCfg):
    """The algorithm: PPO's settings, with ``gae_lambda`` as the limit of V-trace's weights c."""

    name: Literal["appo"] = "appo"  # type: ignore[assignment]
    """Name in the table of algorithms."""
    max_staleness: Count = 1
    """Rollouts learned from between the policy that collects a rollout and the one that learns from
    it. More: neither process waits for a pause of the other, such as an evaluation; older data."""


@dataclass(frozen=True, kw_only=True)
class APPOCfg:
    """An APPO training run."""

    task: str
    """A name that ``unilab list`` shows."""
    algo: APPOAlgoCfg = field(default_factory=APPOAlgoCfg)
    training: TrainingCfg = field(default_factory=lambda: TrainingCfg(collector="pipelined"))
    env: dict[str, Any] = field(default_factory=lambda: {"init_at_random_ep_len": True})
    """As PPO's."""

    def __post_init__(self) -> None:
        if self.training.collector != "pipelined":
            raise ConfigError(
                f"training.collector must be pipelined, got {self.training.collector}: APPO's "
                "environments always step in a second process; take ppo to step in turns"
            )
