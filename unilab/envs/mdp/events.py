"""Event terms: write state for ``env_ids``; the environment checks and commits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.envs import rotations
from unilab.envs.scene import SceneEntityCfg
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_ROBOT = SceneEntityCfg("robot")
_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
Range = tuple[float, float]


def reset_root_state_uniform(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    pose_range: dict[str, Range],
    velocity_range: dict[str, Range],
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Place the root at its home pose plus uniform offsets, with a uniform velocity.

    Args:
        env: the environment.
        env_ids: ``[n]``.
        pose_range: offsets by axis (x, y, z in m; roll, pitch, yaw in rad); 0 if absent.
        velocity_range: velocities by axis (m/s, rad/s); 0 if absent.
        asset_cfg: the entity.
    """
    entity = env.scene[asset_cfg.name]
    offset = _draw(env, len(env_ids), pose_range)
    velocity = _draw(env, len(env_ids), velocity_range)
    home = env.backend.default_qpos[entity.root_joint.qpos].float().to(env.device)  # type: ignore[union-attr]
    turn = rotations.from_euler(*offset[:, 3:].unbind(1))
    quat = rotations.multiply(turn, home[3:].expand(len(env_ids), 4))
    entity.write_root_pose(home[:3] + offset[:, :3], quat)
    entity.write_root_velocity(velocity[:, :3], velocity[:, 3:])


def reset_joints_by_offset(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    position_range: Range,
    velocity_range: Range,
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Place the joints at the home pose plus uniform offsets (rad), with uniform velocities."""
    entity = env.scene[asset_cfg.name]
    shape = (len(env_ids), len(entity.joints))
    pos = _uniform(env, shape, position_range)
    vel = _uniform(env, shape, velocity_range)
    entity.write_joint_state(entity.data.default_joint_pos + pos, vel)


def push_by_setting_velocity(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    velocity_range: dict[str, Range],
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Set the root's velocity to a uniform one: a shove."""
    velocity = _draw(env, len(env_ids), velocity_range)
    env.scene[asset_cfg.name].write_root_velocity(velocity[:, :3], velocity[:, 3:])


def _draw(env: ManagerBasedRlEnv, n: int, ranges: dict[str, Range]) -> Tensor:
    """``[n, 6]`` uniform values by axis."""
    for axis in ranges:
        if axis not in _AXES:
            raise ConfigError(f"no axis {axis!r}{did_you_mean(axis, _AXES)}: axes are {_AXES}")
    low, high = torch.tensor([ranges.get(a, (0.0, 0.0)) for a in _AXES], device=env.device).T
    if bool((low > high).any()):
        raise ConfigError(f"a range is reversed in {ranges}: expected (low, high)")
    return low + (high - low) * torch.rand(n, 6, generator=env.generator, device=env.device)


def _uniform(env: ManagerBasedRlEnv, shape: tuple[int, int], span: Range) -> Tensor:
    if span[0] > span[1]:
        raise ConfigError(f"range {span} is reversed: expected (low, high)")
    return torch.empty(shape, device=env.device).uniform_(*span, generator=env.generator)
