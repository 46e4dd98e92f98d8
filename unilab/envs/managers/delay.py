"""Values that are seen late, or more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Recall:
    """How one block of columns is remembered."""

    width: int
    min_lag: int = 0
    """Fewest control steps by which the block is late."""
    max_lag: int = 0
    """Most control steps; each environment draws its lag when an episode begins."""
    frames: int = 1
    """How many successive values are shown, oldest first."""

    @property
    def depth(self) -> int:
        """How many values must be kept."""
        return self.max_lag + self.frames


def check_lags(label: str, min_lag: int, max_lag: int) -> None:
    """Refuse lags that make no sense.

    Raises:
        ConfigError: they are negative or reversed.
    """
    if not 0 <= min_lag <= max_lag:
        raise ConfigError(
            f"{label} has delay_min_lag {min_lag} and delay_max_lag {max_lag}: "
            "expected 0 <= min <= max, in control steps"
        )


class DelayBuffer:
    """The last values of every environment, and the columns of them that are shown.

    When an episode begins, its first value stands for all that came before.

    Args:
        blocks: the value's columns, block by block.
        num_envs: environments in the batch.
        generator: draws the lags.
    """

    def __init__(self, blocks: Sequence[Recall], num_envs: int, generator: torch.Generator) -> None:
        device = generator.device
        self._generator = generator
        self._width = sum(block.width for block in blocks)
        self._depth = max(block.depth for block in blocks)
        self._kept = torch.zeros(num_envs, self._depth, self._width, device=device)
        columns: list[int] = []
        ages: list[int] = []
        owners: list[int] = []
        start = 0
        for i, block in enumerate(blocks):
            for age in reversed(range(block.frames)):
                columns += range(start, start + block.width)
                ages += [age] * block.width
                owners += [i] * block.width
            start += block.width
        self._owner = torch.tensor(owners, device=device)
        # Where a column that is not late lies among the kept values, of which the newest is last.
        newest = (self._depth - 1 - torch.tensor(ages, device=device)) * self._width
        self._place = newest + torch.tensor(columns, device=device)
        self._places = self._place.repeat(num_envs, 1)
        self._least = torch.tensor([block.min_lag for block in blocks], device=device)
        self._spread = torch.tensor(
            [block.max_lag - block.min_lag + 1 for block in blocks], device=device
        )
        self._varies = bool((self._spread > 1).any())

    def push(self, value: Tensor) -> Tensor:
        """Remember the values of a step.

        Args:
            value: ``[num_envs, width]``.

        Returns:
            ``[num_envs, shown]``.
        """
        self._kept = torch.cat((self._kept[:, 1:], value.unsqueeze(1)), dim=1)
        return self._kept.flatten(1).gather(1, self._places)

    def begin(self, rows: Tensor, value: Tensor) -> Tensor:
        """Begin the episodes of some environments: forget, draw lags, remember.

        Args:
            rows: ``[n]``.
            value: ``[n, width]``, their first values.

        Returns:
            ``[n, shown]``.
        """
        n, lag = rows.shape[0], self._least.expand(rows.shape[0], -1)
        if self._varies:
            share = torch.rand(n, len(self._least), generator=self._generator, device=value.device)
            lag = lag + (share * self._spread).long()
        places = self._place - lag.index_select(1, self._owner) * self._width
        self._places.index_copy_(0, rows, places)
        kept = value.unsqueeze(1).repeat(1, self._depth, 1)
        self._kept.index_copy_(0, rows, kept)
        return kept.flatten(1).gather(1, places)
