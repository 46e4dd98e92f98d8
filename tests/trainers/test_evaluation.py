"""Evaluation: the first episode of each environment, without an effect on training."""

from __future__ import annotations

from threading import Lock

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import PendulumEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

import unilab
from unilab.errors import ConfigError
from unilab.modules import FlashSACActor, FlashSACPolicy
from unilab.trainers import Evaluator


def test_the_first_episode_of_each_environment_counts(session):
    run = session()
    run.env.max_episode_length = 6
    run.env.set_seed(5)
    metrics = Evaluator(run.env, run.policy, max_steps=20)()
    run.env.set_seed(5)
    data = run.env.reset()
    total = torch.zeros(4, 1)
    for _ in range(6):
        action = run.actor.explore(data["obs"], deterministic=True)
        step, data = run.env.step_and_maybe_reset(data.set("action", action))
        total += step["next", "reward"]
    assert metrics["Eval/return"] == pytest.approx(total.mean().item(), rel=1e-6)
    assert metrics["Eval/episode_length"] == 6
    assert metrics["Eval/terminated"] == 0
    assert "Eval/Episode_Reward/upright" in metrics


class Recurrent(FlashSACActor):
    """Keeps a trace of its observations, a count, a tensor of a graph and, if asked, a lock."""

    lockable = False

    def explore(self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False):
        if not hasattr(self, "trace"):
            self.trace, self.steps = [torch.zeros_like(obs)], {"n": 0}
            if self.lockable:
                self.lock = Lock()
            self.register_buffer("count", torch.zeros(()), persistent=False)
        if dones is not None and dones.all():
            self.trace[0] = torch.zeros_like(obs)
        elif dones is not None:
            self.trace[0][dones.reshape(-1)] = 0.0
        self.trace[0].add_(obs)
        self.count.add_(1)
        self.steps["n"] += 1
        self.latent = self.mean_head.weight.sum()  # of a graph
        offset = 0.01 * (self.trace[0].sum(-1, keepdim=True) + self.count + self.steps["n"])
        return (super().explore(obs, dones, deterministic) + offset).clamp(-1.0, 1.0)


@pytest.mark.parametrize("kind", [FlashSACActor, Recurrent])
def test_training_acts_after_an_evaluation_as_it_would_have_without(kind):
    obs, told = torch.randn(3, 6, 3), torch.tensor([[True], [False]] * 3)

    def act(evaluations: int) -> Tensor:
        torch.manual_seed(0)
        actor = kind(3, 1, 8)
        policy = FlashSACPolicy(actor)
        env = unilab.make("pendulum_swingup", num_envs=4, seed=0)
        evaluate = Evaluator(env, policy, max_steps=3)
        with torch.enable_grad(), set_exploration_type(ExplorationType.RANDOM):
            actions = []
            for each in obs:
                data = TensorDict({"obs": each, "is_init": told}, [6])
                actions.append(policy(data)["action"])
                scores = {evaluate()["Eval/return"] for _ in range(evaluations)}
                assert len(scores) <= 1  # each begins with a fresh state
        return torch.stack(actions)

    assert torch.equal(act(2), act(0))


@pytest.mark.filterwarnings("always")
def test_state_that_cannot_be_copied_for_an_evaluation_is_warned_of_once(recwarn):
    actor = Recurrent(3, 1, 8)
    actor.lockable = True
    actor.explore(torch.zeros(4, 3))
    env = unilab.make("pendulum_swingup", num_envs=4, seed=0)
    evaluate = Evaluator(env, FlashSACPolicy(actor), max_steps=3)
    for _ in range(2):
        evaluate()
    texts = [str(w.message) for w in recwarn if "cannot be copied" in str(w.message)]
    assert [text.startswith("lock of Recurrent") for text in texts] == [True]


def test_every_evaluation_begins_the_same_episodes():
    env = unilab.make(
        "pendulum_swingup", num_envs=4, seed=0, overrides={"init_at_random_ep_len": True}
    )
    evaluate = Evaluator(env, FlashSACPolicy(FlashSACActor(3, 1, 8)), max_steps=5)
    first = evaluate()
    env.rollout(3)
    assert evaluate() == first


def test_an_evaluation_is_at_the_curriculum_stage_of_training(session):
    run, other = session(), session(seed=1)
    evaluate = Evaluator(other.env, run.policy, max_steps=3, trained=run.env)
    for steps in (70, 140):
        run.env.import_training_state({"version": 1, "control_steps": steps})
        evaluate()
        assert other.env.common_step_counter == steps + 3
        assert run.env.common_step_counter == steps


def test_an_environment_without_episode_length_needs_max_steps(session):
    with pytest.raises(ConfigError, match="max_steps"):
        Evaluator(PendulumEnv(), session().policy)


def test_an_unbatched_environment_can_be_evaluated():
    env = PendulumEnv()
    metrics = Evaluator(env, lambda td: td.set("action", torch.zeros(1)), max_steps=3)()
    assert metrics["Eval/episode_length"] == 3.0
    assert metrics["Eval/return"] < 0.0


def test_episodes_are_whole_if_a_task_starts_its_first_ones_at_random_lengths():
    env = unilab.make(
        "pendulum_swingup", num_envs=8, seed=0, overrides={"init_at_random_ep_len": True}
    )
    policy = FlashSACPolicy(FlashSACActor(3, 1, 8))
    for _ in range(2):
        assert Evaluator(env, policy)()["Eval/episode_length"] == env.max_episode_length
