"""NaN/Inf checks: one reduction a call, names and rows only once something is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unilab.errors import NonFiniteError


def is_finite(value: Tensor) -> bool:
    """Whether every element is finite, by one reduction in the common case."""
    # A sum is non-finite as soon as one summand is; one that overflows needs the second look.
    return math.isfinite(value.sum().item()) or bool(value.isfinite().all())


def is_within(value: Tensor, limit: float) -> bool:
    """Whether every element is a number of at most this size."""
    # NaN compares as False.
    return not value.numel() or bool(value.abs().amax() <= limit)


def bad_rows(value: Tensor, shown: int = 8, limit: float | None = None) -> list[int]:
    """The first rows with an element that is not finite.

    Args:
        value: ``[num_envs, ...]``.
        shown: how many rows at most.
        limit: also count elements larger than this; None: any finite size is fine.
    """
    bad = ~torch.isfinite(value) if limit is None else ~(value.abs() <= limit)
    return bad.reshape(len(value), -1).any(1).nonzero().flatten()[:shown].tolist()


def non_finite(what: str, bad: Mapping[str, Sequence[int]]) -> NonFiniteError:
    """The error for values that are not finite.

    Args:
        what: start of the message, such as "reward terms are not finite".
        bad: first bad rows by name of the term or field.
    """
    rows = [row for found in bad.values() for row in found]
    return NonFiniteError(f"{what}, first rows by name: {dict(bad)}", rows)


def require_finite(
    what: str, names: Sequence[str], values: Tensor, *, limit: float | None = None
) -> None:
    """Refuse values of several terms if one is not finite, by one reduction over all of them.

    Args:
        what: start of the message.
        names: the terms.
        values: ``[len(names), num_envs]``.
        limit: largest allowed size; None: any finite size is fine.
    """
    if is_finite(values) if limit is None else is_within(values, limit):
        return
    bad = {
        name: rows
        for name, value in zip(names, values, strict=True)
        if (rows := bad_rows(value, limit=limit))
    }
    raise non_finite(what, bad)
