"""Event terms: write state for ``env_ids``; the environment checks and commits it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import check_range
from unilab.envs import rotations
from unilab.envs.entity import SceneEntityCfg, require_ids
from unilab.envs.managers.term import writes
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "apply_external_force_torque",
    "push_by_setting_velocity",
    "reset_joints_by_offset",
    "reset_root_state_uniform",
]

_ROBOT = SceneEntityCfg("robot")
_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
_FOREVER = 1e9
"""Control steps that no episode has."""
Range = tuple[float, float]


def reset_root_state_uniform(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    pose_range: dict[str, Range],
    velocity_range: dict[str, Range],
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Place the root at its home pose plus uniform offsets, with a uniform velocity.

    On a terrain the pose is relative to the environment's tile, and its height to the highest
    ground within half a metre.

    Args:
        pose_range: offsets by axis: x, y, z in m, world frame; roll, pitch, yaw in rad, about the
            axes of the home pose; 0 if absent.
        velocity_range: velocities by axis (m/s, rad/s); 0 if absent.
    """
    entity = env.scene[asset_cfg.name]
    entity.require_root()
    offset = draw_axes(env, env_ids.shape[0], pose_range)
    velocity = draw_axes(env, env_ids.shape[0], velocity_range)
    home = entity.default_root_pose
    turn = rotations.from_euler(*offset[:, 3:].unbind(1))
    quat = rotations.multiply(home[3:].expand(env_ids.shape[0], 4), turn)
    pos, terrain = home[:3] + offset[:, :3], env.scene.terrain
    entity.write_root_pose(pos if terrain is None else terrain.place(pos, env_ids), quat)
    entity.write_root_velocity(velocity[:, :3], velocity[:, 3:])


@writes(of=("joint",))
def reset_joints_by_offset(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    position_range: Range,
    velocity_range: Range,
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Place the joints at the home pose plus uniform offsets, with uniform velocities.

    Args:
        position_range: offsets, rad; positions are clipped to the joints' limits.
        velocity_range: velocities, rad/s.
    """
    entity, ids = env.scene[asset_cfg.name], asset_cfg.joint_ids
    home = entity.data.default_joint_pos[ids]
    shape = (env_ids.shape[0], home.shape[0])
    pos = home + draw_uniform(env, shape, "position_range", position_range)
    vel = draw_uniform(env, shape, "velocity_range", velocity_range)
    entity.write_joint_state(pos.clamp_(*entity.data.joint_pos_limits[ids].T), vel, ids)


def push_by_setting_velocity(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    velocity_range: dict[str, Range],
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Push the root: add a uniform velocity to its own.

    Args:
        velocity_range: by axis: x, y, z in m/s, world frame; roll, pitch, yaw in rad/s, body frame;
            0 if absent.
    """
    entity = env.scene[asset_cfg.name]
    push = draw_axes(env, env_ids.shape[0], velocity_range)
    velocity = entity.staged_root_velocity() + push
    entity.write_root_velocity(velocity[:, :3], velocity[:, 3:])


@writes(of=("body",))
def apply_external_force_torque(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    force_range: Range | dict[str, Range],
    torque_range: Range | dict[str, Range],
    asset_cfg: SceneEntityCfg,
    duration_s: Range | None = None,
) -> None:
    """Let a uniform force and torque act at the centres of mass of bodies, in the world frame.

    They replace those of the last such event. In mode ``interval`` with a duration it is a push.

    Args:
        force_range, torque_range: N and N m, of every component, or by axis (x, y, z; 0 if absent).
        asset_cfg: the bodies, each with its own draw.
        duration_s: how long they act, rounded up to control steps; None: until the episode ends.
    """
    ids = require_ids(asset_cfg.body_ids)
    n, bodies = env_ids.shape[0], len(ids)
    force, torque = (
        _on_axes(env, n * bodies, r).reshape(n, bodies, 3) for r in (force_range, torque_range)
    )
    steps = torch.full((n, bodies), _FOREVER, device=env.device)
    if duration_s is not None:
        if not duration_s[0] > 0.0:
            raise ConfigError(f"duration_s must be above 0, got {duration_s}")
        seconds = draw_uniform(env, (n, 1), "duration_s", duration_s)
        steps = (seconds / env.step_dt - 1e-4).ceil().expand(n, bodies)
    env.scene.write_wrench(ids, force, torque, steps)


def _on_axes(env: ManagerBasedRlEnv, n: int, ranges: Range | dict[str, Range]) -> Tensor:
    """``[n, 3]`` uniform components."""
    if not isinstance(ranges, dict):
        ranges = dict.fromkeys(_AXES[:3], ranges)
    unknown = next((axis for axis in ranges if axis not in _AXES[:3]), None)
    if unknown is not None:
        raise ConfigError(f"axis of a force or torque must be x, y or z, got {unknown!r}")
    return draw_axes(env, n, ranges)[:, :3]


def draw_axes(env: ManagerBasedRlEnv, n: int, ranges: dict[str, Range]) -> Tensor:
    """``[n, 6]`` uniform values by axis."""
    low, span = _bounds(tuple((axis, tuple(span)) for axis, span in ranges.items()), env.device)
    draw = torch.rand(n, 6, generator=env.generator, device=env.device)
    return torch.addcmul(low, draw, span)


@cache
def _bounds(ranges: tuple[tuple[str, Range], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Lower bounds and widths by axis, ``[6]`` each."""
    for axis, span in ranges:
        if axis not in _AXES:
            raise ConfigError(
                f"axis must be one of {_AXES}, got {axis!r}{did_you_mean(axis, _AXES)}"
            )
        check_range(f"range of {axis!r}", span)
    given = dict(ranges)
    with torch.inference_mode(False):  # cached, and used in either mode
        lows, highs = torch.tensor([given.get(a, (0.0, 0.0)) for a in _AXES], device=device).T
        return lows.contiguous(), highs - lows


def draw_uniform(env: ManagerBasedRlEnv, shape: tuple[int, int], name: str, span: Range) -> Tensor:
    check_range(name, span)
    return torch.empty(shape, device=env.device).uniform_(*span, generator=env.generator)
