"""Gymnasium's MuJoCo tasks against Gymnasium itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unilab
from unilab import registry
from unilab.conf.flashsac import FlashSACAlgoCfg, FlashSACParamsCfg
from unilab.examples.train_flashsac import make_learner
from unilab.tasks import SUITE_TASKS
from unilab.tasks.suites.env import SuiteEnv

gymnasium = pytest.importorskip(
    "gymnasium", reason="needs Gymnasium: pip install 'unilab-torchrl[gym]'"
)

TASKS = [name for name in SUITE_TASKS if name.startswith("gym/")]
FALLING = [name for name in TASKS if "HalfCheetah" not in name]
# Observations and rewards are float32 here and float64 there.
CLOSE = {"rtol": 1e-6, "atol": 1e-6}

every_task = pytest.mark.parametrize("task", TASKS)


def make(task: str, num_envs: int = 2, **overrides: object) -> SuiteEnv:
    env = unilab.make(task, num_envs=num_envs, seed=0, overrides={"num_threads": 1, **overrides})
    assert isinstance(env, SuiteEnv)
    return env


def reference(task: str, **changes: object):
    name = task.removeprefix("gym/")
    there = gymnasium.make(name, disable_env_checker=True, **changes).unwrapped
    if name.endswith("-v4"):
        there.model.geom_margin[:] /= 2.0  # contacts of MuJoCo 3.3.3; see test_gym_v4.py
    return there


@pytest.mark.parametrize("builder", [None, "reference.actors:PlainActor"])
def test_training_aims_at_the_entropy_of_sigma_in_the_range_of_the_task(builder):
    params = FlashSACParamsCfg(
        actor_hidden_dim=8,
        critic_hidden_dim=8,
        compile=False,
        actor_config=builder and {"builder": builder, "kwargs": {"low": -0.4, "high": 0.4}},
    )
    env = make("gym/Humanoid-v5")
    learner = make_learner(FlashSACAlgoCfg(algo_params=params), env, "obs", torch.device("cpu"))
    assert learner.loss.target_entropy == pytest.approx(-23.7, abs=0.05)


def state(env: SuiteEnv, row: int) -> tuple[np.ndarray, np.ndarray]:
    return env.data["qpos"][row].numpy(), env.data["qvel"][row].numpy()


def follow(task: str, steps: int, **changes: object) -> int:
    """Step both with the same random actions and compare; returns how many episodes ended.

    Where an episode ends here, Gymnasium's environment begins one in the same state.
    """
    env, references = make(task, **changes), [reference(task, **changes) for _ in range(2)]
    rng = np.random.default_rng(0)
    space = references[0].action_space
    root, ended = env.reset(), 0
    for row, other in enumerate(references):
        other.reset(seed=0)
        other.set_state(*state(env, row))
    for _ in range(steps):
        action = rng.uniform(space.low, space.high, (len(references), *space.shape))
        action = action.astype(np.float32)
        expected = [ref.step(a)[:3] for ref, a in zip(references, action, strict=True)]
        after = env.step(root.set("action", torch.from_numpy(action)))["next"]
        for row, (obs, reward, terminated) in enumerate(expected):
            assert np.array_equal(references[row].data.qpos, state(env, row)[0])
            assert np.array_equal(references[row].data.qvel, state(env, row)[1])
            np.testing.assert_allclose(after["obs"][row].numpy(), obs, **CLOSE)
            np.testing.assert_allclose(after["reward"][row].item(), reward, **CLOSE)
            assert after["terminated"][row].item() == terminated
        root = env.maybe_reset(after.exclude("reward"))
        for row in after["done"].flatten().nonzero().flatten().tolist():
            ended += 1
            references[row].reset()
            references[row].set_state(*state(env, row))
            np.testing.assert_allclose(
                root["obs"][row].numpy(), references[row]._get_obs(), **CLOSE
            )
    env.close()
    return ended


@every_task
def test_random_actions_give_what_gymnasium_gives(task: str) -> None:
    assert follow(task, 200 if task == "gym/Ant-v4" else 100) >= (1 if task in FALLING else 0)


@pytest.mark.slow
@every_task
def test_they_do_so_through_many_episodes(task: str) -> None:
    assert follow(task, 1000) >= (5 if task in FALLING else 2)


@pytest.mark.slow
@pytest.mark.parametrize("task", FALLING)
def test_robots_on_the_ground_give_what_gymnasium_gives(task: str) -> None:
    ended = follow(task, 1000, terminate_when_unhealthy=False)
    assert ended == 2, "episodes end by the time limit only"


@every_task
def test_settings_mean_what_they_mean_to_gymnasium(task: str) -> None:
    changes = {"forward_reward_weight": 2.5, "ctrl_cost_weight": 0.7, "reset_noise_scale": 0.02}
    if task in FALLING:
        changes |= {"healthy_reward": 0.3, "healthy_z_range": (0.9, 1.3)}
    if task == "gym/Ant-v4":
        del changes["forward_reward_weight"]  # Gymnasium has none
    if task in ("gym/Ant-v5", "gym/Humanoid-v5"):
        changes |= {"contact_cost_weight": 1e-5}
    if task == "gym/Ant-v5":
        changes |= {"healthy_z_range": (0.3, 0.9), "contact_force_range": (-5.0, 3.0)}
    if task == "gym/Humanoid-v5":
        changes |= {"contact_cost_range": (0.1, 2.0)}
    follow(task, 100, **changes)


@every_task
def test_interface_and_initial_states_are_gymnasiums(task: str) -> None:
    env, there = make(task, num_envs=4096), reference(task)
    env.reset()
    scale = there._reset_noise_scale
    qpos = (env.data["qpos"] - torch.from_numpy(there.init_qpos)) / scale
    qvel = (env.data["qvel"] - torch.from_numpy(there.init_qvel)) / scale
    env.close()

    assert registry.dims(task).obs == there.observation_space.shape[0]
    assert np.array_equal(env.action_spec.space.low[0].numpy(), there.action_space.low)
    assert np.array_equal(env.action_spec.space.high[0].numpy(), there.action_space.high)
    assert env.step_dt == pytest.approx(there.dt)
    assert env.max_episode_length == gymnasium.spec(there.spec.id).max_episode_steps
    _assert_fills_unit_range(qpos)
    if "HalfCheetah" in task or "Ant" in task:
        assert (qvel.std(0) - 1.0).abs().max() < 0.06, "a normal distribution"
        assert qvel.mean(0).abs().max() < 0.08
        assert qvel.abs().max() > 3.0
    else:
        _assert_fills_unit_range(qvel)


def _assert_fills_unit_range(noise: torch.Tensor) -> None:
    assert noise.abs().max() <= 1.0
    assert (noise.amax(0) > 0.99).all()
    assert (noise.amin(0) < -0.99).all()
