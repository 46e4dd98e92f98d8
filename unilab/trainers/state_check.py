"""Comparison of a saved state with the live one, before anything of it is loaded.

Each function returns the problem as text, or ``""``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unilab.modules.actor_spec import SCHEMA_VERSION


def state_problem(saved: Any, live: Any, path: str) -> str:
    """The first reason why a live object cannot load a saved state.

    Compares keys and types; of tensors also shape, dtype, layout, and that they are finite where
    the live ones are (an attention mask may hold infinity). What one side does not have yet (an
    optimizer's moments before its first step, a lazily built buffer) is empty or None there, and
    fits anything.
    """
    if live is None or (saved is None and not isinstance(live, Mapping | list | tuple)):
        return ""
    if isinstance(live, torch.Tensor):
        return _tensor_problem(saved, live, path)
    if isinstance(live, Mapping):
        if not isinstance(saved, Mapping):
            return f"{path} is {type(saved).__name__} there and a mapping here"
        if not saved or not live:
            return ""
        if set(saved) != set(live):
            return f"{path} differs in {sorted(map(str, set(saved) ^ set(live)))}"
        problems = (state_problem(saved[k], live[k], f"{path}.{k}") for k in live)
        return next(filter(None, problems), "")
    if isinstance(live, Sequence) and not isinstance(live, str):
        if not isinstance(saved, Sequence) or len(saved) != len(live):
            return f"{path} has another length there than here"
        saved, live = dict(enumerate(saved)), dict(enumerate(live))
        return state_problem(saved, live, path)
    if type(saved) is not type(live) and (type(saved), type(live)) != (int, float):
        return f"{path} is {type(saved).__name__} there and {type(live).__name__} here"
    return ""


def _tensor_problem(saved: Any, live: torch.Tensor, path: str) -> str:
    if not isinstance(saved, torch.Tensor):
        return f"{path} is {type(saved).__name__} there and a tensor here"
    if saved.shape != live.shape:
        return f"{path} has shape {list(saved.shape)} there and {list(live.shape)} here"
    there, here = ((t.dtype, t.layout, t.is_meta) for t in (saved, live))
    if there != here:
        return f"{path} has {there} as dtype, layout and is_meta there and {here} here"
    if not saved.isfinite().all() and live.isfinite().all():
        return f"{path} holds NaN or infinity"
    return ""


def differences(saved: Any, live: Any, path: str = "") -> str:
    """Every value by which two nested JSON values differ."""
    if isinstance(saved, Mapping) and isinstance(live, Mapping):
        found = (
            differences(saved.get(k, _MISSING), live.get(k, _MISSING), f"{path}.{k}".strip("."))
            for k in {**saved, **live}
        )
        return ", ".join(filter(None, found))
    return "" if repr(saved) == repr(live) else f"{path} is {saved!r} there and {live!r} here"


class _MissingType:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _MissingType()


def semantics_problem(saved: Any, live: Mapping[str, Any] | None = None) -> str:
    """Why weights that were saved with these ``actor_semantics`` must not be loaded.

    Without ``live``, the live actor's, it checks only that ``saved`` is readable.
    """
    if not isinstance(saved, Mapping):
        what = "no actor_semantics" if saved is None else f"actor_semantics={saved!r}"
        return f"it has {what}, so the meaning of its weights is unknown: train again"
    version = saved.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        return (
            f"its actor_semantics have schema_version {version!r}, this version of unilab reads "
            f"{SCHEMA_VERSION}: train again, or use the version that wrote it"
        )
    fields = ("kind", "builder", "kwargs", "obs_dim", "action_dim", "action_transform")
    missing = [name for name in fields if name not in saved]
    if missing:
        return f"its actor_semantics lack {', '.join(missing)}: train again"
    return differences(saved, live, "actor_semantics") if live is not None else ""
