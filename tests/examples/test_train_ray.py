"""examples/train_ray.py; what needs Ray is skipped without it."""

from __future__ import annotations

import json

import pytest
import torch
from reference.runs import NETWORKS, TINY, rows

from unilab import registry
from unilab.conf import compose
from unilab.errors import CapabilityError, CollectorError, ConfigError
from unilab.examples import train_ray
from unilab.examples.train_ray import FlashSACRayCfg, Workers, start_workers, train
from unilab.modules import FlashSACActor, FlashSACPolicy
from unilab.record import metric
from unilab.trainers import load_play_actor


def settings(*overrides: str) -> FlashSACRayCfg:
    start = ["task=pendulum_swingup", *TINY, *NETWORKS, "algo.algo_params.compile=false"]
    return compose([*start, "ray.num_steps=2", *overrides], FlashSACRayCfg)


def test_settings_of_a_task_are_those_of_flashsac():
    assert compose(["task=pendulum_swingup"], FlashSACRayCfg).algo.learning_starts == 2000


def test_workers_that_cannot_share_the_environments_are_refused():
    with pytest.raises(ConfigError, match=r"num_workers .*num_envs=4, got 3"):
        settings("ray.num_workers=3")


def test_without_ray_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(train_ray, "find_spec", lambda name: None)
    with pytest.raises(CapabilityError, match=r"pip install 'unilab-torchrl\[ray\]'"):
        train(settings(f"training.run_dir={tmp_path / 'run'}"))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    module = pytest.importorskip("ray", reason="needs Ray: pip install 'unilab-torchrl[ray]'")
    yield module
    module.shutdown()


@pytest.fixture
def cluster(ray):
    """Ray that runs already, for several trainings."""
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    return ray


@pytest.mark.slow
def test_run_on_its_own_ray_is_logged_and_saved(ray, tmp_path):
    run = tmp_path / "run"
    assert train(settings(f"training.run_dir={run}")) == 0
    assert not ray.is_initialized()
    last = rows(run)[-1]
    assert float(last["Perf/updates"]) == (160 - 32) / 4 + 2
    assert {"Eval/return", "Loss/actor", "Episode_Reward/upright", "Perf/physics_ms"} <= set(last)
    assert all(metric(tag) for tag in set(last) - {"frames", "minutes"})
    assert json.loads((run / "run_config.json").read_text())["config"]["ray"]["num_workers"] == 2


@pytest.mark.slow
def test_run_repeats_with_its_seed_and_continues(cluster, tmp_path):
    runs = tmp_path / "run", tmp_path / "again"
    for run in runs:
        assert train(settings(f"training.run_dir={run}", "training.eval_interval=null")) == 0
    weights, repeated = (load_play_actor(run).state_dict() for run in runs)
    assert all(torch.equal(value, repeated[name]) for name, value in weights.items())
    resumed = [f"training.resume={runs[0]}", "algo.total_frames=200"]
    assert train(compose(resumed, FlashSACRayCfg)) == 0
    assert rows(runs[0])[-1]["frames"] == "200"


def actor() -> FlashSACActor:
    env = registry.make("pendulum_swingup")
    dims = env.obs_groups_spec["obs"], env.action_spec.shape[-1]
    return FlashSACActor(*dims, hidden_dim=8)


@pytest.mark.slow
def test_workers_act_with_the_weights_that_were_sent_and_their_own_noise(cluster):
    torch.manual_seed(1)
    sent = FlashSACPolicy(actor())
    cfg = settings("algo.random_warmup=false")
    workers = start_workers(cfg, sent, FlashSACPolicy(actor()))
    try:
        data = next(iter(workers))
        for copy in workers.get_distant_attr("policy"):
            assert all(
                torch.equal(value, copy.state_dict()[name])
                for name, value in sent.state_dict().items()
            )
        assert (*data.shape,) == (4, 2)
        assert data.names[-1] == "time"
        assert not torch.equal(data["action"][:2], data["action"][2:])
    finally:
        workers.shutdown()


@pytest.mark.slow
def test_death_of_a_worker_is_one_error_after_a_checkpoint(cluster, tmp_path, monkeypatch):
    started: list[Workers] = []
    start = train_ray.start_workers
    monkeypatch.setattr(
        train_ray, "start_workers", lambda *args: started.append(start(*args)) or started[0]
    )
    record = train_ray.OffPolicyRunner.record

    def kill_and_record(runner, metrics):
        if runner.learner.update_count == 3:
            cluster.kill(started[0].remote_collectors[1])
        record(runner, metrics)

    monkeypatch.setattr(train_ray.OffPolicyRunner, "record", kill_and_record)
    run = tmp_path / "run"
    with pytest.raises(CollectorError, match="Ray worker") as caught:
        train(settings(f"training.run_dir={run}"))
    assert caught.value.__notes__ == ["Saved a checkpoint at 40 frames."]
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"checkpoint-{40:012}"]
