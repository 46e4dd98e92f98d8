"""The Go2 that stands up: how it lies at first, and what its rewards measure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mujoco
import pytest
import torch
from torch import Tensor

from unilab import registry
from unilab.envs import EventTermCfg, ManagerBasedRlEnv
from unilab.envs.rotations import gravity_direction
from unilab.tasks.getup.go2 import SCENE, after_falls, at_home, rising, standing, uprightness


@pytest.fixture(scope="module")
def lying() -> Tensor:
    """``[128, 19]`` poses."""
    return after_falls(128, seed=1)


def _env(num_envs: int, **events: EventTermCfg) -> ManagerBasedRlEnv:
    cfg = registry.config("go2_getup")
    events = {"lying": cfg.events["lying"], **events}
    return ManagerBasedRlEnv(replace(cfg, events=events, num_threads=1), num_envs=num_envs, seed=0)


def test_robots_lie_on_back_sides_and_belly(lying: Tensor) -> None:
    gravity = gravity_direction(lying[:, 3:7])
    back, sides = gravity[:, 2] > 0.7, gravity[:, 1].abs() > 0.7

    assert 0.1 < back.float().mean() < 0.7
    assert sides.sum() > 4
    assert (gravity[:, 2] < -0.7).sum() > 4
    assert lying[:, 2].max() < 0.35


def test_robots_lie_still_and_not_in_the_ground(lying: Tensor) -> None:
    """Held by their joints' motors they stay where they are."""
    env = _env(1)
    model = env.backend.mj_model
    env.close()
    data, moved = mujoco.MjData(model), []
    for pose in lying[:32].double().numpy():
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.ctrl[:] = pose, pose[7:]
        mujoco.mj_forward(model, data)
        assert not data.ncon or data.contact.dist.min() > -0.02
        for _ in range(20):
            mujoco.mj_step(model, data)
        moved.append(abs(data.qpos[2] - pose[2]))
    assert sorted(moved)[28] < 0.02


def test_episodes_start_from_these_poses_at_rest() -> None:
    env = _env(64)
    env.reset()
    state = env.backend.get_state_views()
    qpos, qvel = state["qpos"].clone(), state["qvel"].clone()
    env.close()
    params = env.cfg.events["lying"].params
    known = after_falls(**params).double()
    nearest = torch.cdist(qpos, known).min(1)

    assert nearest.values.max() < 1e-5
    assert len(nearest.indices.unique()) > 32
    assert not qvel.any()


def put(env: ManagerBasedRlEnv, env_ids: Tensor, pose: list[float]) -> None:
    """A reset event that puts the root somewhere and the joints home."""
    robot, rows = env.scene["robot"], len(env_ids)
    root = torch.tensor([pose]).expand(rows, -1)
    robot.write_root_pose(root[:, :3], root[:, 3:])
    joints = robot.data.default_joint_pos.expand(rows, -1)
    robot.write_joint_state(joints, torch.zeros_like(joints))


@pytest.mark.parametrize(
    ("pose", "expected"),
    [
        ([0.0, 0.0, 0.32, 1.0, 0.0, 0.0, 0.0], {"up": 1.0, "rising": 1.0, "home": 1.0, "stand": 1}),
        ([0.0, 0.0, 0.1, 0.0, 1.0, 0.0, 0.0], {"up": 0.0, "rising": 0.0, "home": 0.0, "stand": 0}),
        ([0.0, 0.0, 0.15, 0.5**0.5, 0.5**0.5, 0.0, 0.0], {"up": 0.5, "rising": 0.25, "stand": 0}),
        ([0.0, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0], {"up": 1.0, "rising": 2 / 3, "stand": 0}),
    ],
    ids=["standing", "on its back", "on its side", "crouching"],
)
def test_terms_grow_from_lying_to_standing(pose: list[float], expected: dict[str, Any]) -> None:
    env = _env(2, lying=EventTermCfg(func=put, mode="reset", params={"pose": pose}))
    env.reset()
    found = {
        "up": uprightness(env),
        "rising": rising(env),
        "home": at_home(env, std=0.5),
        "stand": standing(env),
    }
    env.close()
    for name, value in expected.items():
        assert found[name].tolist() == pytest.approx([value] * 2, abs=1e-5), name


def test_the_robot_collides_with_itself_and_no_tilt_ends_an_episode() -> None:
    cfg = registry.config("go2_getup")
    assert cfg.scene == SCENE
    assert cfg.scene.entities["robot"].self_collisions
    assert set(cfg.terminations) == {"time_out"}
