"""Rollout policy of an exported file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from unilab.errors import CheckpointError, ConfigError, first_line
from unilab.export.onnx_export import require


class OnnxPolicy(TensorDictModuleBase):
    """Writes the action that onnxruntime computes from an ONNX file.

    Args:
        path: a file of :func:`~unilab.export.export_onnx`, or another with one input
            ``[batch, obs_dim]`` and one output ``[batch, action_dim]``, both float32.

    Attributes:
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
        options.intra_op_num_threads = 1  # a few rows of a small network: threads only wait
        try:
            self._session = runtime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has a class for each cause
            raise CheckpointError(
                f"{path} cannot be read as ONNX ({first_line(error)}): export it again"
            ) from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        widths = [
            value.shape[-1]
            for value in (*inputs, *outputs)
            if len(value.shape) == 2 and value.type == "tensor(float)"
        ]
        if len(inputs) != 1 or len(outputs) != 1 or [type(w) for w in widths] != [int, int]:
            found = ", ".join(f"{v.name} {v.type} {v.shape}" for v in (*inputs, *outputs))
            raise CheckpointError(
                f"{path} must have one input [batch, obs_dim] and one output [batch, action_dim], "
                f"both tensor(float), got {found}"
            )
        self.obs_dim, self.action_dim = widths
        self.metadata = {
            key: _from_json(text)
            for key, text in self._session.get_modelmeta().custom_metadata_map.items()
        }
        self._names = inputs[0].name, outputs[0].name
        self.in_keys = [obs_key]
        self.out_keys = [action_key]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read the observation ``[*, obs_dim]``, write the action ``[*, action_dim]``."""
        obs = tensordict.get(self.in_keys[0])
        if obs.shape[-1] != self.obs_dim:
            raise ConfigError(
                f"the observation must have width {self.obs_dim}, got {obs.shape[-1]}: the policy "
                "file was exported from another task or network"
            )
        rows = obs.detach().reshape(-1, self.obs_dim).float().cpu().numpy()
        (action,) = self._session.run([self._names[1]], {self._names[0]: rows})
        value = torch.from_numpy(action).reshape(*obs.shape[:-1], self.action_dim)
        return tensordict.set(self.out_keys[0], value.to(obs.device))


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # a file of another exporter may hold plain text
        return text
