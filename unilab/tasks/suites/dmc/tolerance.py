"""Soft bounds for rewards, as in the DeepMind Control Suite (Tassa et al., 2018)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor


def tolerance(
    x: Tensor,
    bounds: tuple[float, float] = (0.0, 0.0),
    *,
    margin: float = 0.0,
    sigmoid: Literal["gaussian", "linear", "quadratic"] = "gaussian",
    value_at_margin: float = 0.1,
) -> Tensor:
    """1 within bounds, falling towards 0 outside; ``dm_control.utils.rewards.tolerance``.

    Bounds are inclusive. ``margin`` is the distance from them at which the value has fallen to
    ``value_at_margin``; a margin of 0 gives 0 everywhere outside.
    """
    low, high = bounds
    inside = (x >= low) & (x <= high)
    if margin == 0.0:
        return inside.to(x.dtype)
    distance = torch.where(x < low, low - x, x - high) / margin
    if sigmoid == "gaussian":
        value = (-0.5 * (distance * math.sqrt(-2.0 * math.log(value_at_margin))).square()).exp()
    elif sigmoid == "linear":
        value = (1.0 - distance * (1.0 - value_at_margin)).clamp(min=0.0)
    else:
        value = (1.0 - (distance * math.sqrt(1.0 - value_at_margin)).square()).clamp(min=0.0)
    return torch.where(inside, 1.0, value)


def at_least(x: Tensor, low: float, *, margin: float, value_at_margin: float = 0.0) -> Tensor:
    """1 from ``low`` on, falling linearly to ``value_at_margin`` at ``low - margin``."""
    return tolerance(
        x, (low, math.inf), margin=margin, sigmoid="linear", value_at_margin=value_at_margin
    )
