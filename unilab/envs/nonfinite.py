"""NaN/Inf checks: one reduction a call, names and rows only once something is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unilab.errors import NonFiniteError

MAX_VALUE = 1e10
"""Largest value of a state or control that has not diverged, as MuJoCo's ``mjMAXVAL``."""


def is_finite(value: Tensor) -> bool:
    """Whether every element is finite, by one reduction in the common case."""
    # A sum is non-finite as soon as one summand is; one that overflows needs the second look.
    return math.isfinite(value.sum().item()) or bool(value.isfinite().all())


def is_within(value: Tensor, limit: float) -> bool:
    """Whether every element is a number of at most this size."""
    # NaN compares as False.
    return not value.numel() or bool(value.abs().amax() <= limit)


def bad_rows(value: Tensor, limit: float | None = None) -> list[int]:
    """The first 8 rows with an element that is not finite or, with a limit, larger than it."""
    bad = ~torch.isfinite(value) if limit is None else ~(value.abs() <= limit)
    return bad.reshape(len(value), -1).any(1).nonzero().flatten()[:8].tolist()


def non_finite(
    what: str, values: Mapping[str, Tensor], rows: Tensor | None = None, limit: float | None = None
) -> NonFiniteError:
    """The error for ``values``, ``[n, ...]`` by name, of the environments ``rows``; None: all.

    ``limit`` is the largest allowed size; None: any finite size.
    """
    bad = {name: found for name, v in values.items() if (found := bad_rows(v, limit=limit))}
    if rows is not None:
        bad = {name: rows[found].tolist() for name, found in bad.items()}
    first = [row for found in bad.values() for row in found]
    return NonFiniteError(f"{what}, first rows by name: {bad}", first)


def require_finite(what: str, names: Sequence[str], values: Tensor) -> None:
    """Refuse values ``[len(names), num_envs]`` if one is not finite."""
    if not is_finite(values):
        raise non_finite(what, dict(zip(names, values, strict=True)))
