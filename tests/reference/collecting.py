"""TorchRL's synchronous collector, and whether it gives the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import Collector
from torchrl.envs import InitTracker, TransformedEnv


def sync(make: Callable[[], Any], policy: Any, **kwargs: Any) -> Collector:
    env = make()
    if "is_init" not in env.observation_spec:
        env = TransformedEnv(env, InitTracker())
    return Collector(env, policy, trust_policy=True, **kwargs)


def assert_same(ours: Iterable[TensorDictBase], theirs: Iterable[TensorDictBase]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.batch_size == b.batch_size
        assert a.names == b.names
        assert set(a.keys(True, True)) == set(b.keys(True, True))
        for key in a.keys(True, True):
            assert a[key].dtype == b[key].dtype, key
            assert torch.equal(a[key], b[key]), key
