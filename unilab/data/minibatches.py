"""Shuffled minibatches of a rollout."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tensordict import TensorDictBase


def minibatches(
    rollout: TensorDictBase, num_minibatches: int, num_epochs: int
) -> Iterator[TensorDictBase]:
    """Every row of a rollout once an epoch, in a new random order, in parts of equal size.

    Args:
        rollout: transitions ``[B]``.
        num_minibatches: parts of an epoch; if ``B`` is no multiple, some have one row more.
        num_epochs: passes over the rollout.
    """
    for _ in range(num_epochs):
        order = torch.randperm(rollout.numel(), device=rollout.device)
        for part in order.tensor_split(num_minibatches):
            yield rollout[part]
