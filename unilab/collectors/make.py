"""The collector of a training loop: in turns with the learner, or at the same time."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import BaseCollector, Collector
from torchrl.envs import EnvBase, InitTracker, TransformedEnv

from unilab.collectors.pipelined import PipelinedCollector
from unilab.collectors.placement import Placement
from unilab.collectors.process import EnvProcess

__all__ = ["make_collector"]


def make_collector(
    env: EnvBase | EnvProcess,
    policy: TensorDictModuleBase,
    *,
    placement: Placement,
    **settings: Any,
) -> BaseCollector:
    """Collects for a loop that uses up each batch before it asks for the next.

    Args:
        env: an environment, which steps in turns with the caller (TorchRL's ``Collector``), or an
            :class:`EnvProcess`, which steps while the caller learns (:class:`PipelinedCollector`).
        policy: acts on the learner's device.
        placement: where environment, ring and learner live.
        settings: ``frames_per_batch``, ``total_frames``, ``init_random_frames`` and what else both
            collectors know.

    Returns:
        The collector. A batch is valid until the next one is asked for.
    """
    settings = {"track_traj_ids": False, "return_same_td": True} | settings
    if isinstance(env, EnvProcess):
        return PipelinedCollector(env, policy, placement=placement, **settings)
    return Collector(
        # InitTracker marks the rows that were just reset: exploration noise restarts there.
        TransformedEnv(env, InitTracker()),
        policy,
        policy_device=placement.learner_device,
        env_device=placement.env_device,
        storing_device=placement.learner_device,
        trust_policy=True,
        use_buffers=False,
        **settings,
    )
