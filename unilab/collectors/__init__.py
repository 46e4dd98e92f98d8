"""Collecting with the environment in a separate process, and placement of collected tensors."""

from unilab.collectors.pipelined import PipelinedCollector, make_collector
from unilab.collectors.placement import Placement, resolve_collector_tensor_placement
from unilab.collectors.process import EnvProcess
from unilab.collectors.rollouts import RolloutCollector

__all__ = [
    "EnvProcess",
    "PipelinedCollector",
    "Placement",
    "RolloutCollector",
    "make_collector",
    "resolve_collector_tensor_placement",
]
