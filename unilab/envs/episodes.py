"""What the managers add up over an episode, in one buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class EpisodeSums:
    """Sums over each environment's episode, and over all episodes that ended since the last look.

    Args:
        names: what is summed, by block; a block becomes the prefix of its metrics.
        num_envs: environments in the batch.
        device: where the sums live.
    """

    def __init__(
        self, names: Mapping[str, Sequence[str]], num_envs: int, device: torch.device
    ) -> None:
        self._tags = [f"{block}/{name}" for block, members in names.items() for name in members]
        # The last row marks the environments whose episode has begun.
        self._running = torch.zeros(len(self._tags) + 1, num_envs, device=device)
        self._ended = torch.zeros(len(self._tags) + 1, dtype=torch.float64, device=device)
        sizes = [len(members) for members in names.values()]
        *blocks, begun = self._running.split([*sizes, 1])
        self._blocks = dict(zip(names, blocks, strict=True))
        self._begun = begun

    def __getitem__(self, block: str) -> Tensor:
        """``[len(names[block]), num_envs]``, to be added to in every step."""
        return self._blocks[block]

    def step(self) -> None:
        """Count a control step of every environment."""
        self._begun.fill_(1.0)

    def reset(self, rows: Tensor) -> None:
        """End the episodes of some environments; one that has not begun adds nothing."""
        self._ended += self._running.index_select(1, rows).sum(1)
        self._running.index_fill_(1, rows, 0.0)

    def drain(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call; empty if none did."""
        *sums, ended = self._ended.tolist()
        if not ended:
            return {}
        self._ended.zero_()
        return {tag: value / ended for tag, value in zip(self._tags, sums, strict=True)}
