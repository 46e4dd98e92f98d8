"""examples/compose_flashsac.py on TorchRL's pendulum (ADR-0001 C4)."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torchrl.envs.utils import check_env_specs

SCRIPT = Path(__file__).parents[2] / "examples" / "compose_flashsac.py"


def load():
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("compose_flashsac", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_environment_is_a_batched_torchrl_environment():
    env = load().make_env(3)
    check_env_specs(env)
    observation = env.reset()["observation"]
    assert observation.shape == (3, 3)
    assert torch.allclose(observation[:, :2].square().sum(1), torch.ones(3))


@pytest.mark.slow
def test_c04_it_trains_and_evaluates():
    metrics = load().train(
        total_frames=240, num_envs=4, batch_size=16, warmup_frames=40, hidden_dim=8
    )
    assert metrics["Eval/episode_length"] == 200
    # A step costs at most pi^2 + 0.1 * 8^2 + 0.001 * 2^2.
    assert -200 * 16.3 < metrics["Eval/return"] < 0
    assert math.isfinite(metrics["Eval/return"])
