"""Whether a saved state can be that of a live object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["mismatch"]


def mismatch(saved: Any, live: Any, path: str) -> str:
    """The first way in which a saved state cannot be the live object's, or ``""``.

    Compared are keys and types, and of tensors also shape, dtype, layout and that they are finite
    where the live ones are. What is not there yet (an optimizer's moments before its first step, a
    lazily built buffer) is empty or None on one side and fits anything.
    """
    if live is None or (saved is None and not isinstance(live, Mapping | list | tuple)):
        return ""
    if isinstance(live, torch.Tensor):
        if not isinstance(saved, torch.Tensor):
            return f"{path} is {type(saved).__name__} there and a tensor here"
        if saved.shape != live.shape:
            return f"{path} has shape {list(saved.shape)} there and {list(live.shape)} here"
        there, here = ((t.dtype, t.layout, t.is_meta) for t in (saved, live))
        if there != here:
            return f"{path} has {there} as dtype, layout and is_meta there and {here} here"
        # What is infinite here as well is meant to be, such as the mask of an attention.
        if not saved.isfinite().all() and live.isfinite().all():
            return f"{path} holds NaN or infinity"
        return ""
    if isinstance(live, Mapping):
        if not isinstance(saved, Mapping):
            return f"{path} is {type(saved).__name__} there and a mapping here"
        if not saved or not live:
            return ""
        if set(saved) != set(live):
            return f"{path} differs in {sorted(map(str, set(saved) ^ set(live)))}"
        return next(filter(None, (mismatch(saved[k], live[k], f"{path}.{k}") for k in live)), "")
    if isinstance(live, Sequence) and not isinstance(live, str):
        if not isinstance(saved, Sequence) or len(saved) != len(live):
            return f"{path} has another length there than here"
        pairs = enumerate(zip(saved, live, strict=True))
        return next(filter(None, (mismatch(s, v, f"{path}[{i}]") for i, (s, v) in pairs)), "")
    if type(saved) is not type(live) and (type(saved), type(live)) != (int, float):
        return f"{path} is {type(saved).__name__} there and {type(live).__name__} here"
    return ""
