"""examples/custom_actor.py: trained, saved, resumed, exported and played, with tiny settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from reference.runs import TINY, rows
from tensordict import TensorDict

from unilab.export import OnnxPolicy
from unilab.modules import assert_log_prob_consistent
from unilab.trainers import load_play_actor

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = [*TINY, "algo.algo_params.critic_hidden_dim=8", "algo.algo_params.compile=false"]


@pytest.mark.slow
def test_it_trains_saves_resumes_exports_and_plays(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    import custom_actor

    run = tmp_path / "run"
    metrics = custom_actor.main([*SMALL, f"training.run_dir={run}"])
    assert metrics["Eval/episode_length"] == 20
    last = rows(run)[-1]
    assert int(last["frames"]) == 320
    assert float(last["Loss/aux_reconstruction"]) > 0
    semantics = json.loads((run / "run_config.json").read_text())["actor_semantics"]
    assert semantics["builder"] == "custom_actor:TwoEncoderActor"
    assert semantics["kwargs"] == {"split": 2, "action_low": -0.9, "action_high": 0.9}

    actor = load_play_actor(run)
    actions = actor.explore(10.0 * torch.randn(256, 3))
    assert actions.abs().max() <= 0.9
    obs = torch.randn(8, 3)
    exported = OnnxPolicy(run / "policy.onnx")(TensorDict({"obs": obs}, [8]))["action"]
    torch.testing.assert_close(
        exported, actor.explore(obs, deterministic=True), atol=1e-5, rtol=0.0
    )
    assert_log_prob_consistent(actor, lambda u: 0.9 * torch.tanh(u))
