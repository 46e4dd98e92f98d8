"""Countdowns: random waiting times of each environment."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


def check_waiting(what: str, span: tuple[float, float]) -> None:
    """Refuse waiting times, in seconds, that are not 0 < low <= high."""
    if not 0.0 < span[0] <= span[1]:
        raise ConfigError(f"{what} must be 0 < low <= high, got {span}")


class Countdown:
    """Waiting times, drawn uniformly between two bounds in seconds, in whole control steps.

    The earliest one is kept as a number, so that a step in which nothing is due costs no tensor
    operation.
    """

    def __init__(self, span: tuple[float, float], env: ManagerBasedRlEnv) -> None:
        self._span = span
        self._env = env
        self._due = torch.full((env.num_envs,), math.inf, dtype=torch.float64, device=env.device)
        self._now = 0
        self._earliest = math.inf

    def restart(self, rows: Tensor) -> None:
        """Draw new waiting times."""
        left = torch.empty(rows.shape[0], device=self._due.device)
        left.uniform_(*self._span, generator=self._env.generator)
        # A little less than drawn, because rounding must not add a step.
        due = left.div_(self._env.step_dt).sub_(1e-4).ceil_().double().add_(self._now)
        self._due.index_copy_(0, rows, due)
        self._earliest = min(self._earliest, due.min().item())

    def advance(self) -> Tensor | None:
        """Count one control step, and return the rows that are due, which the caller restarts."""
        self._now += 1
        if self._now < self._earliest:
            return None
        due = self._due <= self._now
        self._earliest = self._due.masked_fill(due, math.inf).min().item()
        rows = due.nonzero().flatten()
        return rows if rows.shape[0] else None
