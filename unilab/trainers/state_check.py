"""Comparison of a saved state with the live one, before anything of it is loaded.

Each function returns the problem as text, or ``""``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from unilab.modules.actor_spec import SCHEMA_VERSION, action_constants
from unilab.modules.layers import UnitBatchNorm
from unilab.modules.mlp import ObsNormalizer


def module_problem(saved: Any, module: nn.Module, path: str) -> str:
    """The first reason why a module cannot load a saved ``state_dict``; ``""`` if it can.

    As :func:`state_problem`; besides, the variances and counts of normalisations are not negative.
    """
    if problem := state_problem(saved, module.state_dict(), path, complete=True):
        return problem
    for name, layer in module.named_modules():
        if isinstance(layer, UnitBatchNorm | ObsNormalizer | _BatchNorm):
            for entry in ("running_var", "num_batches_tracked", "count"):
                key = f"{name}.{entry}".lstrip(".")
                if saved.get(key) is not None and (saved[key] < 0).any():
                    return f"{path}.{key} holds a negative value"
    return ""


def state_problem(saved: Any, live: Any, path: str, *, complete: bool = False) -> str:
    """The first reason why a live object cannot load a saved state.

    Compares keys and types; of tensors also shape, dtype, layout, and that they are finite where
    the live ones are (an attention mask may hold infinity). What one side does not have yet (an
    optimizer's moments before its first step, a lazily built buffer) is empty or None there, and
    fits anything; with ``complete`` the saved state must have it.
    """
    if live is None:
        return ""
    if saved is None and not complete and not isinstance(live, Mapping | list | tuple):
        return ""
    if isinstance(live, torch.Tensor):
        return _tensor_problem(saved, live, path)
    if isinstance(live, Mapping):
        if not isinstance(saved, Mapping):
            return f"{path} is {type(saved).__name__} there and a mapping here"
        if (not saved and not complete) or not live:
            return ""
        if set(saved) != set(live):
            return f"{path} differs in {sorted(map(str, set(saved) ^ set(live)))}"
        problems = (
            state_problem(saved[k], live[k], f"{path}.{k}", complete=complete) for k in live
        )
        return next(filter(None, problems), "")
    if isinstance(live, Sequence) and not isinstance(live, str):
        if not isinstance(saved, Sequence) or len(saved) != len(live):
            return f"{path} has another length there than here"
        saved, live = dict(enumerate(saved)), dict(enumerate(live))
        return state_problem(saved, live, path, complete=complete)
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


def scalars_problem(metrics: Mapping[str, Any], steps: int) -> str:
    """Why saved metrics are not those of the latest of so many steps, or ``""``."""
    for value in metrics.values():
        if not isinstance(value, torch.Tensor) or value.ndim:
            return f"actor_metrics must be 0-dim tensors, got {metrics}"
    return "" if bool(metrics) == bool(steps) else f"actor_metrics do not fit {steps} steps"


def learner_problem(
    state: Any, live: Mapping[str, Any], networks: torch.nn.Module, actor: torch.nn.Module
) -> str:
    """Why a learner cannot load a saved state: its actor, structure, networks or action range.

    ``networks`` holds what the states have under ``loss``, with the actor as ``actor``.
    """
    semantics = state.get("actor_semantics") if isinstance(state, dict) else None
    return (
        semantics_problem(semantics, live["actor_semantics"])
        or state_problem(state, live, "learner")
        or module_problem(state["loss"], networks, "loss")
        or range_problem(state["loss"], actor, "actor.")
    )


def range_problem(weights: Mapping[str, Any], actor: torch.nn.Module, prefix: str = "") -> str:
    """Why saved weights do not have the action range that their semantics record, or ``""``."""
    for name, live in action_constants(actor).items():
        saved = weights[prefix + name].to(live)
        if not torch.equal(saved, live):
            return f"the actor's {name} is {saved.tolist()} there and {live.tolist()} here"
    return ""


def adam_moments(adam: torch.optim.Optimizer) -> dict[int, Any]:
    """The state of an Adam, by the number of the parameter; ``{}`` before its first gradient."""
    return {i: adam.state.get(p, {}) for i, p in enumerate(adam.param_groups[0]["params"])}


def load_moments(adam: torch.optim.Optimizer, saved: Mapping[int, Any]) -> None:
    """Continue from :func:`adam_moments`; settings such as the learning rate stay."""
    # A copy, because Adam would update the given tensors in place.
    groups = adam.state_dict()["param_groups"]
    adam.load_state_dict({"state": copy.deepcopy(dict(saved)), "param_groups": groups})


def moments_problem(saved: Any, adam: torch.optim.Optimizer, steps: int, path: str) -> str:
    """The first reason why Adam cannot continue from saved moments after so many steps.

    A parameter without a gradient so far has the moments ``{}``.
    """
    if saved == {} and steps == 0:
        return ""
    parameters = adam.param_groups[0]["params"]
    if not isinstance(saved, Mapping) or set(saved) != set(range(len(parameters))):
        return f"{path} must have moments of {len(parameters)} parameters"
    counts = [0]
    for i, parameter in enumerate(parameters):
        if saved[i] == {}:
            continue
        live = {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": parameter,
            "exp_avg_sq": parameter,
        }
        if problem := state_problem(saved[i], live, f"{path}.{i}", complete=True):
            return problem
        if (saved[i]["exp_avg_sq"] < 0).any():
            return f"{path}.{i}.exp_avg_sq holds a negative value"
        counts.append(saved[i]["step"].item())
    # The loss of every step has reached some parameter. Adam counts in float32.
    most = min(steps, 2**24)
    if max(counts) != most or not all(count in range(most + 1) for count in counts):
        return f"{path} has moments of {max(counts):g} steps, expected {steps}"
    return ""


def differences(saved: Any, live: Any, path: str = "") -> str:
    """Every value by which two nested JSON values differ."""
    if isinstance(saved, Mapping) and isinstance(live, Mapping):
        found = (
            differences(saved.get(k, _MISSING), live.get(k, _MISSING), f"{path}.{k}".strip("."))
            for k in {**saved, **live}
        )
        return ", ".join(filter(None, found))
    if _exact(saved) == _exact(live):
        return ""
    return f"{path} is {saved!r} there and {live!r} here".strip()


def _exact(value: Any) -> Any:
    """A JSON value with repr at its leaves, because in Python 1 equals 1.0 and True."""
    if isinstance(value, Mapping):
        return {key: _exact(inner) for key, inner in value.items()}
    return [*map(_exact, value)] if isinstance(value, list | tuple) else repr(value)


class _MissingType:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _MissingType()


_FIELDS: Mapping[str, tuple[type, ...]] = {
    "kind": (str,),
    "builder": (str, NoneType),
    "kwargs": (dict,),
    "obs_dim": (int, NoneType),
    "action_dim": (int, NoneType),
    "action_transform": (str, NoneType),
}


def semantics_problem(saved: Any, live: Mapping[str, Any] | None = None) -> str:
    """Why weights that were saved with these ``actor_semantics`` must not be loaded.

    Without ``live``, the live actor's, it checks only that ``saved`` is readable.
    """
    if not isinstance(saved, Mapping):
        what = "no actor_semantics" if saved is None else f"actor_semantics={saved!r}"
        return f"it has {what}, so the meaning of its weights is unknown: train again"
    version = saved.get("schema_version")
    if version != SCHEMA_VERSION or type(version) is not int:
        return (
            f"its actor_semantics have schema_version {version!r}, this version of unilab reads "
            f"{SCHEMA_VERSION}: train again, or use the version that wrote it"
        )
    missing = [name for name in _FIELDS if name not in saved]
    if missing:
        return f"its actor_semantics lack {', '.join(missing)}: train again"
    for name, types in _FIELDS.items():
        if type(saved[name]) not in types:
            return f"{name} of its actor_semantics is {saved[name]!r}: train again"
    return differences(saved, live, "actor_semantics") if live is not None else ""
