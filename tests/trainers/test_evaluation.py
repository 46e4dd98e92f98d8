"""Evaluation: the first episode of each environment, without an effect on training."""

from __future__ import annotations

import pytest
import torch
from torchrl.envs import PendulumEnv

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


def test_evaluation_does_not_change_random_generator_and_exploration(session):
    run = session()
    evaluate = Evaluator(session(seed=1).env, run.policy, max_steps=5)
    run.actor.explore(torch.zeros(4, 3))
    noise, rng = run.actor._noise.clone(), torch.get_rng_state()
    evaluate()
    assert torch.equal(run.actor._noise, noise)
    assert torch.equal(torch.get_rng_state(), rng)


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
