"""Tasks of other suites on the command line."""

from __future__ import annotations

import json
import shutil

import onnx
import pytest
from torchrl.envs import PendulumEnv

from unilab import cli, registry
from unilab.cli.play import play_run
from unilab.cli.runs import TrainedTask
from unilab.errors import CapabilityError

pytest.importorskip("gymnasium", reason="needs Gymnasium: pip install 'unilab-torchrl[gym]'")

TASK = "gym/Hopper-v5"


def test_a_suites_task_is_played_and_its_terms_add_up(runs):
    episodes = play_run(runs(TASK), robots=3, seconds=2.0)
    for episode in episodes:
        assert set(episode.terms) == {"forward", "ctrl", "survive"}
        assert sum(episode.terms.values()) * episode.seconds == pytest.approx(
            episode.total, abs=1e-4
        )
        assert episode.ended_by in ("terminated", "time_out")
    assert any(e.ended_by == "terminated" for e in episodes), "an untrained hopper falls"


def test_a_suites_task_is_exported_with_its_actions(runs, tmp_path):
    run = shutil.copytree(runs(TASK), tmp_path / "run")
    assert cli.main(["export", str(run)]) == 0
    read = {p.key: json.loads(p.value) for p in onnx.load(run / "policy.onnx").metadata_props}
    assert read["task"] == TASK
    assert read["control_period"] == pytest.approx(0.008)
    assert read["action_joint_names"] == ["thigh_joint", "leg_joint", "foot_joint"]
    assert read["action_low"] == [-1.0] * 3
    assert read["action_high"] == [1.0] * 3


def test_environment_of_another_kind_is_refused(runs, monkeypatch):
    task = TrainedTask.of(runs("pendulum_swingup"))
    monkeypatch.setattr(registry, "make", lambda *args, **kwargs: PendulumEnv())
    with pytest.raises(CapabilityError, match="PendulumEnv"):
        task.make_env(num_envs=1, seed=0)
