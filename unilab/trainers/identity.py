"""What a run is, in values that a checkpoint must agree with before it is loaded."""

from __future__ import annotations

from typing import Any

from torch import nn

from unilab.modules import actor_semantics
from unilab.trainers.algorithms import Interface

__all__ = ["run_identity"]


def run_identity(task: str, interface: Interface, actor: nn.Module) -> dict[str, Any]:
    """The identity of a run, for :class:`~unilab.trainers.Checkpointer` and ``run_config.json``.

    Args:
        task: name of the task.
        interface: the observation groups that the environment publishes, and the critic's.
        actor: the actor that is optimised.
    """
    return {
        "checkpoint_version": 1,
        "task": task,
        "obs_groups": dict(interface.obs_groups),
        "critic_obs": interface.critic_obs,
        "actor_semantics": actor_semantics(actor),
    }
