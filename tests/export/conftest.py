"""An actor whose normalisation has seen data, and its file."""

from __future__ import annotations

import pytest
import torch

from unilab.export import OnnxExport, export_onnx
from unilab.modules import FlashSACActor


@pytest.fixture(scope="session")
def actor() -> FlashSACActor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = FlashSACActor(5, 2, hidden_dim=16, action_low=[-2.0, 0.0], action_high=[1.0, 4.0])
        for _ in range(100):
            made(torch.randn(64, 5) * torch.arange(1.0, 6.0) + 3.0, training=True)
    return made.eval()


METADATA = {"task": "t", "observation_terms": [{"name": "a", "clip": None}], "period": 0.02}


@pytest.fixture(scope="session")
def exported(actor: FlashSACActor, tmp_path_factory: pytest.TempPathFactory) -> OnnxExport:
    """The actor's file; a test that changes it takes a copy."""
    path = tmp_path_factory.mktemp("export") / "p.onnx"
    return export_onnx(actor, path, metadata=METADATA)
