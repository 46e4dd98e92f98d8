"""Tasks of other suites on the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass

import onnx
import pytest
import torch

from unilab import cli, registry
from unilab.cli.runs import TrainedTask
from unilab.envs import TorchEnv
from unilab.errors import CapabilityError

pytest.importorskip("gymnasium", reason="needs Gymnasium: pip install 'unilab-torchrl[gym]'")

TASK = "gym/Hopper-v5"


def test_a_suites_task_is_played_and_its_terms_add_up(runs, capsys):
    from unilab.cli.play import play_run

    episodes = play_run(runs(TASK), robots=3, seconds=2.0)
    out = capsys.readouterr().out

    assert TASK in out
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


class Counter(TorchEnv):
    """Counts its steps; neither managers nor physics."""

    def __init__(self, *, num_envs: int, device: str, seed: int | None) -> None:
        super().__init__(num_envs=num_envs, device=device, seed=seed)
        self._make_specs(1)

    @property
    def obs_groups_spec(self):
        return {"obs": 1}

    def _physics(self, action): ...

    def _evaluate(self):
        never = torch.zeros(self.num_envs, dtype=torch.bool)
        return never.float(), never, never

    def _observe(self, rows=None):
        return {"obs": self.episode_length[slice(None) if rows is None else rows, None].float()}

    def _stage_reset(self, rows): ...

    def _commit_reset(self, rows): ...


@dataclass(frozen=True)
class CounterCfg:
    init_at_random_ep_len: bool = False

    def make(self, **arguments) -> TorchEnv:
        return Counter(**arguments)


def test_an_environment_of_another_kind_is_refused_with_the_way_out(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._registered, "counter", CounterCfg)
    run = shutil.copytree(runs("pendulum_swingup"), tmp_path / "run")
    content = json.loads((run / "run_config.json").read_text())
    content["config"] |= {"task": "counter", "env": {}}
    (run / "run_config.json").write_text(json.dumps(content))

    with pytest.raises(CapabilityError, match="Counter"):
        TrainedTask.of(run).make_env(num_envs=1, seed=0)
