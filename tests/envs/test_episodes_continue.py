"""An environment continues the episodes of another one, bit for bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from envs.tables import assert_bitwise_equal, go2, twins
from reference.accelerator import DEVICE
from reference.everything import Stages, go2_with_everything
from tensordict import TensorDictBase

import unilab
from unilab import registry
from unilab.envs import CurriculumTermCfg, EventTermCfg
from unilab.errors import ConfigError

QUICK = ("pendulum_swingup", "gym/Hopper-v5", "dmc/cartpole-swingup")


def steps(env: Any, root: TensorDictBase, count: int, seed: int) -> TensorDictBase:
    """Steps under fixed random actions; returns what each gave."""
    draw, data = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        action = torch.rand(env.action_spec.shape, generator=draw) * 2 - 1
        root = root.copy().set("action", action.to(env.device))
        step, root = env.step_and_maybe_reset(root)
        data.append(step.clone())
    return torch.stack(data, 1), root


def on_disk(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def metrics(env: Any) -> dict[str, float]:
    return {tag: v for tag, v in env.drain_metrics().items() if not tag.startswith("Perf/")}


def assert_continues(env: Any, other: Any) -> None:
    _, root = steps(env, env.reset(), 22, seed=0)
    saved = on_disk(env.export_episodes())
    expected, _ = steps(env, root, 20, seed=1)
    steps(other, other.reset(), 5, seed=2)
    other.import_episodes(saved)
    continued, _ = steps(other, root, 20, seed=1)
    assert_bitwise_equal(expected, continued)
    assert metrics(env) == metrics(other)
    assert expected["next", "done"].any()


@pytest.mark.parametrize("device", ["cpu", pytest.param(DEVICE, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("accelerator")
def test_all_that_a_managed_task_may_keep_continues(device):
    env, other = (
        go2_with_everything().make(num_envs=4, device=device, seed=seed) for seed in (0, 1)
    )
    assert_continues(env, other)
    recorded, continued = (e.recorder_manager.drain()[-2:] for e in (env, other))
    for a, b in zip(recorded, continued, strict=True):
        assert_bitwise_equal(a, b)


@pytest.mark.parametrize(
    "task",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in registry.names()],
)
def test_every_task_continues(task):
    brief = {"episode_length_s": 0.3, "num_threads": 1}
    env, other = (unilab.make(task, num_envs=3, seed=s, overrides=brief) for s in (0, 1))
    assert_continues(env, other)


@pytest.mark.parametrize("task", ["go2_with_everything", "dmc/cartpole-swingup"])
def test_the_state_of_a_new_environment_can_be_returned_to(task):
    if task == "go2_with_everything":
        env = go2_with_everything().make(num_envs=4, device="cpu", seed=0)
    else:
        env = unilab.make(task, num_envs=4, seed=0, overrides={"num_threads": 1})
    new = env.export_episodes()
    first, _ = steps(env, env.reset(), 20, seed=0)
    for _ in range(2):
        env.import_episodes(new)
        assert_bitwise_equal(first, steps(env, env.reset(), 20, seed=0)[0])


@pytest.mark.parametrize("change", ["num_envs", "settings", "version", "damage"])
def test_episodes_of_another_environment_are_refused_and_its_own_continue(tmp_path, change):
    env = twins(tmp_path)
    env.reset()
    state = on_disk(env.export_episodes())
    if change == "damage":
        del state["task"]["kept"]["action_manager"]
    if change == "version":  # the first had none
        del state["version"]
    sizes = {"num_envs": 3} if change == "num_envs" else {}
    other = twins(tmp_path, **sizes, decimation=3 if change == "settings" else 2)
    _, root = steps(other, other.reset(), 3, seed=0)
    before = other.export_episodes()
    with pytest.raises(ConfigError, match="action_manager" if change == "damage" else change):
        other.import_episodes(state)
    expected, _ = steps(other, root.clone(), 9, seed=1)
    other.import_episodes(before)
    assert_bitwise_equal(expected, steps(other, root, 9, seed=1)[0])


def test_a_term_may_change_what_is_in_its_params(tmp_path):
    def count(env, env_ids, calls):
        calls[0] += 1

    counts = [EventTermCfg(func=count, mode="step", params={"calls": [0]}) for _ in range(2)]
    env, other = (twins(tmp_path, events={"count": event}) for event in counts)
    steps(env, env.reset(), 3, seed=0)
    other.import_episodes(env.export_episodes())


def test_paths_and_threads_of_the_settings_may_differ(tmp_path):
    env = twins(tmp_path, num_threads=1)
    env.reset()
    (tmp_path / "elsewhere").mkdir()
    twins(tmp_path / "elsewhere", num_threads=2).import_episodes(env.export_episodes())


def test_a_failed_or_closed_environment_has_no_episodes(tmp_path):
    env = twins(tmp_path)
    env.reset()
    env.close()
    assert env.export_episodes() == {}


def test_the_training_state_holds_what_a_curriculum_keeps():
    env = go2(4, curriculum={"stages": CurriculumTermCfg(func=Stages)}, episode_length_s=0.1)
    steps(env, env.reset(), 6, seed=0)
    state = on_disk(env.export_training_state())
    assert state == {"version": 1, "control_steps": 6, "curriculum": {"stages": {"mean": 2.0}}}
    fewer = go2(2, curriculum={"stages": CurriculumTermCfg(func=Stages)})
    fewer.import_training_state(state)
    fewer.reset()
    assert fewer.drain_metrics()["Curriculum/stages"] == 3.0
