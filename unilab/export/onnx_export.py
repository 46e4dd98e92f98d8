"""Export of an actor's deterministic action to an ONNX file, compared with the actor."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unilab.errors import (
    ActorContractError,
    CapabilityError,
    ConfigError,
    UnilabError,
    first_line,
)
from unilab.modules import actor_semantics
from unilab.modules.actor_calls import trial_copy
from unilab.record import package_versions
from unilab.record.run_folder import write_whole

#: torch's exporter writes it without a conversion, and runtimes since 2023 read it.
OPSET = 18
TOLERANCE = 1e-5
_BATCHES = (1, 2, 17, 256)


@dataclass(frozen=True, kw_only=True)
class OnnxExport:
    """The file that was written."""

    path: Path
    opset: int
    obs_dim: int
    action_dim: int
    max_abs_diff: float
    """Largest difference between onnxruntime's actions and ``explore(obs, deterministic=True)``."""


def export_onnx(
    actor: Any,
    path: str | Path,
    *,
    obs_dim: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> OnnxExport:
    """Writes ``obs [batch, obs_dim] -> action [batch, action_dim]``, float32, any batch size.

    The action is the deterministic one after the actor's transform; the normalisation of
    observations is part of the graph. The file is written, in one step, only if ONNX's checker
    accepts it and onnxruntime agrees with ``explore(obs, deterministic=True)`` on random
    observations.

    Args:
        actor: an actor of the contract; a copy of it on the CPU is exported.
        obs_dim: observation width; the actor's own by default.
        metadata: JSON values for the file's ``metadata_props``, e.g. an environment's
            ``deployment_metadata()``. ``action_transform`` and ``versions`` are added.
    """
    onnx, runtime = require("onnx"), require("onnxruntime")
    require("onnxscript")
    path = Path(path)
    semantics = actor_semantics(actor)
    obs_dim = semantics["obs_dim"] if obs_dim is None else obs_dim
    if obs_dim is None:
        raise ConfigError(f"obs_dim must be passed, because {type(actor).__name__} has none")
    if path.is_dir() or not path.parent.is_dir():  # before the minutes that an export may take
        raise ConfigError(f"path must be a file in an existing folder, got {str(path)!r}")
    added = {"action_transform": semantics["action_transform"], "versions": package_versions()}
    properties = {
        key: json.dumps(value, allow_nan=False)
        for key, value in {**(metadata or {}), **added}.items()
    }

    with trial_copy(actor) as copied, torch.no_grad():
        try:
            copied.cpu().eval()
            proto = _trace(copied.as_export_module().eval(), obs_dim)
            onnx.helper.set_model_props(proto, properties)
            onnx.checker.check_model(proto, full_check=True)
            content = proto.SerializeToString()
            session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
            action_dim, difference = _compare(session, copied, obs_dim)
        except UnilabError:
            raise
        except Exception as error:  # third-party code may raise anything
            cause = first_line(error.__cause__ or error)
            raise ActorContractError(
                f"{type(actor).__name__} cannot be exported ({cause}): as_export_module() must "
                "take only obs [batch, obs_dim], return the action, and not branch on values or "
                "on the batch size"
            ) from error
    write_whole(path, content)
    return OnnxExport(
        path=path, opset=OPSET, obs_dim=obs_dim, action_dim=action_dim, max_abs_diff=difference
    )


def require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise CapabilityError(
            f"ONNX files need {package}: pip install 'unilab-torchrl[export]'"
        ) from error


def _trace(module: nn.Module, obs_dim: int) -> Any:
    """The ``onnx.ModelProto`` of a module, without paths and code of the exporting machine."""
    logger = logging.getLogger("torch.onnx")  # it would miss torchvision, which nothing here uses
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
    finally:
        logger.setLevel(level)
    assert program is not None
    proto = program.model_proto
    graph = proto.graph
    for items in (graph.node, graph.input, graph.output, graph.initializer, graph.value_info):
        for item in items:
            item.doc_string = ""
            del item.metadata_props[:]
    del graph.metadata_props[:], proto.metadata_props[:]
    graph.doc_string = ""
    return proto


def _compare(session: Any, actor: Any, obs_dim: int) -> tuple[int, float]:
    """Width of the action, and the largest difference on random observations."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for batch in _BATCHES:
        obs = 3.0 * torch.randn(batch, obs_dim, generator=generator)
        expected = actor.explore(obs, deterministic=True)
        given = torch.from_numpy(session.run(["action"], {"obs": obs.numpy()})[0])
        if given.ndim != 2 or given.shape != expected.shape or given.dtype != torch.float32:
            raise ActorContractError(
                f"the exported file returns {given.dtype} {list(given.shape)} and explore(obs, "
                f"deterministic=True) {expected.dtype} {list(expected.shape)} for {batch} "
                f"observations: both must be torch.float32 [{batch}, action_dim]"
            )
        difference = float((given - expected).abs().max())
        # float32 resolves actions above 1 less finely.
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        if not difference <= allowed:
            raise ActorContractError(
                "the exported file and explore(obs, deterministic=True) differ by "
                f"{difference:.3g} (allowed: {allowed:.3g}) on {batch} random observations: both "
                "must compute a finite action from the current weights, without randomness; "
                "nothing was written"
            )
        worst = max(worst, difference)
    return given.shape[1], worst
