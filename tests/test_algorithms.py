"""ADR-0017 C28: a wholly different algorithm beside FlashSAC with an actor of one's own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from reference.runs import TINY
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import MLP, AdditiveGaussianModule, ValueOperator
from torchrl.objectives import DDPGLoss, SoftUpdate

from unilab.collectors import make_collector
from unilab.conf import algorithms, compose, register_algorithm
from unilab.conf.envs import make_eval_env, make_training_env
from unilab.data import RewardNormalizer, make_replay_buffer
from unilab.errors import ConfigError
from unilab.settings import OffPolicyCfg, TrainingCfg
from unilab.trainers import Evaluator, OffPolicyRunner, Run, run_identity

PENDULUM = ["task=pendulum_swingup", *TINY]


@dataclass(frozen=True, kw_only=True)
class DDPGParamsCfg:
    lr: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class DDPGAlgoCfg(OffPolicyCfg):
    name: str = "ddpg"
    algo_params: DDPGParamsCfg = field(default_factory=DDPGParamsCfg)


@dataclass(frozen=True, kw_only=True)
class DDPGCfg:
    task: str
    algo: DDPGAlgoCfg = field(default_factory=DDPGAlgoCfg)
    training: TrainingCfg = field(default_factory=TrainingCfg)
    env: dict[str, Any] = field(default_factory=dict)


class DDPGLearner(torch.nn.Module):
    """TorchRL's DDPG, one SGD step a batch."""

    def __init__(self, loss: DDPGLoss, lr: float) -> None:
        super().__init__()
        self.loss = loss
        self.optimizer = torch.optim.SGD(loss.parameters(), lr)
        self.target = SoftUpdate(loss, tau=0.01)
        self.update_count = 0

    def update(self, tensordict: TensorDictBase) -> TensorDict:
        out = self.loss(tensordict)
        (out["loss_actor"] + out["loss_value"]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.target.step()
        self.update_count += 1
        metrics = out.select("loss_actor", "loss_value").detach()
        return metrics.rename_key_("loss_value", "loss_qvalue")


def train_ddpg(cfg: DDPGCfg) -> int:
    algo, training = cfg.algo, cfg.training
    torch.manual_seed(training.seed)
    env, eval_env = make_training_env(cfg), make_eval_env(cfg)
    obs, action = env.obs_groups_spec["obs"], env.action_spec.shape[-1]
    actor = torch.nn.Sequential(MLP(obs, action, num_cells=[8]), torch.nn.Tanh())
    acting = TensorDictModule(actor, in_keys=["obs"], out_keys=["action"])
    loss = DDPGLoss(acting, ValueOperator(MLP(obs + action, 1, num_cells=[8]), ["obs", "action"]))
    loss.make_value_estimator(gamma=algo.gamma)
    policy = TensorDictSequential(acting, AdditiveGaussianModule(env.action_spec[0]))
    learner = DDPGLearner(loss, algo.algo_params.lr)
    buffer = make_replay_buffer(algo.replay_capacity, algo.batch_size)
    rewards = RewardNormalizer(algo.gamma)
    run = Run.open(
        cfg,
        identity=run_identity(cfg.task, env.obs_groups_spec, "obs", actor),
        env=env,
        eval_env=eval_env,
        buffer=buffer,
        learner=learner,
        rewards=rewards,
    )
    collector = make_collector(
        env,
        policy,
        placement=training.resolve_placement(),
        frames_per_batch=algo.num_envs,
        total_frames=algo.frames_left(run.counters.frames),
    )
    evaluate = Evaluator(eval_env, policy, trained=env)
    with OffPolicyRunner(
        collector, learner, buffer, training=training, run=run, evaluate=evaluate
    ) as runner:
        for data in runner:
            rewards.update(data)
            buffer.extend(data)
            if len(buffer) >= algo.learning_starts:
                runner.record(learner.update(rewards.normalize(buffer.sample())))
    return runner.exit_code


@pytest.fixture
def registered(monkeypatch):
    """The table of algorithms with DDPG in it."""
    monkeypatch.setattr(algorithms, "_registered", dict(algorithms._registered))
    register_algorithm("ddpg", DDPGCfg, train_ddpg)


def train(*overrides: str) -> None:
    cfg = compose(overrides)
    assert algorithms.algorithm(cfg.algo.name).train(cfg) == 0


def run_config(run: Path) -> dict:
    return json.loads((run / "run_config.json").read_text())


def test_c28_registered_algorithm_trains_evaluates_and_resumes_with_the_same_runner(
    registered, tmp_path
):
    run = tmp_path / "run"
    train(*PENDULUM, "algo.name=ddpg", f"training.run_dir={run}")
    train(f"training.resume={run}", "algo.total_frames=240")
    header, *rows = (run / "progress.csv").read_text().splitlines()
    assert {"Eval/return", "Loss/actor", "Loss/qvalue"} <= set(header.split(","))
    assert rows[-1].split(",")[header.split(",").index("frames")] == "240"
    assert run_config(run)["actor_semantics"]["builder"] is None


@pytest.mark.filterwarnings("error")  # Hydra would check FlashSAC's files against DDPG's tasks
def test_settings_of_an_algorithm_are_its_own(registered):
    assert compose([*PENDULUM, "algo.name=ddpg"]).algo.algo_params == DDPGParamsCfg()
    with pytest.raises(ConfigError, match=r"algo\.algo_params\.tau"):
        compose([*PENDULUM, "algo.name=ddpg", "algo.algo_params.tau=0.1"])
    assert compose(PENDULUM).algo.name == "flashsac"
