"""Delays and histories of observation and action terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.errors import ConfigError

_LONGEST = 10_000
"""Steps of the longest delay; all values of so many steps are kept."""


def check_lags(prefix: str, low: int, high: int) -> None:
    """Refuse ``delay_min_lag`` and ``delay_max_lag`` that are reversed or too long."""
    if not 0 <= low <= high <= _LONGEST:
        raise ConfigError(
            f"{prefix}delay_min_lag and delay_max_lag must be 0 <= min <= max <= {_LONGEST}, got "
            f"{low} and {high}"
        )


@dataclass(frozen=True, kw_only=True)
class DelayCfg:
    """Delay of a term in control steps."""

    delay_min_lag: int = 0
    """Smallest lag in control steps."""
    delay_max_lag: int = 0
    """Largest lag in control steps; each environment draws its lag when an episode begins."""
    delay_update_period: int | None = 0
    """Control steps after which an environment redraws its lag, at a random phase; 0 and 1 redraw
    in every step, as mjlab does. None keeps the lag for the episode."""
    delay_hold_prob: float = 0.0
    """Probability that a redraw keeps the lag."""

    def check_delay(self, label: str) -> None:
        """Refuse an invalid delay of the term ``label``."""
        check_lags(f"{label}: ", self.delay_min_lag, self.delay_max_lag)
        period = self.delay_update_period
        if period is not None and period < 0:
            raise ConfigError(f"{label}: delay_update_period must be at least 0, got {period}")
        if not 0.0 <= self.delay_hold_prob <= (0.0 if period is None else 1.0):
            raise ConfigError(
                f"{label}: delay_hold_prob must be in [0, 1], and 0 without a delay_update_period, "
                f"got {self.delay_hold_prob}"
            )


@dataclass(frozen=True, kw_only=True)
class DelaySpec:
    """Delay and history of a block of columns."""

    width: int
    delay: DelayCfg = DelayCfg()
    frames: int = 1
    """Length of the history, shown oldest first."""

    @property
    def depth(self) -> int:
        """Number of values that must be kept."""
        return self.delay.delay_max_lag + self.frames


class DelayBuffer:
    """Ring of the last values of every environment, read with a lag and a history.

    The first value of an episode stands for all earlier ones. A history repeats what was shown in
    the steps before: each of its frames keeps the lag of its own step.
    """

    def __init__(
        self, blocks: Sequence[DelaySpec], num_envs: int, generator: torch.Generator
    ) -> None:
        device = generator.device
        self._generator = generator
        self._width = sum(block.width for block in blocks)
        self._depth = max(block.depth for block in blocks)
        self._kept = torch.zeros(num_envs, self._depth, self._width, device=device)
        shown: list[tuple[int, int, int]] = []  # column, age and block of each shown column
        start = 0
        for i, block in enumerate(blocks):
            columns = range(start, start + block.width)
            shown += [(at, age, i) for age in reversed(range(block.frames)) for at in columns]
            start += block.width
        column, self._age, self._owner = torch.tensor(shown, device=device).T.contiguous()
        # Places of the shown columns without a lag among the kept values, whose newest are last.
        self._place = (self._depth - 1 - self._age) * self._width + column
        self._places = self._place.repeat(num_envs, 1)
        delays = [block.delay for block in blocks]
        self._least = torch.tensor([d.delay_min_lag for d in delays], device=device)
        most = torch.tensor([d.delay_max_lag for d in delays], device=device)
        self._spread = most - self._least + 1
        self._varies = bool((self._spread > 1).any())
        # Redraws within an episode.
        periods = [d.delay_update_period for d in delays]
        self._redraws = any(
            period is not None and d.delay_min_lag < d.delay_max_lag
            for period, d in zip(periods, delays, strict=True)
        )
        self._changes = torch.tensor([period is not None for period in periods], device=device)
        self._period = torch.tensor([period or 1 for period in periods], device=device)
        self._hold = torch.tensor([d.delay_hold_prob for d in delays], device=device)
        self._left = torch.zeros(num_envs, len(blocks), dtype=torch.int64, device=device)
        frames = max(block.frames for block in blocks)
        # Lags of the last steps, newest first.
        self._lags = self._left.unsqueeze(1).repeat(1, frames, 1)

    def push(self, value: Tensor) -> Tensor:
        """Add the values ``[num_envs, width]`` of a step; return what is shown of them."""
        self._kept = torch.cat((self._kept[:, 1:], value.unsqueeze(1)), dim=1)
        if self._redraws:
            self._redraw()
            self._places = self._place - self._lags[:, self._age, self._owner] * self._width
        return self._kept.flatten(1).gather(1, self._places)

    def begin(self, rows: Tensor, value: Tensor) -> Tensor:
        """Begin episodes in some rows with their first values ``[n, width]``, under new lags."""
        n = rows.shape[0]
        lag = self._least.expand(n, -1)
        if self._varies:
            lag = lag + (self._rand(n) * self._spread).long()
        if self._redraws:
            self._left.index_copy_(0, rows, 1 + (self._rand(n) * self._period).long())
            self._lags.index_copy_(0, rows, lag.unsqueeze(1).repeat(1, self._lags.shape[1], 1))
        places = self._place - lag.index_select(1, self._owner) * self._width
        self._places.index_copy_(0, rows, places)
        kept = value.unsqueeze(1).repeat(1, self._depth, 1)
        self._kept.index_copy_(0, rows, kept)
        return kept.flatten(1).gather(1, places)

    def _redraw(self) -> None:
        n = self._lags.shape[0]
        self._left -= 1
        due = self._left <= 0
        self._left = torch.where(due, self._period, self._left)
        drawn = self._least + (self._rand(n) * self._spread).long()
        changed = due & self._changes & (self._rand(n) >= self._hold)
        lag = torch.where(changed, drawn, self._lags[:, 0])
        self._lags = torch.cat((lag.unsqueeze(1), self._lags[:, :-1]), dim=1)

    def _rand(self, n: int) -> Tensor:
        """``[n, blocks]`` in [0, 1)."""
        generator = self._generator
        return torch.rand(n, len(self._least), generator=generator, device=generator.device)
