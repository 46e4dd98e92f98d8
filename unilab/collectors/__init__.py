"""Collecting: an environment in a process of its own, and where collected tensors live."""

from unilab.collectors.make import make_collector
from unilab.collectors.pipelined import PipelinedCollector
from unilab.collectors.placement import (
    Placement,
    resolve_collector_tensor_placement,
    select_collector_tensor_device,
)
from unilab.collectors.process import EnvProcess

__all__ = [
    "EnvProcess",
    "PipelinedCollector",
    "Placement",
    "make_collector",
    "resolve_collector_tensor_placement",
    "select_collector_tensor_device",
]
