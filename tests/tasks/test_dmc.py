"""Tasks of the DeepMind Control Suite against dm_control itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

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

Pair = tuple[SuiteEnv, list[Any]]


def make(task: str, num_envs: int) -> SuiteEnv:
    env = unilab.make(task, num_envs=num_envs, seed=0, overrides={"num_threads": 1})
    assert isinstance(env, SuiteEnv)
    return env


@pytest.fixture(scope="module", params=TASKS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two environments of a task, and dm_control's to compare them with."""
    env = make(request.param, 2)
    yield env, [control_suite.load(request.param) for _ in range(2)]
    env.close()


def actions(reference: Any, steps: int) -> np.ndarray:
    spec, draw = reference.action_spec(), np.random.default_rng(0)
    return draw.uniform(spec.minimum, spec.maximum, (steps, 2, *spec.shape)).astype(np.float32)


def begin(pair: Pair) -> np.ndarray:
    """Put dm_control's environments into the state of ours; returns their observations."""
    states = pair[0].backend.get_replay_state().numpy()
    return np.stack([control_suite.begin(*both) for both in zip(pair[1], states, strict=True)])


def follow(pair: Pair, steps: int) -> None:
    env, references = pair
    root = env.reset()
    np.testing.assert_allclose(root["obs"].numpy(), begin(pair), **CLOSE)
    for step in actions(references[0], steps):
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


def test_random_actions_give_what_dm_control_gives(pair: Pair) -> None:
    follow(pair, 40)


@pytest.mark.slow
@pytest.mark.parametrize("pair", DOMAINS, indirect=True)
def test_they_do_so_through_an_episode(pair: Pair) -> None:
    follow(pair, 999)


def test_rewards_are_dm_controls_wherever_a_robot_is_and_however_fast(pair: Pair) -> None:
    env, references = pair
    draw = torch.Generator().manual_seed(0)
    here, there = [], []
    for step, fast in zip(actions(references[0], 20), torch.linspace(0.0, 1.0, 20), strict=True):
        root = env.reset()
        # Fast ones and slow ones, most of them forward.
        qpos, qvel = env.data["qpos"].clone(), env.data["qvel"]
        qvel = 2.0 * fast * torch.randn(qvel.shape, dtype=torch.float64, generator=draw)
        if qvel.shape[1] > 2:
            qvel[:, 0] += 12.0 * fast
        elif qpos.shape[1] == 2:
            qpos[:, 1] = 2.0 * torch.pi * fast
        env.backend.set_state_tensor(torch.arange(2), qpos, qvel)
        begin(pair)
        after = env.step(root.set("action", torch.from_numpy(step)))["next"]
        here += after["reward"][:, 0].tolist()
        there += [r.step(a.astype(float)).reward for r, a in zip(references, step, strict=True)]

    np.testing.assert_allclose(here, there, **CLOSE)
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


def test_the_interface_is_dm_controls(pair: Pair) -> None:
    env, (there, _) = pair
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
