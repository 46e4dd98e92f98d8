"""Gymnasium's MuJoCo tasks against Gymnasium itself."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import unilab
from unilab import registry
from unilab.errors import CapabilityError, ConfigError, NonFiniteError
from unilab.tasks import SUITE_TASKS
from unilab.tasks.suites.env import SuiteEnv
from unilab.tasks.suites.gym.hopper_v5 import HopperCfg

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


def state(env: SuiteEnv, row: int) -> tuple[np.ndarray, np.ndarray]:
    return env.data["qpos"][row].numpy(), env.data["qvel"][row].numpy()


def follow(env: SuiteEnv, references: list, steps: int) -> int:
    """Step both with the same random actions and compare; returns how many episodes ended.

    Where an episode ends here, Gymnasium's environment begins one in the same state.
    """
    rng = np.random.default_rng(0)
    space = references[0].action_space
    root, ended = env.reset(), 0
    for row, reference in enumerate(references):
        reference.reset(seed=0)
        reference.set_state(*state(env, row))
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
    return ended


def reference(task: str, **changes: object):
    return gymnasium.make(task.removeprefix("gym/"), disable_env_checker=True, **changes).unwrapped


@every_task
def test_random_actions_give_what_gymnasium_gives(task: str) -> None:
    env = make(task)
    ended = follow(env, [reference(task) for _ in range(2)], 1000)
    env.close()

    assert ended >= (2 if task == "gym/HalfCheetah-v5" else 10)


@pytest.mark.parametrize("task", FALLING)
def test_so_they_do_on_the_ground(task: str) -> None:
    env = make(task, terminate_when_unhealthy=False)
    ended = follow(env, [reference(task, terminate_when_unhealthy=False) for _ in range(2)], 1000)
    env.close()

    assert ended == 2, "but for the time limit, episodes go on"


@every_task
def test_weights_and_ranges_mean_what_they_mean_to_gymnasium(task: str) -> None:
    changes = {"forward_reward_weight": 2.5, "ctrl_cost_weight": 0.7, "reset_noise_scale": 0.02}
    if task in FALLING:
        changes |= {"healthy_reward": 0.3, "healthy_z_range": (0.9, 1.3)}
    if task in ("gym/Ant-v5", "gym/Humanoid-v5"):
        changes |= {"contact_cost_weight": 1e-5}
    if task == "gym/Ant-v5":
        changes |= {"healthy_z_range": (0.3, 0.9), "contact_force_range": (-5.0, 3.0)}
    if task == "gym/Humanoid-v5":
        changes |= {"contact_cost_range": (0.1, 2.0)}
    env = make(task, **changes)
    follow(env, [reference(task, **changes) for _ in range(2)], 200)
    env.close()


@every_task
def test_the_interface_is_gymnasiums(task: str) -> None:
    env, there = make(task), reference(task)
    env.close()

    assert registry.dims(task).obs == there.observation_space.shape[0]
    assert np.array_equal(env.action_spec.space.low[0].numpy(), there.action_space.low)
    assert np.array_equal(env.action_spec.space.high[0].numpy(), there.action_space.high)
    assert env.step_dt == pytest.approx(there.dt)
    assert env.max_episode_length == gymnasium.spec(there.spec.id).max_episode_steps


@every_task
def test_episodes_begin_within_gymnasiums_noise_and_fill_it(task: str) -> None:
    env = make(task, num_envs=4096)
    env.reset()
    there = reference(task)
    scale = there._reset_noise_scale
    qpos = (env.data["qpos"] - torch.from_numpy(there.init_qpos)) / scale
    qvel = (env.data["qvel"] - torch.from_numpy(there.init_qvel)) / scale
    env.close()

    assert qpos.abs().max() <= 1.0
    assert (qpos.amax(0) > 0.99).all()
    assert (qpos.amin(0) < -0.99).all()
    if task in ("gym/HalfCheetah-v5", "gym/Ant-v5"):
        assert (qvel.std(0) - 1.0).abs().max() < 0.06, "a normal distribution"
        assert qvel.mean(0).abs().max() < 0.08
        assert qvel.abs().max() > 3.0
    else:
        assert qvel.abs().max() <= 1.0, "a uniform distribution"
        assert (qvel.amax(0) > 0.99).all()
        assert (qvel.amin(0) < -0.99).all()


@every_task
def test_a_seed_repeats_a_rollout_and_another_does_not(task: str) -> None:
    def rollout(seed: int) -> torch.Tensor:
        env = unilab.make(task, num_envs=3, seed=seed, overrides={"num_threads": 1})
        torch.manual_seed(0)
        data = env.rollout(20, break_when_any_done=False)["next", "obs"]
        env.close()
        return data

    assert torch.equal(rollout(1), rollout(1))
    assert not torch.equal(rollout(1), rollout(2))


@every_task
def test_a_row_does_not_depend_on_its_neighbours(task: str) -> None:
    torch.manual_seed(0)
    many, one = make(task, num_envs=5), make(task, num_envs=1)
    roots = many.reset(), one.reset()
    rows = torch.zeros(1, dtype=torch.int64)
    one.backend.set_state_tensor(rows, many.data["qpos"][3:4], many.data["qvel"][3:4])
    for _ in range(10):
        action = many.rand_action(roots[0])["action"]
        after = many.step(roots[0].set("action", action))["next"]
        alone = one.step(roots[1].set("action", action[3:4]))["next"]
        assert torch.equal(after["obs"][3], alone["obs"][0])
        assert torch.equal(after["reward"][3], alone["reward"][0])
    many.close()
    one.close()


def test_a_reset_leaves_the_other_rows_alone_and_forgets_contacts() -> None:
    env = make("gym/Humanoid-v5", num_envs=3, terminate_when_unhealthy=False)
    data = env.rollout(120, break_when_any_done=False)[:, -1]["next"]
    forces, last = slice(-78, None), data["obs"].clone()
    assert (last[:, forces].abs().amax(1) > 0).all(), "all lie on the ground"

    data["_reset"] = torch.tensor([[False], [True], [False]])
    begun = env.reset(data)
    env.close()

    assert torch.equal(begun["obs"][[0, 2]], last[[0, 2]])
    assert begun["obs"][1, forces].abs().max() == 0
    assert not torch.equal(begun["obs"][1], last[1])


@every_task
def test_the_time_limit_truncates(task: str) -> None:
    env = make(task, episode_length_s=3 * make(task).step_dt)
    data = env.rollout(3, break_when_any_done=False)["next"]
    env.close()

    assert data["truncated"][:, :, 0].int().tolist() == [[0, 0, 1]] * 2
    assert not data["terminated"].any()


def test_first_episodes_may_begin_at_random_points_of_their_time() -> None:
    env = make("gym/HalfCheetah-v5", num_envs=50, init_at_random_ep_len=True)
    env.reset()
    first = env.episode_length.clone()
    env.reset()
    env.close()

    assert first.float().std() > 100
    assert env.episode_length.eq(0).all()


def test_episode_metrics_add_up_to_the_return() -> None:
    env = make("gym/Ant-v5", episode_length_s=1.0)
    total = env.rollout(20, break_when_any_done=False)["next", "reward"].sum(1).mean().item()
    env.reset()
    metrics = env.drain_metrics()

    terms = {k: v for k, v in metrics.items() if k.startswith("Episode_Reward/")}
    assert [k.partition("/")[2] for k in terms] == ["forward", "ctrl", "contact", "survive"]
    assert sum(terms.values()) == pytest.approx(total, rel=1e-5)
    assert metrics["Episode_Termination/time_out"] == 1.0
    assert metrics["Episode_Termination/terminated"] == 0.0
    env.close()


def test_physics_that_diverges_names_its_rows() -> None:
    env = make("gym/Hopper-v5", num_envs=4)
    root = env.reset()
    env.data["qvel"][2] = torch.nan
    with pytest.raises(NonFiniteError, match=r"physics left non-finite values.*'observation': \[2"):
        env.step(env.rand_action(root))
    env.close()


def test_its_factory_travels_to_another_process() -> None:
    make_env = registry.factory("gym/Ant-v5", num_envs=2, seed=0, overrides={"num_threads": 1})
    env = pickle.loads(pickle.dumps(make_env))()
    env.close()

    assert env.batch_size == (2,)


@pytest.mark.parametrize(
    ("task", "overrides", "message"),
    [
        ("Hopper", {"helthy_reward": 1.0}, "helthy_reward.*healthy_reward"),
        ("HalfCheetah", {"healthy_reward": 1.0}, r"healthy_reward"),
        ("HalfCheetah", {"reset_noise_scale": -0.1}, r"reset_noise_scale is -0.1: give at least 0"),
        ("HalfCheetah", {"episode_length_s": 0}, r"episode_length_s is 0.0: give more than 0"),
        (
            "Ant",
            {"healthy_z_range": [1.0, 0.2]},
            r"healthy_z_range is \(1.0, 0.2\): give the lower",
        ),
        ("Ant", {"contact_force_range": [1.0, 1.0]}, r"contact_force_range is \(1.0, 1.0\): give"),
        ("Hopper", {"healthy_angle_range": [1.0, 0.0]}, r"healthy_angle_range is \(1.0, 0.0\)"),
        ("Hopper", {"healthy_state_range": [1.0, 0.0]}, r"healthy_state_range is \(1.0, 0.0\)"),
        ("Walker2d", {"healthy_angle_range": [1.0, 0.0]}, r"healthy_angle_range is \(1.0, 0.0\)"),
        ("Humanoid", {"contact_cost_range": [1.0, 0.0]}, r"contact_cost_range is \(1.0, 0.0\)"),
    ],
)
def test_an_override_that_does_not_fit_says_so(task: str, overrides: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.factory(f"gym/{task}-v5", num_envs=1, overrides=overrides)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"healthy_reward": math.nan}, "healthy_reward"),
        ({"healthy_z_range": 0.7}, "healthy_z_range"),
        ({"terminate_when_unhealthy": "no"}, "terminate_when_unhealthy"),
        ({"num_threads": 1.5}, "num_threads"),
    ],
)
def test_a_value_that_is_not_what_its_field_says_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HopperCfg(**changes)


def test_without_gymnasium_a_task_says_what_to_install(monkeypatch) -> None:
    # An entry of None is how Python notes that an import is barred.
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(
        CapabilityError,
        match=r'gymnasium, which is not installed: pip install "unilab-torchrl\[gym\]"',
    ):
        unilab.make("gym/Hopper-v5")


def test_a_gymnasium_without_the_model_says_what_to_install(monkeypatch, tmp_path) -> None:
    (tmp_path / "gymnasium").mkdir()
    (tmp_path / "gymnasium" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "gymnasium")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CapabilityError, match=r"has no .*hopper.xml: pip install --upgrade"):
        unilab.make("gym/Hopper-v5")


def test_gymnasium_is_not_imported_nor_anything_printed() -> None:
    code = (
        "import sys, unilab; env = unilab.make('gym/HalfCheetah-v5'); env.close();"
        "sys.exit('gymnasium' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_list_says_which_extra_is_missing(monkeypatch, capsys) -> None:
    from unilab.cli import main

    assert main(["list"]) == 0
    assert "pip install" not in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    hinted = [line.split()[0] for line in lines if 'pip install "unilab-torchrl[gym]"' in line]
    assert hinted == TASKS
