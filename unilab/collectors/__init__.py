"""Collecting: an environment in a process of its own, and where collected tensors live."""

from unilab.collectors.pipelined import PipelinedCollector
from unilab.collectors.placement import (
    Placement,
    resolve_collector_tensor_placement,
    select_collector_tensor_device,
)

__all__ = [
    "PipelinedCollector",
    "Placement",
    "resolve_collector_tensor_placement",
    "select_collector_tensor_device",
]
