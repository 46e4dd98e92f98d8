"""What a run is, in values that a checkpoint must agree with before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from unilab.modules import actor_semantics

__all__ = ["run_identity"]


def run_identity(
    *, task: str, obs_groups: Mapping[str, int], critic_obs: str, actor: nn.Module
) -> dict[str, Any]:
    """The identity of a run, for :class:`~unilab.trainers.Checkpointer` and ``run_config.json``.

    Args:
        task: name of the task.
        obs_groups: width of each observation group that the environment publishes.
        critic_obs: the group that the critic reads.
        actor: the actor that is optimised.
    """
    return {
        "checkpoint_version": 1,
        "task": task,
        "obs_groups": dict(obs_groups),
        "critic_obs": critic_obs,
        "actor_semantics": actor_semantics(actor),
    }
