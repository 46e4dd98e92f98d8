"""examples/torchrl_pipeline.py: TorchRL's SAC on our collector."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "torchrl_pipeline.py"


@pytest.mark.slow
def test_it_trains_and_evaluates():
    spec = importlib.util.spec_from_file_location("torchrl_pipeline", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    metrics = module.train(
        total_frames=160, num_envs=4, batch_size=16, warmup_frames=40, hidden_dim=8
    )
    assert metrics["Eval/episode_length"] == 500
    assert math.isfinite(metrics["Eval/return"])
