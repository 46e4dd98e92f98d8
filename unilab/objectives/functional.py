"""The formulas of FlashSAC (arXiv 2604.04539) as pure functions of tensors.

Shapes: ``B`` rows, ``A`` action width, ``K`` value bins; ``*`` any leading dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unilab.modules.distributions import (
    categorical_value,
    gaussian_log_prob,
    squash_log_std,
    squashed_log_prob,
    tanh_log_det,
    zeta_pmf,
)

__all__ = [
    "categorical_value",
    "clipped_mass",
    "cross_entropy",
    "gaussian_log_prob",
    "learning_rate",
    "project_distribution",
    "squash_log_std",
    "squashed_log_prob",
    "tanh_log_det",
    "target_entropy",
    "target_support",
    "zeta_pmf",
]


def target_entropy(action_dim: int, sigma: float, half_range: Tensor | float = 1.0) -> float:
    """Entropy in nats of ``A`` independent normals, each scaled to the range of its action.

    ``0.5 * A * log(2 pi e sigma^2) + sum log(half_range)``.

    Args:
        sigma: standard deviation in actions that are scaled to [-1, 1].
        half_range: ``(high - low) / 2`` of the actions, a number or ``[A]``.
    """
    scale = torch.as_tensor(half_range, dtype=torch.float64).expand(action_dim).log().sum().item()
    return 0.5 * action_dim * math.log(2.0 * math.pi * math.e * sigma * sigma) + scale


def target_support(
    reward: Tensor,
    terminated: Tensor,
    entropy_bonus: Tensor,
    support: Tensor,
    discount: Tensor | float,
) -> Tensor:
    """Bellman image of the support: ``clip(r + g (1 - terminated) (support + bonus))``.

    Args:
        reward: ``[B]`` rewards.
        terminated: ``[B]`` bool, or 0 and 1; a terminated row does not bootstrap.
        entropy_bonus: ``[B]``, ``-alpha * log_prob'`` of the next action.
        support: ``[K]`` ascending bin values.
        discount: ``gamma ** n``, a number or ``[B]``.

    Returns:
        ``[B, K]`` atoms inside ``[support[0], support[-1]]``.
    """
    atoms = _bellman_atoms(reward, terminated, entropy_bonus, support, discount)
    return torch.minimum(torch.maximum(atoms, support[0]), support[-1])


def clipped_mass(
    p: Tensor,
    reward: Tensor,
    terminated: Tensor,
    entropy_bonus: Tensor,
    support: Tensor,
    discount: Tensor | float,
) -> Tensor:
    """Mass that :func:`target_support` moves by more than half a bin, because it clips.

    Args:
        p: ``[B, K]`` mass of each atom; the others are those of :func:`target_support`.

    Returns:
        ``[B]``, between 0 and 1.
    """
    atoms = _bellman_atoms(reward, terminated, entropy_bonus, support, discount)
    half_bin = 0.5 * (support[1] - support[0])
    beyond = (atoms < support[0] - half_bin) | (atoms > support[-1] + half_bin)
    return (p * beyond).sum(-1)


def _bellman_atoms(
    reward: Tensor,
    terminated: Tensor,
    entropy_bonus: Tensor,
    support: Tensor,
    discount: Tensor | float,
) -> Tensor:
    weight = terminated.logical_not().to(reward.dtype) * discount
    return torch.addcmul(reward[:, None], weight[:, None], support + entropy_bonus[:, None])


def project_distribution(atoms: Tensor, p: Tensor, support: Tensor) -> Tensor:
    """Project probability mass at ``atoms`` on a uniform ``support``, linearly.

    Each atom's mass is split between its two neighbouring bins in proportion to nearness; an atom
    exactly on a bin keeps its whole mass there (C51, arXiv 1707.06887).

    Args:
        atoms: ``[B, K]`` positions inside ``[support[0], support[-1]]``.
        p: ``[B, K]`` mass of each atom.
        support: ``[K]`` ascending, evenly spaced.

    Returns:
        ``[B, K]`` mass on the bins; each row sums to what ``p``'s did.
    """
    num_bins = support.shape[0]
    step = (support[-1] - support[0]) / (num_bins - 1)
    position = ((atoms - support[0]) / step).clamp(0, num_bins - 1)
    # A NaN becomes index 0 and shows in the mass: out of range, it would end the process on a GPU.
    index = position.long().clamp_(0, num_bins - 2)
    upper_mass = (position - index) * p
    out = torch.zeros_like(p)
    out.scatter_add_(1, index, p - upper_mass)
    return out.scatter_add_(1, index + 1, upper_mass)


def cross_entropy(target: Tensor, log_p: Tensor) -> Tensor:
    """``-sum(target * log_p)`` over bins, in nats: ``[*, K]``, ``[*, K] -> [*]``."""
    return -(target * log_p).sum(-1)


def learning_rate(
    step: int, *, init: float, peak: float, end: float, warmup_steps: int, decay_steps: int
) -> float:
    """Linear warm-up from ``init`` to ``peak``, then cosine from ``peak`` to ``end``."""
    if step < warmup_steps:
        return init + (peak - init) * step / warmup_steps
    progress = min((step - warmup_steps) / max(decay_steps, 1), 1.0)
    return end + 0.5 * (peak - end) * (1.0 + math.cos(math.pi * progress))
