"""examples/train_sac.py on tiny networks, and the commands on its runs."""

from __future__ import annotations

import json

import pytest
import torch
from reference.runs import TINY_SAC, rows
from tensordict import TensorDict

from unilab.cli import main
from unilab.cli.export import export_run
from unilab.cli.play import play_run
from unilab.conf import compose
from unilab.errors import CheckpointError, ConfigError
from unilab.examples.train_sac import train
from unilab.export import OnnxPolicy
from unilab.record import metric
from unilab.trainers import load_play_actor

PENDULUM = ["task=pendulum_swingup", *TINY_SAC]


@pytest.mark.parametrize("collector", ["sync", pytest.param("pipelined", marks=pytest.mark.slow)])
def test_run_is_evaluated_saved_played_plotted_exported_and_continued(tmp_path, capsys, collector):
    run = tmp_path / "run"
    cfg = compose([*PENDULUM, f"training.run_dir={run}", f"training.collector={collector}"])
    assert train(cfg) == 0
    assert "Finished: 160 steps" in capsys.readouterr().out
    last = rows(run)[-1]
    assert float(last["Perf/updates"]) == 2 * (160 / 4 - 32 / 4 + 1)
    assert all(metric(tag) for tag in set(last) - {"frames", "minutes"})
    assert {"Eval/return", "Loss/qvalue", "Loss/actor", "Policy/entropy"} <= set(last)
    content = json.loads((run / "run_config.json").read_text())
    assert content["config"]["algo"]["name"] == "sac"
    assert content["actor_semantics"]["builder"] == "unilab.modules:GaussianActor"
    assert content["actor_semantics"]["action_transform"] == "tanh_affine"

    actor = load_play_actor(run)
    assert actor.normalizer.count == 160
    assert [e.ended_by for e in play_run(run, robots=2)] == ["time_out"] * 2
    assert main(["plot", str(run)]) == 0
    obs = 10.0 * torch.randn(5, 3)  # the normaliser is inside
    action = OnnxPolicy(export_run(run))(TensorDict({"obs": obs}, [5]))["action"]
    torch.testing.assert_close(action, actor.explore(obs, deterministic=True))

    with pytest.raises(CheckpointError, match="hidden_dims"):
        train(compose([f"training.resume={run}", "algo.algo_params.actor_hidden_dims=[9]"]))
    assert train(compose([f"training.resume={run}", "algo.total_frames=200"])) == 0
    assert rows(run)[-1]["frames"] == "200"


def test_critics_read_their_own_group_and_half_of_a_batch_is_mirrored_if_the_task_allows(tmp_path):
    run = tmp_path / "run"
    options = [f"training.run_dir={run}", "training.eval_interval=null", "algo.total_frames=48"]
    options += ["algo.symmetry=true", "algo.n_step=3"]
    assert train(compose(["task=go2_velocity_flat", *TINY_SAC, *options])) == 0
    content = json.loads((run / "run_config.json").read_text())
    assert content["critic_obs"] == "critic"
    assert rows(run)[-1]["Loss/qvalue"]


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["algo.algo_params.tau=1.5"], "tau"),
        (["algo.algo_params.target_entropy_sigma=0.0"], "target_entropy_sigma"),
        (["algo.algo_params.critic_hidden_dims=[]"], "hidden_dims"),
        (["algo.algo_params.num_bins=11"], r"algo_params\.num_bins"),
    ],
)
def test_setting_that_cannot_train_is_refused_before_the_run_has_a_folder(
    tmp_path, overrides, name
):
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=name):
        train(compose([*PENDULUM, *overrides, f"training.run_dir={run}"]))
    assert not run.exists()


def test_the_preset_for_a_gpu_keeps_the_tasks_own_settings():
    cfg = compose(["algo.name=sac", "task=go2_velocity_flat", "preset=massively_parallel"])
    assert (cfg.algo.num_envs, cfg.algo.batch_size, cfg.algo.n_step) == (4096, 8192, 3)
