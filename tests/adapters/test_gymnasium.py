"""The environment as a Gymnasium vector environment, and one of Gymnasium's under our algorithm."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from envs.tables import ON_TWINS, act, drive, go2, twins
from torchrl.data import Bounded
from torchrl.envs import InitTracker, TransformedEnv

import unilab
from unilab.envs import EventTermCfg, TerminationTermCfg, mdp
from unilab.errors import CapabilityError, ConfigError, EnvFaultedError, NonFiniteError

pytest.importorskip("gymnasium", reason="needs Gymnasium: pip install 'unilab-torchrl[gym]'")

import gymnasium
from gymnasium.utils import env_checker
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torchrl.envs import GymWrapper

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
    assert {k: v.shape for k, v in both.observation_space.items()} == {
        "obs": (6, 45),
        "critic": (6, 49),
    }
    assert one.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_the_action_space_has_the_environments_bounds():
    cheetahs = GymnasiumVectorEnv(unilab.make("gym/HalfCheetah-v5", num_envs=2))
    cheetahs.env.action_spec = Bounded(-0.5, 2.0, (2, 6))

    assert cheetahs.single_action_space == gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
    again = GymnasiumVectorEnv(cheetahs.env)
    assert again.single_action_space == gymnasium.spaces.Box(-0.5, 2.0, (6,), np.float32)


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


def test_tensors_stay_tensors_and_final_observations_one_batch():
    arrays, tensors = GymnasiumVectorEnv(short_go2()), GymnasiumVectorEnv(short_go2(), tensors=True)
    obs, _ = tensors.reset(seed=1)
    arrays.reset(seed=1)
    assert isinstance(obs["obs"], torch.Tensor)
    for action in actions(arrays, 12):
        *wanted, _ = arrays.step(action)
        *got, _ = tensors.step(torch.from_numpy(action))
        for a, b in zip(wanted[1:], got[1:], strict=True):
            assert np.array_equal(a, b)
        assert np.array_equal(wanted[0]["critic"], got[0]["critic"])
    for envs in (arrays, tensors):
        envs.env.episode_length[2] = 9
    last = actions(arrays, 1)[0]
    *_, wanted = arrays.step(last)
    *_, got = tensors.step(torch.from_numpy(last))
    assert got["_final_obs"].tolist() == [False, False, True, False, False, False]
    assert np.array_equal(got["final_obs"]["obs"][2], wanted["final_obs"][2]["obs"])


def test_a_mask_resets_some_environments(tmp_path):
    envs = GymnasiumVectorEnv(twins(tmp_path))
    envs.reset(seed=0)
    before, *_ = envs.step(np.ones((4, 2), np.float32))
    mask = np.array([False, True, False, True])
    obs, _ = envs.reset(options={"reset_mask": mask})

    assert [np.array_equal(a, b) for a, b in zip(obs, before, strict=True)] == (~mask).tolist()
    assert envs.env.episode_length.tolist() == [1, 0, 1, 0]


def test_a_numpy_seed_is_the_same_seed(tmp_path):
    envs = GymnasiumVectorEnv(twins(tmp_path))
    obs, _ = envs.reset(seed=np.int64(7))
    again, _ = envs.reset(seed=7)
    assert np.array_equal(obs, again)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda e: e.reset(seed=[0, 1, 2, 3]), "seed"),
        (lambda e: e.reset(options={"where": 1}), "options"),
        (lambda e: e.step(np.zeros((4, 2))), "reset"),
        (lambda e: e.reset(options={"reset_mask": np.ones(4, bool)}), "reset"),
        (lambda e: (e.reset(), e.reset(options={"reset_mask": np.ones(4)})), "_reset"),
        (lambda e: (e.reset(), e.step(np.zeros((4, 3)))), "actions"),
    ],
)
def test_bad_argument_is_refused(tmp_path, call, name):
    with pytest.raises(ConfigError, match=name):
        call(GymnasiumVectorEnv(twins(tmp_path)))


def test_a_step_whose_resets_failed_needs_a_reset(tmp_path):
    def refuse(env, env_ids):
        if env.common_step_counter == 5:
            raise RuntimeError("no place to begin")

    events = {"refuse": EventTermCfg(func=refuse, mode="reset")}
    envs = GymnasiumVectorEnv(twins(tmp_path, events=events))
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.zeros((4, 2), np.float32))
    with pytest.raises(NonFiniteError):
        envs.step(np.full((4, 2), np.nan, np.float32))  # which moved nothing
    with pytest.raises(RuntimeError, match="no place to begin"):
        envs.step(np.zeros((4, 2), np.float32))
    with pytest.raises(ConfigError, match="reset"):
        envs.step(np.zeros((4, 2), np.float32))
    envs.env.import_training_state({"version": 1, "control_steps": 0})
    envs.reset()
    envs.step(np.zeros((4, 2), np.float32))


def test_another_environment_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="TransformedEnv"):
        GymnasiumVectorEnv(TransformedEnv(twins(tmp_path), InitTracker()))


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


@pytest.mark.parametrize(
    "check",
    [
        env_checker.check_reset_seed_determinism,
        env_checker.check_reset_return_type,
    ],
)
def test_gymnasiums_checks_for_vector_envs_pass(tmp_path, check):
    check(GymnasiumVectorEnv(twins(tmp_path)))


def test_gymnasiums_wrappers_work(tmp_path):
    envs = RecordEpisodeStatistics(GymnasiumVectorEnv(twins(tmp_path)))
    envs.reset(seed=0)
    paid = 0.0
    for _ in range(5):
        *_, info = envs.step(np.zeros((4, 2), np.float32))
    assert info["episode"]["l"].tolist() == [5] * 4
    paid = info["episode"]["r"]
    env = twins(tmp_path)
    env.set_seed(0)
    root, expected = env.reset(), torch.zeros(4)
    for _ in range(5):
        data, root = env.step_and_maybe_reset(act(env, root))
        expected += data["next", "reward"][:, 0]
    np.testing.assert_allclose(paid, expected, rtol=1e-5)


def test_through_gymnasium_and_torchrl_an_environment_stays_the_same(tmp_path):
    limits = {
        "too_far": TerminationTermCfg(
            func=mdp.joint_pos_out_of_limit, params={"limit": 0.22, **ON_TWINS}
        )
    }
    wrapped = GymWrapper(GymnasiumVectorEnv(twins(tmp_path, terminations=limits)))
    env = twins(tmp_path, terminations=limits)
    for each in (wrapped, env):
        each.set_seed(0)
    env.reset()  # as TorchRL does to hand Gymnasium the seed
    there, here = drive(wrapped, 20), drive(env, 20)

    ended = here["next", "done"][..., 0]
    assert ended.sum() >= 4
    assert not ended.all(0).any()  # TorchRL begins such episodes a second time
    for key, name in (("observation", "obs"), (("next", "observation"), ("next", "obs"))):
        assert torch.equal(there[key], here[name]), key
    for name in ("reward", "terminated", "truncated", "done"):
        assert torch.equal(there["next", name].float(), here["next", name].float()), name
