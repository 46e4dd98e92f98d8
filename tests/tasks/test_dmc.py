"""Tasks of the DeepMind Control Suite against dm_control itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unilab
from unilab.tasks import SUITE_TASKS
from unilab.tasks.suites.dmc.tolerance import tolerance
from unilab.tasks.suites.env import SuiteEnv

pytest.importorskip("dm_control", reason="needs dm_control: pip install 'unilab-torchrl[dmc]'")

from dm_control.utils import rewards
from reference import control_suite
from scipy import stats

TASKS = [name for name in SUITE_TASKS if name.startswith("dmc/")]
# The first task of each domain; the others differ in their rewards only.
DOMAINS = list({name.partition("-")[0]: name for name in reversed(TASKS)}.values())
# Observations and rewards are float32 here and float64 there.
CLOSE = {"rtol": 1e-6, "atol": 1e-6}

every_task = pytest.mark.parametrize("task", TASKS)


def make(task: str, num_envs: int = 2, **overrides: object) -> SuiteEnv:
    env = unilab.make(task, num_envs=num_envs, seed=0, overrides={"num_threads": 1, **overrides})
    assert isinstance(env, SuiteEnv)
    return env


def actions(reference, steps: int, rows: int) -> np.ndarray:
    spec, draw = reference.action_spec(), np.random.default_rng(0)
    return draw.uniform(spec.minimum, spec.maximum, (steps, rows, *spec.shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("task", "steps"),
    [(task, 40) for task in TASKS]
    + [pytest.param(task, 999, marks=pytest.mark.slow) for task in DOMAINS],
)
def test_random_actions_give_what_dm_control_gives(task: str, steps: int) -> None:
    env, references = make(task), [control_suite.load(task) for _ in range(2)]
    root = env.reset()
    for row, reference in enumerate(references):
        first = control_suite.begin(reference, env.backend.get_replay_state()[row].numpy())
        np.testing.assert_allclose(root["obs"][row].numpy(), first, **CLOSE)
    for step in actions(references[0], steps, 2):
        after = env.step(root.set("action", torch.from_numpy(step)))["next"]
        for row, reference in enumerate(references):
            expected = reference.step(step[row].astype(float))
            data = reference.physics.data
            assert np.array_equal(env.data["qpos"][row].numpy(), data.qpos)
            assert np.array_equal(env.data["qvel"][row].numpy(), data.qvel)
            obs = control_suite.flat(expected.observation)
            np.testing.assert_allclose(after["obs"][row].numpy(), obs, **CLOSE)
            np.testing.assert_allclose(after["reward"][row].item(), expected.reward, **CLOSE)
            assert not after["done"][row]
            assert not expected.last()
    env.close()


@every_task
def test_rewards_are_dm_controls_wherever_a_robot_is_and_however_fast(task: str) -> None:
    rows = 40
    env, reference = make(task, rows), control_suite.load(task)
    root = env.reset()
    draw = torch.Generator().manual_seed(0)
    qvel = torch.randn(env.data["qvel"].shape, dtype=torch.float64, generator=draw)
    # Fast ones and slow ones, most of them forward.
    qvel *= torch.linspace(0.0, 2.0, rows).unsqueeze(1)
    qvel[:, 0] += torch.linspace(0.0, 12.0, rows) * (env.data["qvel"].shape[1] > 2)
    qpos = env.data["qpos"].clone()
    if "cartpole" in task:
        qpos[:, 1] = torch.linspace(0.0, 2.0 * torch.pi, rows)
    env.backend.set_state_tensor(torch.arange(rows), qpos, qvel)
    states = env.backend.get_replay_state().clone().numpy()
    (action,) = actions(reference, 1, rows)
    reward = env.step(root.set("action", torch.from_numpy(action)))["next", "reward"]
    env.close()
    there = []
    for state, act in zip(states, action, strict=True):
        control_suite.begin(reference, state)
        there.append(reference.step(act.astype(float)).reward)

    np.testing.assert_allclose(reward[:, 0].numpy(), there, **CLOSE)
    assert np.std(there) > 0.01, "states tell rewards apart"


@pytest.mark.slow
@pytest.mark.parametrize("task", DOMAINS)
def test_episodes_begin_like_dm_controls(task: str) -> None:
    env, reference = make(task, num_envs=400), control_suite.load(task)
    ours = env.reset()["obs"].double().numpy()
    theirs = np.stack([control_suite.flat(reference.reset().observation) for _ in range(150)])
    env.close()

    # Equal columns differ by their rounding; a hundred columns would each be odd now and then.
    pairs = zip(ours.T.round(4), theirs.T.round(4), strict=True)
    odds = [stats.ks_2samp(here, there).pvalue for here, there in pairs]
    assert min(odds) > 1e-3 / len(odds)


@every_task
def test_the_interface_is_dm_controls(task: str) -> None:
    env, there = make(task, num_envs=1), control_suite.load(task)
    env.close()
    spec = there.action_spec()

    assert np.array_equal(env.action_spec.space.low[0].numpy(), spec.minimum.astype(np.float32))
    assert np.array_equal(env.action_spec.space.high[0].numpy(), spec.maximum.astype(np.float32))
    assert env.step_dt == pytest.approx(there.control_timestep())
    assert env.max_episode_length == there._step_limit == 1000


@pytest.mark.parametrize("task", ["dmc/humanoid-run", "dmc/quadruped-run"])
def test_no_episode_begins_within_something(task: str) -> None:
    env = make(task, num_envs=50)
    env.reset()
    assert not env._touching(env.data["qpos"]).any()
    env.close()


def test_a_speed_can_be_set() -> None:
    def rewards_at(**overrides: float) -> torch.Tensor:
        env = make("dmc/walker-walk", **overrides)
        torch.manual_seed(0)
        reward = env.rollout(20)["next", "reward"]
        env.close()
        return reward

    assert not torch.equal(rewards_at(move_speed=0.1), rewards_at())


@given(
    x=st.lists(st.floats(-30.0, 30.0), min_size=1, max_size=8),
    bounds=st.sampled_from([(0.0, 0.0), (-1.0, 2.0), (1.2, math.inf)]),
    margin=st.sampled_from([0.0, 0.6, 5.0]),
    sigmoid=st.sampled_from(["gaussian", "linear", "quadratic"]),
    value=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
)
def test_tolerance_is_dm_controls(x, bounds, margin, sigmoid, value) -> None:
    value = value or (0.1 if sigmoid == "gaussian" else 0.0)
    arguments = {"margin": margin, "sigmoid": sigmoid, "value_at_margin": value}
    here = tolerance(torch.tensor(x, dtype=torch.float64), bounds, **arguments)
    there = rewards.tolerance(np.array(x), bounds, **arguments)
    np.testing.assert_allclose(here.numpy(), there, rtol=1e-12, atol=1e-15)
