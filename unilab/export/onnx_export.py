"""An actor's deterministic action as an ONNX file that has been checked against the actor."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unilab.errors import ActorContractError, ConfigError
from unilab.export.extra import require
from unilab.export.tracing import OPSET, first_line, traced
from unilab.modules import actor_semantics
from unilab.modules.untouched import untouched
from unilab.record import package_versions

__all__ = ["OnnxExport", "export_onnx"]

TOLERANCE = 1e-5
_BATCHES = (1, 2, 17, 256)
_Policy = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class OnnxExport:
    """What was written."""

    path: Path
    opset: int
    """Version of ONNX's operator set that the file uses."""
    obs_dim: int
    action_dim: int
    max_abs_diff: float
    """Largest difference between onnxruntime's actions and ``explore(obs, deterministic=True)``, in
    the action's unit."""


def export_onnx(
    actor: Any,
    path: str | Path,
    *,
    obs_dim: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> OnnxExport:
    """Writes ``obs [batch, obs_dim] -> action [batch, action_dim]``, float32, any batch size.

    The action is the deterministic one after the actor's transform, and normalisation of
    observations is part of the graph. The file appears only once ONNX's checker has accepted it and
    ``as_export_module()`` and onnxruntime both agree with ``explore(obs, deterministic=True)`` on
    random observations; an older file is left alone otherwise.

    Args:
        actor: an actor of the contract; it is not changed. It is compared on the CPU, one on an
            accelerator as a copy.
        path: the file to write; behind a link, the file that it leads to.
        obs_dim: observation width; the actor's own by default.
        metadata: JSON values for the file's ``metadata_props``, e.g. an environment's
            ``deployment_metadata()``. ``action_transform`` and ``versions`` are added.

    Returns:
        What was written and how closely it agrees.

    Raises:
        ActorContractError: the module cannot be exported, its actions are not finite, or it, its
            file and the actor do not agree.
        CapabilityError: onnxscript or onnxruntime is not installed.
        ConfigError: the path cannot be written, metadata is not JSON, or the width is unknown.
    """
    onnx, runtime = require("onnx"), require("onnxruntime")
    require("onnxscript")
    path = Path(path)
    semantics = actor_semantics(actor)
    obs_dim = semantics["obs_dim"] if obs_dim is None else obs_dim
    if obs_dim is None:
        raise ConfigError(f"{type(actor).__name__} does not say its obs_dim: pass obs_dim")
    _require_writable(path)
    properties = _properties(metadata or {}, semantics["action_transform"])
    actor = _on_cpu(actor)
    with untouched(actor):
        module = _module(actor.eval())
        explore = functools.partial(actor.explore, deterministic=True)
        # Before the slow part: most of what is wrong with an actor shows here.
        _compare("as_export_module()", module, explore, obs_dim)
        proto = traced(module, obs_dim)
        onnx.helper.set_model_props(proto, properties)
        content = proto.SerializeToString()
        try:
            onnx.checker.check_model(proto, full_check=True)
            session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        except Exception as error:  # each package has kinds of its own
            raise ActorContractError(
                f"the exported file is no valid ONNX ({first_line(error)}): nothing was written; "
                "as_export_module() uses operators that cannot be expressed"
            ) from error

        def run(obs: Tensor) -> Tensor:
            return torch.from_numpy(session.run(["action"], {"obs": obs.numpy()})[0])

        action_dim, difference = _compare("the exported file", run, explore, obs_dim)
    _write(path, content)
    return OnnxExport(
        path=path,
        opset=OPSET,
        obs_dim=obs_dim,
        action_dim=action_dim,
        max_abs_diff=difference,
    )


def _on_cpu(actor: Any) -> Any:
    """The actor itself, or its copy on the CPU: matrix products elsewhere may be coarser."""
    if all(t.device.type == "cpu" for t in (*actor.parameters(), *actor.buffers())):
        return actor
    try:
        return copy.deepcopy(actor).cpu()
    except Exception as error:  # an actor may hold anything
        raise ActorContractError(
            f"{type(actor).__name__} cannot be copied to the CPU ({first_line(error)}): export "
            "what load_play_actor() makes of its checkpoint, which lies there"
        ) from error


def _module(actor: Any) -> nn.Module:
    try:
        module = actor.as_export_module()
    except Exception as error:  # an actor is anybody's code
        raise ActorContractError(
            f"as_export_module() of the actor raised {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ActorContractError(
            f"as_export_module() of the actor returned {type(module).__name__}: expected an "
            "nn.Module"
        )
    return module.eval()


def _compare(name: str, policy: _Policy, explore: _Policy, obs_dim: int) -> tuple[int, float]:
    """Width of the action, and the largest difference on random observations.

    Raises:
        ActorContractError: either raises, gives no action for each observation, or one that is not
            finite, or there is more than rounding between them.
    """
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for batch in _BATCHES:
        obs = 3.0 * torch.randn(batch, obs_dim, generator=generator)
        expected = _actions("explore(obs, deterministic=True)", explore, obs)
        given = _actions(name, policy, obs)
        if given.shape != expected.shape:
            raise ActorContractError(
                f"{name} gives {given.shape[1]} numbers an action and explore(obs, "
                f"deterministic=True) {expected.shape[1]}: expected the same action of both"
            )
        difference = float((given - expected).abs().max())
        # float32 resolves an action of more than 1 in its unit less finely.
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        if difference > allowed:
            raise ActorContractError(
                f"{name} and explore(obs, deterministic=True) differ by {difference:.3g} (allowed: "
                f"{allowed:.3g}) on {batch} random observations: nothing was written; both must "
                "compute the deterministic action from the weights as they are, in float32, "
                "without randomness or state, for any batch size"
            )
        worst = max(worst, difference)
    return given.shape[1], worst


def _actions(name: str, policy: _Policy, obs: Tensor) -> Tensor:
    what = f"for {len(obs)} float32 observations of width {obs.shape[1]}"
    try:
        with torch.no_grad():
            actions = policy(obs)
    except Exception as error:  # an actor is anybody's code
        raise ActorContractError(
            f"{name} raised {type(error).__name__} {what}: {first_line(error)}"
        ) from error
    fits = isinstance(actions, Tensor) and actions.ndim == 2 and len(actions) == len(obs)
    if not fits or actions.dtype != torch.float32:
        kind = type(actions).__name__
        if isinstance(actions, Tensor):
            kind = f"{actions.dtype} {list(actions.shape)}"
        raise ActorContractError(
            f"{name} returns {kind} {what}: expected torch.float32 [{len(obs)}, action_dim]"
        )
    if not actions.isfinite().all():
        raise ActorContractError(
            f"{name} gives an action that is not finite {what}: nothing was written; the weights "
            "are damaged, or the training diverged"
        )
    return actions


def _require_writable(path: Path) -> None:
    """Refuses what is known to fail before the minutes that an export may take."""
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; give the file's name as well")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: the folder {path.parent} does not exist")


def _write(path: Path, content: bytes) -> None:
    path = path.resolve()  # a link stays one
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path} ({error.strerror or error})") from error


def _properties(metadata: Mapping[str, Any], action_transform: str) -> dict[str, str]:
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise ConfigError(f"metadata is {metadata!r}: expected a mapping from names to JSON values")
    values = {
        **metadata,
        "action_transform": action_transform,
        "versions": package_versions(),
    }
    return {key: _json(key, value) for key, value in values.items()}


def _json(key: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"metadata {key!r} is {value!r}: JSON cannot hold it ({error})"
        ) from error
