"""ADR-0017 C28: a wholly different algorithm beside FlashSAC with an actor of one's own."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import MLP, AdditiveGaussianModule, ValueOperator
from torchrl.objectives import DDPGLoss, SoftUpdate

import unilab
from unilab.conf import compose
from unilab.errors import CheckpointError, ConfigError
from unilab.trainers import Algorithm, Interface, algorithm, algorithms, register_algorithm
from unilab.trainers.config import AlgoCfg

SCRIPT = Path(__file__).parents[2] / "examples" / "train_flashsac.py"
TINY = [
    "task=pendulum_swingup",
    "algo.num_envs=4",
    "algo.batch_size=16",
    "algo.learning_starts=32",
    "algo.total_frames=160",
    "algo.replay_capacity=1000",
    "algo.algo_params.compile=false",
    "algo.algo_params.actor_hidden_dim=8",
    "algo.algo_params.critic_hidden_dim=8",
    "training.num_threads=1",
    "training.device=cpu",
    "training.eval_num_envs=2",
    "env.episode_length_s=0.4",
]
PLAIN = ["algo.algo_params.actor_config.builder=reference.actors:PlainActor"]


class DDPGLearner:
    """TorchRL's DDPG, one Adam step a batch."""

    def __init__(self, loss: DDPGLoss, lr: float) -> None:
        self.loss = loss
        self.optimizer = torch.optim.Adam(loss.parameters(), lr)
        self.target = SoftUpdate(loss, tau=0.01)
        self.update_count = 0

    def update(self, tensordict: TensorDictBase) -> TensorDict:
        out = self.loss(tensordict)
        (out["loss_actor"] + out["loss_value"]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.target.step()
        self.update_count += 1
        return TensorDict(
            {"loss_actor": out["loss_actor"], "loss_qvalue": out["loss_value"]}
        ).detach()

    def state_dict(self) -> dict:
        return {
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "update_count": self.update_count,
        }

    def load_state_dict(self, state: dict) -> None:
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.update_count = state["update_count"]


def ddpg(algo: AlgoCfg, interface: Interface) -> Algorithm:
    obs, action = interface.obs_groups["obs"], interface.action_spec.shape[-1]
    net = torch.nn.Sequential(MLP(obs, action, num_cells=[8]), torch.nn.Tanh())
    actor = TensorDictModule(net, in_keys=["obs"], out_keys=["action"])
    value = ValueOperator(MLP(obs + action, 1, num_cells=[8]), in_keys=["obs", "action"])
    loss = DDPGLoss(actor, value)
    loss.make_value_estimator(gamma=algo.gamma)
    noise = AdditiveGaussianModule(interface.action_spec[0], device=interface.device)
    policy = TensorDictSequential(actor, noise)
    return Algorithm(actor=net, policy=policy, learner=DDPGLearner(loss, algo.algo_params.lr))


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_flashsac", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def registered(monkeypatch):
    """The registry with DDPG in it; afterwards it is as it was."""
    monkeypatch.setattr(algorithms, "_registered", {})
    register_algorithm("ddpg", ddpg)


def run_config(run: Path) -> dict:
    return json.loads((run / "run_config.json").read_text())


def test_c28_a_registered_algorithm_trains_evaluates_and_resumes_through_the_same_runner(
    script, registered, tmp_path
):
    run = tmp_path / "run"
    assert script.train(compose([*TINY, "algo.name=ddpg", f"training.run_dir={run}"])) == 0
    assert script.train(compose([f"training.resume={run}", "algo.total_frames=240"])) == 0
    rows = (run / "progress.csv").read_text().splitlines()
    assert {"Eval/return", "Loss/actor", "Loss/qvalue"} <= set(rows[0].split(","))
    assert run_config(run)["actor_semantics"]["builder"] is None
    with pytest.raises(CheckpointError, match="kind is 'custom' there and 'flashsac' here"):
        script.train(
            compose([f"training.resume={run}", "algo.total_frames=400", "algo.name=flashsac"])
        )


def test_c28_neither_route_disturbs_the_other(script, registered, tmp_path):
    for name, overrides in (("built-in", []), ("custom", PLAIN), ("ddpg", ["algo.name=ddpg"])):
        run = tmp_path / name
        assert script.train(compose([*TINY, *overrides, f"training.run_dir={run}"])) == 0
    builders = [
        run_config(tmp_path / name)["actor_semantics"]["builder"]
        for name in ("built-in", "custom", "ddpg")
    ]
    assert builders == ["unilab.modules:FlashSACActor", "reference.actors:PlainActor", None]


def test_a_name_that_is_taken_is_refused(registered):
    for name in ("flashsac", "ddpg"):
        with pytest.raises(ConfigError, match=f"algorithm named '{name}' exists already"):
            register_algorithm(name, ddpg)


def test_an_algorithm_that_is_not_registered_is_refused(registered):
    with pytest.raises(ConfigError, match=r"algo.name='ddpgg' \(did you mean 'ddpg'.*register_al"):
        algorithm("ddpgg", ddpg)
    with pytest.raises(ConfigError, match=r"must be one of flashsac, ddpg"):
        compose(["task=pendulum_swingup", "algo.name=sac_x"])


@pytest.mark.parametrize(
    ("task", "critic_obs"), [("pendulum_swingup", "obs"), ("go2_velocity_flat", "critic")]
)
def test_the_critic_reads_its_own_group_where_the_environment_has_one(task, critic_obs):
    env = unilab.make(task, num_envs=2, seed=0)
    interface = Interface.of(env, torch.device("cpu"))
    assert interface.critic_obs == critic_obs
    assert interface.obs_groups == env.obs_groups_spec
    assert interface.action_spec == env.action_spec
    env.close()
