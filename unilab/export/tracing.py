"""A module as an ONNX graph."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from unilab.errors import ActorContractError

__all__ = ["OPSET", "first_line", "traced"]

#: what torch's exporter writes without converting, and runtimes since 2023 read.
OPSET = 18


def traced(module: nn.Module, obs_dim: int) -> Any:
    """A module's graph, without the exporter's notes on the machine that it ran on.

    Args:
        module: ``obs [batch, obs_dim] -> action [batch, action_dim]``, on the CPU in eval mode.
        obs_dim: width of the observation.

    Returns:
        An ``onnx.ModelProto`` without metadata.

    Raises:
        ActorContractError: torch cannot export it.
    """
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
                "as_export_module() of the actor cannot be exported "
                f"({first_line(error.__cause__ or error)}): its forward takes obs "
                "[batch, obs_dim] alone, returns the action, and may not branch on values or on "
                "the batch size"
            ) from error
    assert program is not None
    proto = program.model_proto
    _strip(proto.graph)
    del proto.metadata_props[:]
    return proto


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that follow."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
    """Keeps what the exporter logs, prints and warns of to itself; its errors say it as well."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
