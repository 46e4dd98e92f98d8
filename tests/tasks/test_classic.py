"""Pendulum and cart-pole: where the reward lies and how episodes begin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unilab import registry
from unilab.envs import EventTermCfg, ManagerBasedRlEnv

ENTITY = {"pendulum_swingup": "pendulum", "cartpole_swingup": "cartpole"}
UPRIGHT = {"pendulum_swingup": [0.0], "cartpole_swingup": [0.0, 0.0]}
HANGING = {"pendulum_swingup": [math.pi], "cartpole_swingup": [0.0, math.pi]}

both = pytest.mark.parametrize("task", sorted(ENTITY))


def place(env: ManagerBasedRlEnv, env_ids: Tensor, entity: str, pos: list, vel: list) -> None:
    """A reset event that puts the joints exactly somewhere."""
    rows = len(env_ids)
    env.scene[entity].write_joint_state(
        torch.tensor([pos]).expand(rows, -1), torch.tensor([vel]).expand(rows, -1)
    )


def _started_at(task: str, pos: list, vel: list | None = None) -> ManagerBasedRlEnv:
    params = {"entity": ENTITY[task], "pos": pos, "vel": vel or [0.0] * len(pos)}
    return _env(task, events={"place": EventTermCfg(func=place, mode="reset", params=params)})


def _env(task: str, num_envs: int = 8, **changes: Any) -> ManagerBasedRlEnv:
    cfg = replace(registry.config(task), num_threads=1, **changes)
    return ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=0)


def _reward_rate(task: str, pos: list, vel: list | None = None, action: float = 0.0) -> float:
    """Reward per second of the first step."""
    env = _started_at(task, pos, vel)
    data = env.reset().set("action", torch.full((8, 1), action))
    rate = env.step(data)["next", "reward"] / env.step_dt
    env.close()
    return float(rate.mean())


@both
def test_reward_grows_from_0_hanging_to_1_upright_and_at_rest(task: str) -> None:
    level = [*UPRIGHT[task][:-1], 0.5 * math.pi]
    spinning = [*[0.0] * (len(UPRIGHT[task]) - 1), 8.0]

    assert _reward_rate(task, HANGING[task]) == pytest.approx(0.0, abs=1e-3)
    assert 0.1 < _reward_rate(task, level) < 0.7
    assert _reward_rate(task, UPRIGHT[task]) == pytest.approx(1.0, abs=1e-3)
    assert _reward_rate(task, UPRIGHT[task], spinning) < 0.8


def test_cartpole_pays_for_the_middle_of_the_rail_and_for_little_force() -> None:
    middle = _reward_rate("cartpole_swingup", [0.0, 0.0])

    assert _reward_rate("cartpole_swingup", [1.5, 0.0]) < 0.8 * middle
    assert _reward_rate("cartpole_swingup", [0.0, 0.0], action=1.0) < 0.85 * middle


def test_pendulum_cannot_be_held_level_by_its_motor() -> None:
    env = _started_at("pendulum_swingup", [0.5 * math.pi])
    data = env.rollout(25, lambda td: td.set("action", -torch.ones(8, 1)))
    env.close()

    assert data["next", "obs"][:, -1, 1].max() < -0.2, "past level, towards hanging"


def test_pendulum_episodes_begin_anywhere_on_the_circle() -> None:
    env = _env("pendulum_swingup", num_envs=256)
    obs = env.reset()["obs"]
    env.close()
    quadrant = (obs[:, 0] > 0).int() * 2 + (obs[:, 1] > 0).int()

    assert (torch.bincount(quadrant, minlength=4) > 32).all()


def test_cartpole_episodes_begin_hanging_near_the_middle() -> None:
    env = _env("cartpole_swingup", num_envs=256)
    obs = env.reset()["obs"]
    env.close()

    assert obs[:, 0].abs().max() <= 0.1
    assert obs[:, 2].max() <= math.cos(math.pi - 0.1) + 1e-6
    assert obs[:, 0].std() > 0.03
