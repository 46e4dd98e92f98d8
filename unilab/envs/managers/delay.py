"""Values that are seen late, or more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DelayCfg:
    """By how much a term is late."""

    delay_min_lag: int = 0
    """Fewest control steps by which the term is late."""
    delay_max_lag: int = 0
    """Most control steps; each environment draws its lag when an episode begins, and then anew."""
    delay_update_period: int | None = 0
    """Control steps after which an environment draws its lag anew, each at a phase of its own; 0
    and 1 draw in every step, as mjlab does. None keeps the lag for the episode."""
    delay_hold_prob: float = 0.0
    """Probability that a draw within the episode leaves the lag as it is."""

    def check_delay(self, label: str) -> None:
        """Refuse a delay that makes no sense.

        Args:
            label: the term, for messages.

        Raises:
            ConfigError: names the values.
        """
        low, high, period = self.delay_min_lag, self.delay_max_lag, self.delay_update_period
        if not 0 <= low <= high:
            raise ConfigError(
                f"{label} has delay_min_lag {low} and delay_max_lag {high}: "
                "expected 0 <= min <= max, in control steps"
            )
        if period is not None and period < 0:
            raise ConfigError(f"{label} has delay_update_period {period}: give 0 or more")
        if not 0.0 <= self.delay_hold_prob <= 1.0:
            raise ConfigError(f"{label} has delay_hold_prob {self.delay_hold_prob}: give 0 to 1")
        if self.delay_hold_prob and period is None:
            raise ConfigError(
                f"{label} has delay_hold_prob {self.delay_hold_prob} and keeps its lag for the "
                "episode: give a delay_update_period of 0 or more"
            )


@dataclass(frozen=True, kw_only=True)
class Recall:
    """How one block of columns is remembered."""

    width: int
    delay: DelayCfg = DelayCfg()
    frames: int = 1
    """How many successive values are shown, oldest first."""

    @property
    def depth(self) -> int:
        """How many values must be kept."""
        return self.delay.delay_max_lag + self.frames


class DelayBuffer:
    """The last values of every environment, and the columns of them that are shown.

    When an episode begins, its first value stands for all that came before. A history repeats what
    was shown in the steps before, each frame with the lag of its step.

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
        self._age = torch.tensor(ages, device=device)
        # Where a column that is not late lies among the kept values, of which the newest is last.
        newest = (self._depth - 1 - self._age) * self._width
        self._place = newest + torch.tensor(columns, device=device)
        self._places = self._place.repeat(num_envs, 1)
        delays = [block.delay for block in blocks]
        self._least = torch.tensor([d.delay_min_lag for d in delays], device=device)
        most = torch.tensor([d.delay_max_lag for d in delays], device=device)
        self._spread = most - self._least + 1
        self._varies = bool((self._spread > 1).any())
        self._redraws: _Redraws | None = None
        drawn = [d for d in delays if d.delay_min_lag < d.delay_max_lag]
        if any(d.delay_update_period is not None for d in drawn):
            self._redraws = _Redraws(blocks, num_envs, generator)

    def push(self, value: Tensor) -> Tensor:
        """Remember the values of a step.

        Args:
            value: ``[num_envs, width]``.

        Returns:
            ``[num_envs, shown]``.
        """
        self._kept = torch.cat((self._kept[:, 1:], value.unsqueeze(1)), dim=1)
        if self._redraws is not None:
            lags = self._redraws.advance(self._least, self._spread)
            self._places = self._place - lags[:, self._age, self._owner] * self._width
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
        if self._redraws is not None:
            self._redraws.begin(rows, lag)
        places = self._place - lag.index_select(1, self._owner) * self._width
        self._places.index_copy_(0, rows, places)
        kept = value.unsqueeze(1).repeat(1, self._depth, 1)
        self._kept.index_copy_(0, rows, kept)
        return kept.flatten(1).gather(1, places)


class _Redraws:
    """The lags of the last steps, drawn anew from time to time.

    Args:
        blocks: the value's columns, block by block.
        num_envs: environments in the batch.
        generator: draws.
    """

    def __init__(self, blocks: Sequence[Recall], num_envs: int, generator: torch.Generator) -> None:
        self._generator = generator
        n, device = len(blocks), generator.device
        periods = [block.delay.delay_update_period for block in blocks]
        self._changes = torch.tensor([p is not None for p in periods], device=device)
        self._period = torch.tensor([max(1, p or 1) for p in periods], device=device)
        self._hold = torch.tensor([block.delay.delay_hold_prob for block in blocks], device=device)
        self._left = torch.zeros(num_envs, n, dtype=torch.int64, device=device)
        # Newest first, as far back as histories go.
        frames = max(block.frames for block in blocks)
        self._lags = torch.zeros(num_envs, frames, n, dtype=torch.int64, device=device)

    def begin(self, rows: Tensor, lag: Tensor) -> None:
        """Begin episodes with the lags ``[n, blocks]``, and draw the phases."""
        left = 1 + (self._rand(rows.shape[0]) * self._period).long()
        self._left.index_copy_(0, rows, left)
        self._lags.index_copy_(0, rows, lag.unsqueeze(1).repeat(1, self._lags.shape[1], 1))

    def advance(self, least: Tensor, spread: Tensor) -> Tensor:
        """Draw anew what is due.

        Returns:
            ``[num_envs, frames, blocks]``, newest first.
        """
        self._left -= 1
        due = self._left <= 0
        self._left = torch.where(due, self._period, self._left)
        n = self._lags.shape[0]
        drawn = least + (self._rand(n) * spread).long()
        changed = due & self._changes & (self._rand(n) >= self._hold)
        lag = torch.where(changed, drawn, self._lags[:, 0])
        self._lags = torch.cat((lag.unsqueeze(1), self._lags[:, :-1]), dim=1)
        return self._lags

    def _rand(self, n: int) -> Tensor:
        """``[n, blocks]`` in [0, 1)."""
        blocks = self._period.shape[0]
        return torch.rand(n, blocks, generator=self._generator, device=self._period.device)
