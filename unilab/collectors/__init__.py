"""Collecting: an environment in a process of its own, and where collected tensors live."""

from unilab.collectors.pipelined import PipelinedCollector

__all__ = ["PipelinedCollector"]
