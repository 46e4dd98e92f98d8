"""Tasks by name: built here, built in another process, changed by overrides (0001-C7, C8)."""

import multiprocessing
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torchrl.envs import SerialEnv

import unilab
from unilab import registry
from unilab.collectors import PipelinedCollector
from unilab.envs import ManagerBasedRlEnvCfg, RewardTermCfg, SceneEntityCfg, TorchEnv
from unilab.errors import ConfigError
from unilab.tasks.classic.pendulum_swingup import pendulum_swingup

ONE_THREAD = {"num_threads": 1}


def rollout(make_env: registry.EnvFactory) -> np.ndarray:
    """Observations of a few steps under fixed actions."""
    env = make_env()
    data = env.rollout(4, lambda td: td.set("action", torch.full(env.action_spec.shape, 0.2)))
    env.close()
    return data["next", "obs"].numpy()


def short_pendulum() -> ManagerBasedRlEnvCfg:
    """A pendulum with the test's own name.

    Not part of the first line.
    """
    return replace(pendulum_swingup(), episode_length_s=2.0)


def test_c7_make_builds_the_task_with_its_arguments():
    env = unilab.make("pendulum_swingup", num_envs=3, seed=7, overrides={"num_threads": 2})
    assert isinstance(env, TorchEnv)
    assert env.batch_size == (3,)
    assert env.device == torch.device("cpu")
    assert env.generator.initial_seed() == 7
    assert env.backend.num_threads == 2


def test_packaged_tasks_are_listed_and_described():
    assert {"go2_velocity_flat", "gym/Ant-v5", "dmc/walker-walk"} <= set(registry.names())
    for name in registry.names():
        assert registry.describe(name).endswith(")."), name


def test_c7_unknown_task_names_the_nearest():
    for call in (registry.make, registry.dims, registry.describe):
        with pytest.raises(ConfigError, match="did you mean 'go2_velocity_flat'"):
            call("go2_velocity_flt")


def test_dims_are_those_of_the_environment():
    dims = registry.dims("pendulum_swingup")
    assert dims == registry.Dims(obs=3, critic=3, action=1, has_critic=False)
    assert registry.dims("go2_velocity_flat").has_critic


@pytest.mark.slow
def test_c8_factory_builds_the_same_environment_in_a_spawned_process():
    make_env = registry.factory("go2_velocity_flat", num_envs=2, seed=3, overrides=ONE_THREAD)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(rollout, (make_env,))
    assert (there == rollout(make_env)).all()


def test_config_with_a_lambda_is_sent_to_the_collectors_process():
    term = RewardTermCfg(func=lambda env: torch.ones(env.num_envs), weight=2.0)
    overrides = {"rewards.upright": term, **ONE_THREAD}
    make_env = registry.factory("pendulum_swingup", num_envs=2, overrides=overrides)
    (data,) = PipelinedCollector(make_env, frames_per_batch=2, total_frames=2)
    assert data["next", "reward"].flatten().tolist() == pytest.approx([2.0 * 0.02] * 2)


@pytest.mark.parametrize("task", registry.names())
def test_c8_factory_of_every_task_pickles(task):
    make_env = registry.factory(task, num_envs=1)
    assert pickle.loads(pickle.dumps(make_env)) == make_env


def test_registered_task_is_listed_described_and_built_once(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register("short_pendulum", short_pendulum)
    assert "short_pendulum" in registry.names()
    assert registry.describe("short_pendulum") == "A pendulum with the test's own name."
    assert unilab.make("short_pendulum", num_envs=2).max_episode_length == 100
    with pytest.raises(ConfigError, match="short_pendulum"):
        registry.register("short_pendulum", short_pendulum)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((None, short_pendulum), "name"),
        (("", short_pendulum), "name"),
        (("../x", short_pendulum), "name"),
        (("a b", short_pendulum), "name"),
        (("y=1", short_pendulum), "name"),
        (("w", lambda wanted: short_pendulum()), "cfg_factory"),
        (("short_pendulum", short_pendulum()), "cfg_factory"),
    ],
)
def test_task_that_nobody_could_build_is_not_registered(monkeypatch, arguments, named):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    with pytest.raises(ConfigError, match=named):
        registry.register(*arguments)


@pytest.mark.parametrize("returned", [5, ManagerBasedRlEnvCfg])
def test_function_that_returns_no_config_is_refused(monkeypatch, returned):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register("w", lambda: returned)
    with pytest.raises(ConfigError, match="'w'"):
        unilab.make("w")


def test_torchrl_batches_take_several_factories():
    first, second = (
        registry.factory("pendulum_swingup", num_envs=2, seed=seed, overrides=ONE_THREAD)
        for seed in (0, 1)
    )
    env = SerialEnv(2, [first, second])
    obs = env.reset()["obs"]
    env.close()
    assert torch.equal(obs[0], first().reset()["obs"])
    assert torch.equal(obs[1], second().reset()["obs"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("commands.base_velocity.ranges.lin_vel_x", [0, 1]),
        ("actions.joint_pos.scale", {".*hip.*": 0.2, ".*(thigh|calf).*": 0.5}),
        ("observations.obs.terms.joint_vel.scale", [0.1] * 12),
        ("rewards.pose.params.asset_cfg", SceneEntityCfg("robot", joint_names="FL.*")),
        ("rewards.action_rate", None),
        ("scene.keyframe", None),
    ],
)
def test_environment_runs_with_an_override(path, value):
    env = unilab.make("go2_velocity_flat", overrides={path: value, **ONE_THREAD})
    env.rollout(2)
    env.close()
