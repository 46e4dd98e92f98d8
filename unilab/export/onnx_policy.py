"""The exported file as a rollout policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from unilab.errors import CheckpointError, ConfigError
from unilab.export.extra import require
from unilab.export.tracing import first_line

__all__ = ["OnnxPolicy"]


class OnnxPolicy(TensorDictModuleBase):
    """Writes the action that onnxruntime computes from an exported file.

    Args:
        path: a file of :func:`~unilab.export.export_onnx`, or another of one input
            ``[batch, obs_dim]`` and one output ``[batch, action_dim]``, both float32.
        obs_key: where the observation is read.
        action_key: where the action is written.

    Raises:
        CapabilityError: onnxruntime is not installed.
        CheckpointError: the file is missing, damaged or of another shape.

    Attributes:
        obs_dim: width of the input.
        action_dim: width of the output.
        metadata: the file's ``metadata_props``, JSON values by key.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        obs_key: NestedKey = "obs",
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__()
        runtime = require("onnxruntime")
        if not Path(path).is_file():
            raise CheckpointError(f"no policy file at {path}: `unilab export <run>` writes one")
        options = runtime.SessionOptions()
        # A handful of rows through a small network: threads would only wait for each other.
        options.intra_op_num_threads = 1
        try:
            session = runtime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own kinds, one for each cause
            raise CheckpointError(
                f"{path} is damaged or is no ONNX file that onnxruntime reads "
                f"({first_line(error)}): export it again"
            ) from error
        inputs, outputs = session.get_inputs(), session.get_outputs()
        widths = [
            value.shape[-1]
            for value in (*inputs, *outputs)
            if len(value.shape) == 2 and value.type == "tensor(float)"
        ]
        if len(inputs) != 1 or len(outputs) != 1 or [type(w) for w in widths] != [int, int]:
            raise CheckpointError(
                f"{path} maps {_described(inputs)} to {_described(outputs)}: expected one input "
                "[batch, obs_dim] and one output [batch, action_dim], both tensor(float)"
            )
        self._path = path
        self.obs_dim, self.action_dim = widths
        self.metadata = _metadata(session)
        self._session = session
        self._names = inputs[0].name, outputs[0].name
        self.in_keys = [obs_key]
        self.out_keys = [action_key]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read the observation ``[*, obs_dim]``, write the action ``[*, action_dim]``.

        Raises:
            CheckpointError: the file does not compute an action for each row.
            ConfigError: the observation has another width.
        """
        obs = tensordict.get(self.in_keys[0])
        if obs.shape[-1] != self.obs_dim:
            raise ConfigError(
                f"the policy file takes {self.obs_dim} observations and was given {obs.shape[-1]}: "
                "it was exported from another task or network"
            )
        rows = obs.detach().reshape(-1, self.obs_dim).float().cpu().numpy()
        try:
            (action,) = self._session.run([self._names[1]], {self._names[0]: rows})
        except Exception as error:  # onnxruntime's own kinds
            raise CheckpointError(
                f"{self._path} cannot act on {len(rows)} observations at once "
                f"({first_line(error)}): export it with a free batch size, or play as many robots "
                "as it takes"
            ) from error
        if action.shape != (len(rows), self.action_dim):
            raise CheckpointError(
                f"{self._path} computes {list(action.shape)} from {len(rows)} observations: "
                f"expected [{len(rows)}, {self.action_dim}], one action for each"
            )
        value = torch.from_numpy(action).reshape(*obs.shape[:-1], self.action_dim)
        return tensordict.set(self.out_keys[0], value.to(obs.device))


def _described(values: Any) -> str:
    return ", ".join(f"{v.name} {v.type} {v.shape}" for v in values)


def _metadata(session: Any) -> dict[str, Any]:
    """A foreign file's values need not be JSON; they are taken as strings then."""
    values = {}
    for key, text in session.get_modelmeta().custom_metadata_map.items():
        try:
            values[key] = json.loads(text)
        except (ValueError, RecursionError):
            values[key] = text
    return values
