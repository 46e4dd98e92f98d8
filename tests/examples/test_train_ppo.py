"""PPO and APPO on the pendulum with tiny networks, and the commands on their runs."""

from __future__ import annotations

import json

import pytest
import torch
from reference.runs import TINY_APPO, TINY_PPO, rows
from tensordict import TensorDict

from unilab.cli.export import export_run
from unilab.cli.play import play_run
from unilab.conf import compose
from unilab.errors import CheckpointError, ConfigError
from unilab.examples import train_appo, train_ppo
from unilab.examples.train_ppo import train
from unilab.export import OnnxPolicy
from unilab.record import metric
from unilab.record.plot import plot_learning_curve
from unilab.trainers import load_play_actor

PENDULUM = ["task=pendulum_swingup", *TINY_PPO]


@pytest.mark.parametrize(
    ("settings", "script"),
    [
        ([*TINY_PPO, "training.collector=sync"], train_ppo),
        pytest.param(
            [*TINY_PPO, "training.collector=pipelined"], train_ppo, marks=pytest.mark.slow
        ),
        (TINY_APPO, train_appo),
    ],
    ids=["ppo", "ppo-pipelined", "appo"],
)
def test_run_is_evaluated_saved_played_exported_plotted_and_continued(
    tmp_path, capsys, settings, script
):
    run, train = tmp_path / "run", script.train
    options = [f"training.run_dir={run}", "training.log_interval_s=600"]
    assert train(compose(["task=pendulum_swingup", *settings, *options])) == 0
    assert "Finished: 160 steps" in capsys.readouterr().out
    last = rows(run)[-1]
    # Of four rollouts the first is of the first policy, the others of the one before.
    stale = (last.get("Policy/staleness"), last.get("Policy/staleness_updates"))
    assert stale == (("0.75", "3") if script is train_appo else (None, None))
    assert float(last["Perf/updates"]) == 4 * 2 * 2  # rollouts, epochs, minibatches
    assert all(metric(tag) for tag in set(last) - {"frames", "minutes"})
    assert {"Eval/return", "Loss/objective", "Loss/critic", "Policy/kl"} <= set(last)
    content = json.loads((run / "run_config.json").read_text())
    assert content["critic_obs"] == "obs"
    assert content["actor_semantics"]["builder"] == "unilab.modules:GaussianActor"

    assert plot_learning_curve(run).is_file()
    actor = load_play_actor(run)
    assert actor.normalizer.count == 160
    assert [e.ended_by for e in play_run(run, robots=2)] == ["time_out"] * 2
    onnx = OnnxPolicy(export_run(run))
    obs = 10.0 * torch.randn(5, 3)  # the normaliser is inside
    action = onnx(TensorDict({"obs": obs}, [5]))["action"]
    torch.testing.assert_close(action, actor.explore(obs, deterministic=True))
    torch.nn.init.zeros_(actor.normalizer.running_mean)
    assert not torch.allclose(action, actor.explore(obs, deterministic=True))

    with pytest.raises(CheckpointError, match="hidden_dims"):
        train(compose([f"training.resume={run}", "algo.algo_params.actor_hidden_dims=[9]"]))
    assert train(compose([f"training.resume={run}", "algo.total_frames=170"])) == 0
    assert rows(run)[-1]["frames"] == "200"  # a whole rollout more


@pytest.mark.parametrize("collector", ["sync", pytest.param("pipelined", marks=pytest.mark.slow)])
def test_the_first_update_of_each_rollout_finds_the_policy_that_collected_it(
    collector, tmp_path, monkeypatch
):
    """Its ratios are 1, but for the first tick of a pipelined rollout, which acts an update late.

    The first minibatch is the whole rollout here."""
    whole = ["algo.num_minibatches=1", "algo.num_epochs=3", "training.log_interval_s=600"]
    seen = []
    monkeypatch.setattr(
        "unilab.trainers.ppo_learner.adapted_lr", lambda lr, kl, _: seen.append(kl) or 1e-2
    )
    settings = [*PENDULUM, *whole, f"training.collector={collector}"]
    assert train(compose([*settings, f"training.run_dir={tmp_path / 'run'}"])) == 0
    assert max(seen[::3]) < (1e-6 if collector == "sync" else 0.4 * max(seen))
    assert min(seen[2::3]) > 1e-5


def test_value_network_reads_the_critics_group_if_the_task_has_one(tmp_path):
    run = tmp_path / "run"
    options = [f"training.run_dir={run}", "training.eval_interval=null", "algo.total_frames=40"]
    options += ["algo.symmetry=true"]
    assert train(compose(["task=go2_velocity_flat", *TINY_PPO, *options])) == 0
    content = json.loads((run / "run_config.json").read_text())
    assert content["critic_obs"] == "critic"
    assert content["obs_groups"]["critic"] > content["obs_groups"]["obs"]


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["algo.num_minibatches=41"], "num_minibatches.*40"),
        (["algo.symmetry=true"], "mirror"),
        (["algo.algo_params.lr=0.0"], "lr"),
        (["algo.algo_params.activation=gelu"], "activation.*gelu"),
        (["algo.algo_params.critic_hidden_dims=[]"], "hidden_dims"),
        (["algo.batch_size=4"], r"algo\.batch_size"),
        ([*TINY_APPO, "training.collector=sync"], r"training\.collector must be pipelined"),
        ([*TINY_APPO, "algo.max_staleness=0"], "max_staleness"),
        (
            ["algo.algo_params.actor_config.builder=unilab.modules:FlashSACActor"],
            "action_transform_id.*tanh",
        ),
    ],
)
def test_setting_that_cannot_train_is_refused_before_the_run_has_a_folder(
    tmp_path, overrides, name
):
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=name):
        train(compose([*PENDULUM, *overrides, f"training.run_dir={run}"]))
    assert not run.exists()


def test_rsl_rl_trains_and_is_evaluated_with_the_same_settings(tmp_path):
    pytest.importorskip("rsl_rl", reason="needs RSL-RL: pip install 'unilab-torchrl[rsl-rl]'")
    from unilab.examples import train_rsl_rl

    run = tmp_path / "run"
    options = [f"training.run_dir={run}", "training.eval_interval=80"]
    assert train_rsl_rl.train(compose([*PENDULUM, *options])) == 0
    assert [row["frames"] for row in rows(run)] == ["80", "160"]
    assert all(row["Eval/return"] for row in rows(run))
    assert list((run / "rsl_rl").glob("model_*.pt"))
