"""Finite or an error: one reduction a scope, and names only once something is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unilab.errors import NonFiniteError


def is_finite(value: Tensor) -> bool:
    """Whether every element is finite, by one reduction in the common case.

    Args:
        value: any shape; a bool or integer tensor is always finite.
    """
    # A sum is non-finite as soon as one summand is; one that overflows needs the second look.
    return math.isfinite(value.sum().item()) or bool(value.isfinite().all())


def is_within(value: Tensor, limit: float) -> bool:
    """Whether no element is larger than a limit, or no number."""
    # What is no number compares as False.
    return not value.numel() or bool(value.abs().amax() <= limit)


def non_finite(what: str, bad: Mapping[str, Sequence[int]]) -> NonFiniteError:
    """The error for values that are not finite.

    Args:
        what: the beginning of the message.
        bad: rows by name of the term or field.
    """
    rows = [row for found in bad.values() for row in found]
    return NonFiniteError(f"{what}: first rows): {dict(bad)}", rows)


def bad_rows(value: Tensor, shown: int = 8, limit: float | None = None) -> list[int]:
    """The first rows with an element that is not finite.

    Args:
        value: ``[num_envs, ...]``.
        shown: how many rows at most.
        limit: the largest size that is fit as well; None: any finite one is.
    """
    bad = ~torch.isfinite(value) if limit is None else ~(value.abs() <= limit)
    return bad.reshape(len(value), -1).any(1).nonzero().flatten()[:shown].tolist()


def require_finite(
    what: str, names: Sequence[str], values: Tensor, *, limit: float | None = None
) -> None:
    """One reduction over the values of several terms.

    Args:
        what: the beginning of the message.
        names: the terms.
        values: ``[len(names), num_envs]``.
        limit: the largest size that is fit as well; None: any finite one is.

    Raises:
        NonFiniteError: names the terms and rows.
    """
    if is_finite(values) if limit is None else is_within(values, limit):
        return
    bad = {
        name: rows
        for name, value in zip(names, values, strict=True)
        if (rows := bad_rows(value, limit=limit))
    }
    raise non_finite(what, bad)
