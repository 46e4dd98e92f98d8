"""The reaching arm: commands in its workspace, errors of the tool, and what is drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unilab import registry
from unilab.envs import ManagerBasedRlEnv, mdp
from unilab.envs.rotations import angle_between, gravity_direction
from unilab.errors import ConfigError
from unilab.markers import Arrow, Sphere

POSE = {"pos_x": (0.42013576,) * 2, "pos_y": (0.0, 0.0), "pos_z": (0.33564239,) * 2}
"""Where the tool is at home; there it points down."""


def _env(num_envs: int = 4, **command: Any) -> ManagerBasedRlEnv:
    """The arm at home, at rest, with changes to its command."""
    cfg = registry.config("arm_reach")
    pose = replace(cfg.commands["ee_pose"], **command)
    cfg = replace(cfg, commands={"ee_pose": pose}, events={}, num_threads=1)
    return ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=0)


def _at(**ranges: tuple[float, float]) -> Any:
    down = {"pitch": (math.pi, math.pi), "yaw": (0.0, 0.0)}
    return mdp.UniformPoseCommandCfg.Ranges(**{**POSE, **down, **ranges})


def _rates(env: ManagerBasedRlEnv) -> dict[str, float]:
    """Unweighted tracking terms after a step at rest."""
    env.step(env.reset().set("action", torch.zeros(env.num_envs, 6)))
    weights = {name: term.weight for name, term in env.cfg.rewards.items()}
    sums, _ = env.episode_so_far(0)
    return {n: v / weights[n] / env.step_dt for n, v in sums.items() if "tracking" in n}


@pytest.mark.parametrize(
    ("ranges", "distance", "angle"),
    [
        ({}, 0.0, 0.0),
        ({"pos_x": (0.48013576, 0.48013576), "pos_y": (0.08, 0.08)}, 0.1, 0.0),
        ({"yaw": (0.5, 0.5)}, 0.0, 0.5),
        ({"pitch": (0.0, 0.0)}, 0.0, math.pi),
    ],
)
def test_tracking_terms_are_distance_and_angle_of_the_tool(ranges, distance, angle) -> None:
    env = _env(ranges=_at(**ranges))
    rates = _rates(env)
    env.close()

    assert rates["position_tracking"] == pytest.approx(distance, abs=1e-5)
    assert rates["position_tracking_fine_grained"] == pytest.approx(
        1.0 - math.tanh(distance / 0.1), abs=1e-4
    )
    assert rates["orientation_tracking"] == pytest.approx(angle, abs=2e-3)


def test_commands_are_in_the_ranges_and_point_the_hand_down() -> None:
    env = _env(256)
    env.reset()
    command = env.command_manager.get_command("ee_pose")
    ranges = env.cfg.commands["ee_pose"].ranges
    env.close()

    for axis, bounds in enumerate((ranges.pos_x, ranges.pos_y, ranges.pos_z)):
        assert bounds[0] <= command[:, axis].min() < command[:, axis].max() <= bounds[1]
        assert command[:, axis].std() > 0.2 * (bounds[1] - bounds[0])
    assert gravity_direction(command[:, 3:])[:, 2].min() > 0.999
    turned = angle_between(command[:, 3:], torch.tensor([[0.0, 0.0, 1.0, 0.0]]))
    assert turned.max() <= 0.5 * math.pi + 1e-3
    assert turned.max() > 1.4


def test_every_corner_of_the_commands_is_in_reach() -> None:
    """Least squares with MuJoCo's Jacobian, within the joints that actions can ask for."""
    import mujoco

    env = _env()
    model, scale = env.backend.mj_model, env.action_manager.scale.numpy()
    home, tip = env.backend.default_qpos.numpy(), model.body("tool_tip").id
    ranges = env.cfg.commands["ee_pose"].ranges
    env.close()
    data = mujoco.MjData(model)
    low = np.maximum(home - scale, model.jnt_range[:, 0])
    high = np.minimum(home + scale, model.jnt_range[:, 1])
    corners = np.stack(
        np.meshgrid(ranges.pos_x, ranges.pos_y, ranges.pos_z, ranges.yaw), -1
    ).reshape(-1, 4)
    for x, y, z, yaw in corners:
        data.qpos[:] = home
        quat = np.array([0.0, -math.sin(yaw / 2), math.cos(yaw / 2), 0.0])
        for _ in range(200):
            mujoco.mj_forward(model, data)
            jac, turn = np.zeros((6, 6)), np.zeros(3)
            mujoco.mj_jacBody(model, data, jac[:3], jac[3:], tip)
            back, off = np.zeros(4), np.zeros(4)
            mujoco.mju_negQuat(back, data.xquat[tip])
            mujoco.mju_mulQuat(off, quat, back)
            mujoco.mju_quat2Vel(turn, off, 1.0)
            error = np.concatenate((np.array([x, y, z]) - data.xpos[tip], turn))
            step = jac.T @ np.linalg.solve(jac @ jac.T + 1e-3 * np.eye(6), error)
            data.qpos[:] = np.clip(data.qpos + np.clip(step, -0.2, 0.2), low, high)
        assert np.abs(error).max() < 1e-3, (x, y, z, yaw)


def test_the_command_and_the_tool_are_drawn() -> None:
    env = _env(ranges=_at(pos_y=(0.1, 0.1)))
    env.reset()
    ball, *frames = env.debug_draw(1)
    env.close()

    assert isinstance(ball, Sphere)
    assert ball.centre == pytest.approx([0.42013576, 0.1, 0.33564239], abs=1e-5)
    assert len(frames) == 6
    *_, (x, _, z) = frames[:3], frames[3:]
    assert isinstance(z, Arrow)
    assert z.start == pytest.approx([0.42013576, 0.0, 0.33564239], abs=1e-5)
    assert z.vector == pytest.approx((0.0, 0.0, -0.1), abs=1e-5), "out of the hand, down"
    assert x.vector == pytest.approx((-0.1, 0.0, 0.0), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"body_name": "tool|base"}, "body_name"), ({"body_name": "hand"}, "hand")],
)
def test_a_command_for_no_or_two_bodies_is_refused(changes, name) -> None:
    with pytest.raises(ConfigError, match=name):
        _env(**changes)


def test_tracking_a_command_that_is_no_pose_is_refused() -> None:
    cfg = registry.config("go2_velocity_flat")
    reach = registry.config("arm_reach").rewards["position_tracking"]
    params = {**reach.params, "command_name": "base_velocity"}
    asset = replace(params["asset_cfg"], body_names=("base",))
    term = replace(reach, params={**params, "asset_cfg": asset})
    with pytest.raises(ConfigError, match="base_velocity"):
        ManagerBasedRlEnv(replace(cfg, rewards={"reach": term}, num_threads=1), num_envs=2, seed=0)
