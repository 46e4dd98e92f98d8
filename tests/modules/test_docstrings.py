"""The examples in the public docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch


@pytest.mark.parametrize(
    "module",
    [
        "unilab.data.replay",
        "unilab.data.reward_normalizer",
        "unilab.modules.actor",
        "unilab.modules.actor_spec",
        "unilab.modules.critic",
        "unilab.modules.gaussian_actor",
        "unilab.modules.log_prob_check",
        "unilab.modules.mlp",
        "unilab.modules.policy",
        "unilab.objectives.flashsac",
        "unilab.trainers.async_runner",
    ],
)
def test_examples_run(module):
    torch.manual_seed(0)
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0
