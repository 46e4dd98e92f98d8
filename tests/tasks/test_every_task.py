"""What holds for every packaged task."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from torchrl.envs import check_env_specs

import unilab
from unilab.tasks import TASKS

WIDTHS = {
    # obs, critic, action, whether critic is a group of its own
    "cartpole_swingup": (5, 5, 1, False),
    "g1_velocity_flat": (96, 102, 29, True),
    "go2_velocity_flat": (45, 49, 12, True),
    "pendulum_swingup": (3, 3, 1, False),
}
SECONDS = {
    "cartpole_swingup": 10.0,
    "g1_velocity_flat": 20.0,
    "go2_velocity_flat": 20.0,
    "pendulum_swingup": 10.0,
}

# The suite runs in several processes; batches this small gain nothing from threads.
ONE_THREAD = {"num_threads": 1}

every_task = pytest.mark.parametrize("task", sorted(TASKS))


@every_task
def test_widths_are_the_documented_ones(task: str) -> None:
    assert astuple(unilab.registry.dims(task)) == WIDTHS[task]


@every_task
def test_passes_torchrls_spec_check(task: str) -> None:
    env = unilab.make(task, num_envs=2, seed=0, overrides=ONE_THREAD)
    check_env_specs(env)
    env.close()


@every_task
def test_random_actions_give_finite_data_of_those_widths(task: str) -> None:
    env = unilab.make(task, num_envs=8, seed=0, overrides=ONE_THREAD)
    data = env.rollout(30, break_when_any_done=False)
    env.close()
    obs, critic, action, has_critic = WIDTHS[task]

    assert data["obs"].shape == (8, 30, obs)
    assert ("critic" in data) == has_critic
    assert not has_critic or data["critic"].shape == (8, 30, critic)
    assert data["action"].shape == (8, 30, action)
    assert all(bool(v.isfinite().all()) for v in data.values(True, True) if v.is_floating_point())


@every_task
def test_control_runs_at_50_hz_and_episodes_last_as_documented(task: str) -> None:
    env = unilab.make(task, num_envs=1, seed=0, overrides=ONE_THREAD)
    env.close()

    assert env.step_dt == pytest.approx(0.02)
    assert env.max_episode_length == round(SECONDS[task] * 50)


@every_task
def test_the_time_limit_truncates_and_does_not_terminate(task: str) -> None:
    env = unilab.make(task, num_envs=8, seed=0, overrides={**ONE_THREAD, "episode_length_s": 0.1})
    still = env.full_action_spec["action"].zero()
    data = env.rollout(5, lambda td: td.set("action", still), break_when_any_done=False)
    env.close()

    assert data["next", "truncated"][:, :, 0].int().tolist() == [[0, 0, 0, 0, 1]] * 8
    assert not data["next", "terminated"].any()


@every_task
def test_rewards_differ_between_random_rollouts_and_are_no_constant(task: str) -> None:
    env = unilab.make(task, num_envs=8, seed=0, overrides=ONE_THREAD)
    reward = env.rollout(30, break_when_any_done=False)["next", "reward"]
    env.close()

    assert reward.std(0).min() > 0
    assert reward.std(1).min() > 0


@every_task
def test_its_first_docstring_line_says_what_it_is(task: str) -> None:
    line = unilab.registry.describe(task)

    assert line.endswith(")."), line
    assert f"{SECONDS[task]:g} s episodes" in line
