"""examples/compose_flashsac.py on TorchRL's pendulum, examples/torchrl_pipeline.py on ours."""

from __future__ import annotations

import math

import pytest
import torch
from torchrl.envs.utils import check_env_specs

from unilab.examples import compose_flashsac, torchrl_pipeline

TINY = {"num_envs": 4, "batch_size": 16, "warmup_frames": 40, "hidden_dim": 8}


def test_composed_environment_is_a_batched_torchrl_environment():
    env = compose_flashsac.make_env(3)
    check_env_specs(env)
    observation = env.reset()["observation"]
    assert observation.shape == (3, 3)
    assert torch.allclose(observation[:, :2].square().sum(1), torch.ones(3))


@pytest.mark.slow
def test_c04_composed_flashsac_trains_and_evaluates():
    metrics = compose_flashsac.train(total_frames=240, **TINY)
    assert metrics["Eval/episode_length"] == 200
    # A step costs at most pi^2 + 0.1 * 8^2 + 0.001 * 2^2.
    assert -200 * 16.3 < metrics["Eval/return"] < 0
    assert math.isfinite(metrics["Eval/return"])


@pytest.mark.slow
def test_torchrls_sac_trains_on_our_collector_and_evaluates():
    metrics = torchrl_pipeline.train(total_frames=160, **TINY)
    assert metrics["Eval/episode_length"] == 500
    assert math.isfinite(metrics["Eval/return"])
