"""Distributions of actions, values and noise repetition (FlashSAC, arXiv 2604.04539).

Pure functions of tensors. Shapes: ``A`` action width, ``K`` value bins, ``*`` leading dimensions.
``unilab.objectives.functional`` re-exports them beside the losses' formulas.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_STD_MIN = -10.0
LOG_STD_MAX = 2.0


def squash_log_std(raw: Tensor) -> Tensor:
    """Smoothly bound a log standard deviation to ``[-10, 2]``: ``-10 + 6 (1 + tanh(raw))``."""
    return LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (1.0 + torch.tanh(raw))


def gaussian_log_prob(eps: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of ``u = mean + std * eps`` under ``Normal(mean, std)``, elementwise."""
    return -0.5 * eps.square() - log_std - 0.5 * math.log(2.0 * math.pi)


def tanh_log_det(u: Tensor) -> Tensor:
    """``log |d tanh(u) / du|``, elementwise, stable for any ``u``.

    ``2 (log 2 - u - softplus(-2 u))``, which neither overflows nor cancels where
    ``log(1 - tanh(u)^2)`` does.
    """
    # The default threshold of 20 would cost float64 nine of its digits.
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u, threshold=40.0))


def squashed_log_prob(
    eps: Tensor, log_std: Tensor, u: Tensor, log_scale: Tensor | float = 0.0
) -> Tensor:
    """Log-density of ``low + (high - low) (tanh(u) + 1) / 2`` with ``u = mean + std * eps``.

    Args:
        eps, log_std, u: ``[*, A]``
        log_scale: log of the half width of the action range, a number or ``[A]``.

    Returns:
        ``[*]`` nats, summed over the action's components.
    """
    return (gaussian_log_prob(eps, log_std) - tanh_log_det(u) - log_scale).sum(-1)


def zeta_pmf(max_steps: int = 16, exponent: float = 2.0) -> Tensor:
    """Truncated zeta law of the noise repetition: ``p(n) ~ n^-exponent``, ``n = 1..max_steps``."""
    weight = torch.arange(1, max_steps + 1, dtype=torch.float64).pow(-exponent)
    return weight / weight.sum()


def categorical_value(log_p: Tensor, support: Tensor) -> Tensor:
    """Expected value ``sum exp(log_p) * support``: ``[*, K]``, ``[K] -> [*]``."""
    return log_p.exp() @ support
