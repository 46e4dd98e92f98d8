"""An actor's deterministic action as an ONNX file that has been checked against the actor."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unilab.errors import ActorContractError, ConfigError
from unilab.export.extra import require
from unilab.modules import actor_semantics
from unilab.record import package_versions

__all__ = ["OnnxExport", "export_onnx"]

# What torch's exporter writes without converting, and runtimes since 2023 read.
OPSET = 18
TOLERANCE = 1e-5
_BATCHES = (1, 2, 17, 256)


@dataclass(frozen=True, kw_only=True)
class OnnxExport:
    """What was written."""

    path: Path
    opset: int
    """Version of ONNX's operator set that the file uses."""
    obs_dim: int
    action_dim: int
    max_abs_diff: float
    """Largest difference between onnxruntime's actions and the actor's, in the action's unit."""


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
    onnxruntime agrees with the actor on random observations; an older file is left alone otherwise.

    Args:
        actor: an actor of the contract; it is not changed.
        path: the file to write.
        obs_dim: observation width; the actor's own by default.
        metadata: JSON values for the file's ``metadata_props``, e.g. an environment's
            ``deployment_metadata()``. ``action_transform`` and ``versions`` are added.

    Returns:
        What was written and how closely it agrees.

    Raises:
        ActorContractError: the module cannot be exported, or its file does not agree with it.
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
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: the folder {path.parent} does not exist")
    values = {
        **(metadata or {}),
        "action_transform": semantics["action_transform"],
        "versions": package_versions(),
    }
    properties = {key: _json(key, value) for key, value in values.items()}
    # A copy: the actor keeps its device and its train or eval mode.
    module = copy.deepcopy(actor.as_export_module()).cpu().eval()
    proto = _traced(module, obs_dim)
    _strip(proto.graph)
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, properties)
    onnx.checker.check_model(proto, full_check=True)
    content = proto.SerializeToString()
    action_dim, difference = _compare(runtime, content, module, obs_dim)
    _write(path, content)
    return OnnxExport(
        path=path,
        opset=OPSET,
        obs_dim=obs_dim,
        action_dim=action_dim,
        max_abs_diff=difference,
    )


def _traced(module: nn.Module, obs_dim: int) -> Any:
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                (torch.zeros(2, obs_dim),),
                dynamo=True,
                opset_version=OPSET,
                input_names=["obs"],
                output_names=["action"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
        except Exception as error:  # the module's own code may raise anything
            raise ActorContractError(
                f"as_export_module() of the actor cannot be exported ({_first_line(error)}): its "
                "forward takes obs [batch, obs_dim] alone, returns the action, and may not branch "
                "on values or on the batch size"
            ) from error
    assert program is not None
    return program.model_proto


def _compare(runtime: Any, content: bytes, module: nn.Module, obs_dim: int) -> tuple[int, float]:
    """Width of the action, and the largest difference on random observations.

    Raises:
        ActorContractError: another shape than the module's, or more than rounding between them.
    """
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for batch in _BATCHES:
        obs = 3.0 * torch.randn(batch, obs_dim, generator=generator)
        with torch.no_grad():
            expected: Tensor = module(obs)
        given = torch.from_numpy(session.run(["action"], {"obs": obs.numpy()})[0])
        fits = given.shape == expected.shape and given.ndim == 2 and given.shape[0] == batch
        if not fits or given.dtype != torch.float32:
            raise ActorContractError(
                f"for {batch} observations the exported file returns {given.dtype} "
                f"{list(given.shape)} and the actor {list(expected.shape)}: expected torch.float32 "
                f"[{batch}, action_dim] of both"
            )
        worst = max(worst, float((given - expected).abs().max()))
        # float32 resolves an action of more than 1 in its unit less finely.
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        if not worst <= allowed:
            raise ActorContractError(
                f"the exported file and the actor differ by {worst:.3g} (allowed: {allowed:.3g}) "
                "on random observations: nothing was written; as_export_module() must compute the "
                "deterministic action in float32, without randomness or state"
            )
    return given.shape[1], worst


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path} ({error.strerror or error})") from error


def _json(key: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"metadata {key!r} is {value!r}: JSON cannot hold it ({error})"
        ) from error


def _strip(graph: Any) -> None:
    """Drops the exporter's notes, which hold paths and code of the machine that exported."""
    for items in (graph.node, graph.input, graph.output, graph.initializer, graph.value_info):
        for item in items:
            item.doc_string = ""
            del item.metadata_props[:]
    del graph.metadata_props[:]
    graph.doc_string = ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter's notes about packages and deprecations of its own to itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
