"""What an actor's outputs must be, wherever they are used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["aux_losses_problem", "described", "tensor_problem"]


def tensor_problem(name: str, value: Any, shape: Sequence[int], like: Tensor) -> str:
    """Why a value is no tensor of this shape with the dtype and device of ``like``, or ``""``."""
    if (
        isinstance(value, Tensor)
        and (*value.shape,) == (*shape,)
        and (value.dtype, value.device) == (like.dtype, like.device)
    ):
        return ""
    where = f"{like.dtype} on {like.device}"
    return f"{name} is {described(value)}, expected a tensor of shape {list(shape)} and {where}"


def aux_losses_problem(aux: Any) -> str:
    """Why values are no auxiliary losses of an actor, or ``""``; they need not be finite.

    Args:
        aux: the ``aux_losses`` of a training pass.
    """
    if not isinstance(aux, Mapping):
        return f"they are {described(aux)}, expected a dict of 0-dim tensors"
    for name, value in aux.items():
        if not isinstance(name, str) or not re.fullmatch(r"\w+", name, re.ASCII):
            return f"the name {name!r}: expected letters, digits and underscores"
        if not isinstance(value, Tensor) or value.dim() or not value.is_floating_point():
            return f"{name!r} is {described(value)}, expected a 0-dim float tensor"
    return ""


def described(value: Any) -> str:
    """A value for a message: a tensor by its shape, dtype and device, anything else by itself."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype} on {value.device}"
    return f"{value!r} of type {type(value).__name__}"
