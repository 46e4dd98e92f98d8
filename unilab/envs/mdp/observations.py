"""Observation terms: ``[num_envs, width]`` float32."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import Positive
from unilab.envs import rotations
from unilab.envs.entity import SceneEntityCfg
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "base_ang_vel",
    "base_lin_vel",
    "base_pos_z",
    "generated_commands",
    "height_scan",
    "joint_pos_rel",
    "joint_pos_sincos",
    "joint_vel_rel",
    "last_action",
    "policy_observation",
    "projected_gravity",
    "sensor_values",
    "step_reward",
]

_ROBOT = SceneEntityCfg("robot")
_MOST_SCAN_POINTS = 100_000


def base_lin_vel(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Linear velocity of the root in its own frame, ``[num_envs, 3]`` m/s."""
    return env.scene[asset_cfg.name].data.root_lin_vel_b


def base_ang_vel(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Angular velocity of the root in its own frame, ``[num_envs, 3]`` rad/s."""
    return env.scene[asset_cfg.name].data.root_ang_vel_b


def base_pos_z(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Height of the root, ``[num_envs, 1]`` m."""
    return env.scene[asset_cfg.name].data.root_pos_w[:, 2:]


def projected_gravity(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Direction of gravity in the root frame, ``[num_envs, 3]``; (0, 0, -1) when upright."""
    return env.scene[asset_cfg.name].data.projected_gravity_b


def height_scan(
    env: ManagerBasedRlEnv,
    size: tuple[Positive, Positive] = (1.6, 1.0),
    resolution: Positive = 0.1,
    offset: float = 0.5,
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> Tensor:
    """Height above the ground at a grid around the root, less ``offset``, m; or around the one body
    in ``body_names``.

    ``[num_envs, points]``, 17 x 11 by default. The grid turns with the body's yaw only. The first
    points are those at its right, from back to front, as in Isaac Lab.

    Args:
        size: forward and to the side, m.
        resolution: distance between points, m.
    """
    entity, grid = env.scene[asset_cfg.name], _scan_grid(*size, resolution, env.device)
    data = entity.data
    if entity.means_root(asset_cfg):
        pos, quat = data.root_pos_w, data.root_quat_w
    else:
        pos, quat = data.body_pos_w(asset_cfg)[:, 0], data.body_quat_w(asset_cfg)[:, 0]
    yaw = rotations.heading(quat)
    cos, sin = yaw.cos(), yaw.sin()
    x, y, z = pos.unbind(1)
    axes = torch.stack((cos, -sin, x, sin, cos, y), 1)
    points = axes.view(-1, 3) @ grid  # forward, left and 1
    x, y = points.view(-1, 2, grid.shape[1]).unbind(1)
    return (z - offset).unsqueeze(1) - env.scene.ground_height(x, y)


@cache
def _scan_grid(ahead: float, across: float, resolution: float, device: torch.device) -> Tensor:
    """``[3, points]``: forward, left (m) and 1."""
    with torch.inference_mode(False):  # cached, and used in either mode
        x, y = grid_points(ahead, across, resolution)
        return torch.stack((x, y, torch.ones_like(x))).to(device)


def grid_points(ahead: float, across: float, resolution: float) -> tuple[Tensor, Tensor]:
    """Forward and left (m) of the points of a grid, ``[points]`` each."""
    size = ahead, across
    cells = [round(length / resolution) for length in size]
    for length, n in zip(size, cells, strict=True):
        if not math.isclose(n * resolution, length, abs_tol=1e-6):
            raise ConfigError(f"size must be multiples of resolution, {resolution} m, got {size}")
    if math.prod(n + 1 for n in cells) > _MOST_SCAN_POINTS:
        raise ConfigError(
            f"resolution must leave at most {_MOST_SCAN_POINTS} points of size {size}, got "
            f"{resolution} m"
        )
    forward, left = (
        (torch.arange(n + 1, dtype=torch.float32) - 0.5 * n) * resolution for n in cells
    )
    y, x = torch.meshgrid(left, forward, indexing="ij")
    return x.flatten(), y.flatten()


def joint_pos_rel(
    env: ManagerBasedRlEnv, biased: bool = False, asset_cfg: SceneEntityCfg = _ROBOT
) -> Tensor:
    """Joint positions from the home pose, ``[num_envs, num_joints]`` rad.

    Args:
        biased: whether to add the bias of ``randomize_encoder_bias``, as the encoders read them.
    """
    data = env.scene[asset_cfg.name].data
    pos = data.joint_pos - data.default_joint_pos
    return asset_cfg.joints_of(pos + data.encoder_bias if biased else pos)


def joint_pos_sincos(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Sine and cosine of joint positions, ``[num_envs, 2 * num_joints]``."""
    pos = asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_pos)
    return torch.cat((pos.sin(), pos.cos()), dim=1)


def joint_vel_rel(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg = _ROBOT) -> Tensor:
    """Joint velocities, ``[num_envs, num_joints]`` rad/s."""
    return asset_cfg.joints_of(env.scene[asset_cfg.name].data.joint_vel)


def last_action(env: ManagerBasedRlEnv) -> Tensor:
    """The action of this step, ``[num_envs, action_dim]``; zeros after a reset."""
    return env.action_manager.action


def generated_commands(env: ManagerBasedRlEnv, command_name: str) -> Tensor:
    """The current command, ``[num_envs, width]``."""
    return env.command_manager.get_command(command_name)


def sensor_values(
    env: ManagerBasedRlEnv, sensor_names: tuple[str, ...], component: int | None = None
) -> Tensor:
    """Sensors side by side, ``[num_envs, sum of widths]``, in the sensors' own units.

    ``component`` selects one column of each sensor: ``[num_envs, len(sensor_names)]``.
    """
    values = [env.scene.sensor(name) for name in sensor_names]
    if component is not None:
        for name, value in zip(sensor_names, values, strict=True):
            if not 0 <= component < value.shape[1]:
                raise ConfigError(
                    f"component must be in [0, {value.shape[1]}) for sensor {name!r}, got "
                    f"{component}"
                )
        values = [value[:, component : component + 1] for value in values]
    return torch.cat(values, dim=1)


def policy_observation(env: ManagerBasedRlEnv, group: str = "obs") -> Tensor:
    """The last returned observation of a group, ``[num_envs, width]``; for recorders.

    In mode ``pre_step`` it is the policy's input, with noise, delay and history.
    """
    groups = env.obs_buf
    if group not in groups:
        raise ConfigError(f"there is no observation group {group!r}{did_you_mean(group, groups)}")
    return groups[group]


def step_reward(env: ManagerBasedRlEnv) -> Tensor:
    """The reward of the last step, ``[num_envs]``; for recorders in mode ``post_step``."""
    return env.reward_manager.reward
