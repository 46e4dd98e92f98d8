"""Properties of every packaged task; tests/envs checks their specs."""

from __future__ import annotations

import pytest
import torch
from envs.tables import assert_bitwise_equal
from tensordict import TensorDict

import unilab
from unilab.tasks import TASKS

# obs, critic and action widths, and whether critic is a separate group, as documented
WIDTHS = {
    "arm_reach": (25, 25, 6, False),
    "cartpole_swingup": (5, 5, 1, False),
    "g1_velocity_flat": (96, 102, 29, True),
    "g1_velocity_rough": (283, 286, 29, True),
    "go2_getup": (42, 46, 12, True),
    "g1_motion_tracking": (160, 286, 29, True),
    "g1_motion_tracking_deploy": (154, 286, 29, True),
    "go2_velocity_flat": (45, 49, 12, True),
    "go2_velocity_rough": (232, 235, 12, True),
    "pendulum_swingup": (3, 3, 1, False),
}

every_task = pytest.mark.parametrize("task", sorted(TASKS))


def _make(task: str, **overrides: object) -> unilab.envs.TorchEnv:
    return unilab.make(task, num_envs=8, seed=0, overrides={"num_threads": 1, **overrides})


@every_task
def test_random_actions_give_finite_data_of_the_documented_widths(task: str) -> None:
    env = _make(task)
    data = env.rollout(30, break_when_any_done=False)
    env.close()
    obs, critic, action, has_critic = WIDTHS[task]
    reward = data["next", "reward"]

    assert data["obs"].shape == (8, 30, obs)
    assert ("critic" in data) == has_critic
    assert not has_critic or data["critic"].shape == (8, 30, critic)
    assert data["action"].shape == (8, 30, action)
    assert all(bool(v.isfinite().all()) for v in data.values(True, True) if v.is_floating_point())
    assert torch.minimum(reward.std(0).min(), reward.std(1).min()) > 0, "rewards tell actions apart"


@every_task
def test_the_time_limit_truncates_and_does_not_terminate(task: str) -> None:
    env = _make(task, episode_length_s=0.1)
    still = env.full_action_spec["action"].zero()
    data = env.rollout(5, lambda td: td.set("action", still), break_when_any_done=False)
    env.close()

    assert data["next", "truncated"][:, :, 0].int().tolist() == [[0, 0, 0, 0, 1]] * 8
    assert not data["next", "terminated"].any()


@pytest.mark.parametrize("task", [*sorted(TASKS), "gym/Ant-v5", "dmc/walker-run"])
def test_a_float64_default_changes_nothing(task: str) -> None:
    """``torch.set_default_dtype`` may be the rest of a program's choice."""

    def rollout() -> TensorDict:
        env = _make(task, episode_length_s=0.1)
        data = env.rollout(8, env.rand_action, break_when_any_done=False)
        env.close()
        return data

    torch.manual_seed(0)
    expected = rollout()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        found = rollout()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert_bitwise_equal(found, expected)
