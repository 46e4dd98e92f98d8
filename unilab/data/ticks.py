"""Collected data as ticks of parallel environments."""

from __future__ import annotations

from tensordict import TensorDictBase

from unilab.errors import ConfigError


def as_ticks(data: TensorDictBase) -> TensorDictBase:
    """Collected data as ``[N, T]``: environments, then time.

    Args:
        data: ``[N, T]`` in time order, or ``[N]`` for one tick. Where a collector named the last
            dimension ``"time"``, also ``[T]`` of one environment, and ``[*N, T]``.
    """
    if data.batch_dims == 2:
        return data
    if has_time(data):
        return data.unsqueeze(0) if data.batch_dims == 1 else data.flatten(0, -2)
    if data.batch_dims != 1:
        raise ConfigError(f"data must be [N] or [N, T], got {list(data.batch_size)}")
    return data.unsqueeze(1)


def has_time(data: TensorDictBase) -> bool:
    """Whether the last dimension is named ``"time"``, as collectors name it."""
    return data.batch_dims > 0 and data.names[-1] == "time"
