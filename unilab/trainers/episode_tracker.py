"""Returns and lengths of the episodes that end while a collector runs."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDictBase

__all__ = ["EpisodeTracker"]


class EpisodeTracker:
    """Sums each environment's reward and reports the episodes that ended.

    Everything stays on the data's device until :meth:`drain`: a few small kernels a step and no
    synchronisation.
    """

    def __init__(self) -> None:
        self._running: torch.Tensor | None = None
        self._ended: torch.Tensor | None = None

    def update(self, data: TensorDictBase) -> None:
        """Adds one batch of a collector.

        Args:
            data: ``[N, T]`` (or ``[N]``) transitions in time order with ``("next", "reward")`` and
                ``("next", "done")``.
        """
        reward = data.get(("next", "reward")).reshape(data.shape[0], -1)
        done = data.get(("next", "done")).reshape(data.shape[0], -1)
        if self._running is None or self._ended is None:
            # Rows: return and length of each running episode; then their sums and the count.
            self._running = reward.new_zeros(2, reward.shape[0])
            self._ended = reward.new_zeros(3)
        step = torch.ones_like(reward[:, 0])
        for r, d in zip(reward.unbind(1), done.unbind(1), strict=True):
            self._running += torch.stack((r, step))
            finished = d.to(reward.dtype)
            self._ended[:2] += (self._running * finished).sum(1)
            self._ended[2] += finished.sum()
            self._running *= 1.0 - finished

    def drain(self) -> tuple[float, float, int]:
        """Mean return, mean length and number of the episodes that ended since the last call.

        The means are NaN if no episode ended.
        """
        if self._ended is None:
            return math.nan, math.nan, 0
        total, length, count = self._ended.tolist()
        self._ended.zero_()
        if count == 0:
            return math.nan, math.nan, 0
        return total / count, length / count, int(count)
