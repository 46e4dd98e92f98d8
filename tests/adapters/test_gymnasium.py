"""The environment as a Gymnasium vector environment, and one of Gymnasium's under our algorithm."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from envs.tables import go2, twins
from reference.accelerator import DEVICE
from torchrl.envs import InitTracker, TransformedEnv

import unilab
from unilab.errors import CapabilityError, ConfigError, EnvFaultedError

pytest.importorskip("gymnasium", reason="needs Gymnasium: pip install 'unilab-torchrl[gym]'")

import gymnasium
from gymnasium.utils import env_checker
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import (
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TransformObservation,
)

from unilab.adapters import GymnasiumVectorEnv


def short_go2():
    return go2(6, seed=3, episode_length_s=0.2)


def actions(env, steps, seed=0):
    """Random actions, ``[steps, num_envs, width]`` float32."""
    draw = np.random.default_rng(seed)
    return draw.uniform(-1, 1, (steps, *env.action_space.shape)).astype(np.float32)


def test_spaces_are_those_of_the_environment(tmp_path):
    one, both = GymnasiumVectorEnv(twins(tmp_path)), GymnasiumVectorEnv(short_go2())

    assert isinstance(one, gymnasium.vector.VectorEnv)
    assert one.single_observation_space == gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert one.observation_space.shape == (4, 4)
    assert one.single_action_space == gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert one.action_space.shape == (4, 2)
    shapes = {name: space.shape for name, space in both.observation_space.items()}
    assert shapes == {"obs": (6, 45), "critic": (6, 49)}
    assert one.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_a_rollout_is_that_of_the_environment_itself():
    adapter, env = GymnasiumVectorEnv(short_go2()), short_go2()
    env.set_seed(7)
    root = env.reset()
    obs, info = adapter.reset(seed=7)
    assert info == {}
    assert obs in adapter.observation_space
    for action in actions(adapter, 25):
        assert np.array_equal(obs["obs"], root["obs"])
        assert np.array_equal(obs["critic"], root["critic"])
        data, root = env.step_and_maybe_reset(root.set("action", torch.from_numpy(action)))
        obs, reward, terminated, truncated, info = adapter.step(action)

        after = {k: data["next", k][:, 0] for k in ("reward", "terminated", "truncated", "done")}
        assert np.array_equal(reward, after["reward"])
        assert np.array_equal(terminated, after["terminated"])
        assert np.array_equal(truncated, after["truncated"])
        assert (terminated.dtype, truncated.dtype) == (np.bool_, np.bool_)
        assert ("final_obs" in info) == bool(after["done"].any())
        for i in after["done"].nonzero().flatten().tolist():
            for group in ("obs", "critic"):
                assert np.array_equal(info["final_obs"][i][group], data["next", group][i])


def test_only_the_rows_that_ended_have_a_final_observation(tmp_path):
    envs = GymnasiumVectorEnv(twins(tmp_path))
    envs.reset(seed=0)
    envs.env.episode_length[1] = 4
    obs, _, terminated, truncated, info = envs.step(np.zeros((4, 2), np.float32))

    assert truncated.tolist() == info["_final_obs"].tolist() == [False, True, False, False]
    assert not terminated.any()
    assert [row is None for row in info["final_obs"]] == [True, False, True, True]
    assert not np.array_equal(info["final_obs"][1], obs[1])
    assert info["final_info"] == {}
    assert info["_final_info"].tolist() == [False, True, False, False]
    assert envs.step(np.zeros((4, 2), np.float32))[-1] == {}


def test_a_mask_resets_some_environments(tmp_path):
    envs = GymnasiumVectorEnv(twins(tmp_path))
    envs.reset(seed=0)
    before, *_ = envs.step(np.ones((4, 2), np.float32))
    mask = np.array([False, True, False, True])
    obs, _ = envs.reset(options={"reset_mask": mask})

    assert [np.array_equal(a, b) for a, b in zip(obs, before, strict=True)] == (~mask).tolist()
    assert envs.env.episode_length.tolist() == [1, 0, 1, 0]


def test_close_ends_the_environment(tmp_path):
    env = twins(tmp_path)
    with_gym = GymnasiumVectorEnv(env)
    with_gym.close()
    with_gym.close()
    assert with_gym.closed
    with pytest.raises(EnvFaultedError, match="closed"):
        env.reset()


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "unilab.adapters.gymnasium")
    with pytest.raises(CapabilityError, match=r"gymnasium.*unilab-torchrl\[gym\]"):
        _ = unilab.adapters.GymnasiumVectorEnv


def test_gymnasiums_checks_for_vector_envs_pass(tmp_path):
    for check in (env_checker.check_reset_seed_determinism, env_checker.check_reset_return_type):
        check(GymnasiumVectorEnv(twins(tmp_path)))


def test_tensors_stay_tensors_and_final_observations_one_batch():
    arrays, tensors = GymnasiumVectorEnv(short_go2()), GymnasiumVectorEnv(short_go2(), tensors=True)
    for envs in (arrays, tensors):
        envs.reset(seed=1)
        envs.env.episode_length[2] = 9
    action = actions(arrays, 1)[0]
    *wanted, ended = arrays.step(action)
    *got, ended_tensors = tensors.step(torch.from_numpy(action))
    assert all(isinstance(value, torch.Tensor) for value in (got[0]["obs"], *got[1:]))
    assert np.array_equal(wanted[0]["critic"], got[0]["critic"])
    for a, b in zip(wanted[1:], got[1:], strict=True):
        assert np.array_equal(a, b)
    assert ended_tensors["_final_obs"].tolist() == [False, False, True, False, False, False]
    assert np.array_equal(ended_tensors["final_obs"]["obs"][2], ended["final_obs"][2]["obs"])


def test_gymnasiums_wrappers_work(tmp_path):
    envs = RecordEpisodeStatistics(GymnasiumVectorEnv(twins(tmp_path)))
    envs.reset(seed=0)
    paid = np.zeros(4)
    for _ in range(5):
        _, reward, *_, info = envs.step(np.zeros((4, 2), np.float32))
        paid += reward
    assert info["episode"]["l"].tolist() == [5] * 4
    np.testing.assert_allclose(info["episode"]["r"], paid, rtol=1e-5)


NEXT_STEP = AutoresetMode.NEXT_STEP


def test_next_step_mode_shows_each_episode_whole_and_begins_the_next_a_step_later(tmp_path):
    """Each row alone: an episode's steps, whatever the others do, then a step that ignores NaN."""
    same = GymnasiumVectorEnv(twins(tmp_path, events={}))
    later = GymnasiumVectorEnv(twins(tmp_path, events={}), autoreset_mode=NEXT_STEP)
    first, _ = same.reset(seed=0)
    draw = np.random.default_rng(0)
    pushes = draw.uniform(-1, 1, (5, 2)).astype(np.float32)  # by step of the episode
    episode = []
    for push in pushes:
        obs, reward, *_, info = same.step(np.tile(push, (4, 1)))
        episode.append((info["final_obs"][0] if info else obs[0], reward[0]))

    assert np.array_equal(later.reset(seed=0)[0], first)
    at = later.env.episode_length.copy_(torch.tensor([0, 0, 2, 4])).tolist()  # shorter, once
    whole = [True, True, False, False]
    for _ in range(20):
        action = np.stack([pushes[i] if i < 5 else [np.nan, 0.0] for i in at], dtype=np.float32)
        obs, reward, terminated, truncated, info = later.step(action)
        assert info == {}
        assert not terminated.any()
        for row, i in enumerate(at):
            over = i == 5
            at[row], whole[row] = (0, True) if over else (i + 1, whole[row])
            wanted = (first[0], 0.0) if over else episode[i]
            assert truncated[row] == (not over and i == 4)
            assert reward[row] == wanted[1] or not whole[row]
            assert np.array_equal(obs[row], wanted[0]) or not whole[row]


def test_gymnasiums_wrappers_accept_next_step_mode(tmp_path):
    envs = GymnasiumVectorEnv(twins(tmp_path), autoreset_mode=NEXT_STEP)
    envs = NormalizeReward(NormalizeObservation(RecordEpisodeStatistics(envs)))
    envs = TransformObservation(envs, lambda obs: 2.0 * obs)
    envs.reset(seed=0)
    ends = 0
    for action in actions(envs, 13):
        obs, _, _, truncated, info = envs.step(action)
        assert obs in envs.observation_space
        ends += int(truncated.sum())
        if truncated.any():
            assert info["episode"]["l"].tolist() == [5] * 4
    assert ends == 8


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, NEXT_STEP])
def test_environments_on_an_accelerator_give_the_arrays_of_the_cpu(accelerator, mode):
    rollouts = []
    for device in ("cpu", DEVICE):
        short = {"episode_length_s": 0.1, "num_threads": 1}
        env = unilab.make("cartpole_swingup", num_envs=4, seed=0, device=device, overrides=short)
        envs = GymnasiumVectorEnv(env, autoreset_mode=mode)
        shown = [envs.reset(seed=0)[0]]
        for action in actions(envs, 12):
            *step, info = envs.step(action)
            shown += [*step, *info.get("final_obs", [])]
        shown.append(envs.reset(options={"reset_mask": np.array([True, False, True, False])})[0])
        rollouts.append(shown)
    for on_cpu, on_device in zip(*rollouts, strict=True):
        assert np.array_equal(on_cpu, on_device)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda e: e.reset(seed=[0, 1, 2, 3]), "seed"),
        (lambda e: e.step(np.zeros((4, 2))), "reset"),
        (lambda e: (e.reset(), e.step(np.zeros((4, 3)))), "action"),
        (lambda e: GymnasiumVectorEnv(e.env, autoreset_mode="next"), "autoreset_mode"),
        (lambda e: GymnasiumVectorEnv(TransformedEnv(e.env, InitTracker())), "TransformedEnv"),
    ],
)
def test_bad_argument_is_refused(tmp_path, call, name):
    with pytest.raises(ConfigError, match=name):
        call(GymnasiumVectorEnv(twins(tmp_path)))
