"""Reward, termination and observation terms of contacts and feet.

They read a contact sensor of the scene (``SceneCfg.sensors``), which has a column for each foot or
part. Positions and velocities of feet are those of the bodies in ``asset_cfg``, in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import Positive
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.reward import RewardTermCfg
from unilab.envs.managers.term import ManagerTermBase
from unilab.envs.sensors import ContactSensor
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "feet_air_time",
    "feet_air_time_positive_biped",
    "feet_clearance",
    "feet_slide",
    "feet_slip",
    "feet_swing_height",
    "foot_air_time",
    "foot_contact",
    "foot_contact_forces",
    "foot_height",
    "illegal_contact",
    "self_collision_cost",
    "soft_landing",
    "undesired_contacts",
]


def _sensor(env: ManagerBasedRlEnv, name: str) -> ContactSensor:
    try:
        return env.scene.sensors[name]
    except KeyError:
        sensors = env.scene.sensors
        raise ConfigError(
            f"scene.sensors has no contact sensor {name!r}{did_you_mean(name, sensors)}; it has "
            f"{sorted(sensors)}"
        ) from None


def _moves(env: ManagerBasedRlEnv, command_name: str) -> Tensor:
    """``[num_envs]`` bool, whether the commanded horizontal velocity exceeds 0.1 m/s."""
    return env.command_manager.get_command(command_name)[:, :2].norm(dim=1) > 0.1


def _if_moving(
    env: ManagerBasedRlEnv, cost: Tensor, command_name: str | None, command_threshold: float
) -> Tensor:
    """The cost where ``|v_xy| + |w_z|`` of the command exceeds the threshold, else 0."""
    if command_name is None:
        return cost
    command = env.command_manager.get_command(command_name)
    speed = command[:, :2].norm(dim=1) + command[:, 2].abs()
    return cost * (speed > command_threshold)


def _of_parts(
    env: ManagerBasedRlEnv,
    values: Tensor,
    sensor_name: str,
    what: str = "body_names of asset_cfg",
) -> Tensor:
    """The values ``[num_envs, bodies, ...]``, checked to be of as many parts as the sensor's."""
    parts = _sensor(env, sensor_name).parts
    if values.shape[1] != len(parts):
        raise ConfigError(
            f"{what} must be one for each part of sensor {sensor_name!r}, {parts}, got "
            f"{values.shape[1]}"
        )
    return values


def foot_height(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg) -> Tensor:
    """Heights of bodies' frames above the ground, ``[num_envs, bodies]`` m."""
    x, y, z = env.scene[asset_cfg.name].data.body_pos_w(asset_cfg).unbind(2)
    return z - env.scene.ground_height(x, y)


def feet_air_time(
    env: ManagerBasedRlEnv, command_name: str, sensor_name: str, threshold: float
) -> Tensor:
    """Steps longer than ``threshold`` s: ``sum (air_time - threshold)`` of the feet that land.

    0 while the command is to stand. As in Isaac Lab's velocity tasks; air time is counted in
    control steps, the step of touch-down included.
    """
    feet = _sensor(env, sensor_name)
    over = (feet.last_air_time - threshold) * feet.first_contact
    return over.sum(1) * _moves(env, command_name)


def feet_air_time_positive_biped(
    env: ManagerBasedRlEnv, command_name: str, sensor_name: str, threshold: float
) -> Tensor:
    """Time on one leg, up to ``threshold`` s: the shorter of one foot's air time and the other
    foot's contact time; 0 on both legs or none.

    0 while the command is to stand. As in Isaac Lab's velocity tasks.
    """
    feet = _sensor(env, sensor_name)
    single = feet.in_contact.sum(1) == 1
    # One of the two is 0.
    shortest = (feet.current_air_time + feet.current_contact_time).amin(1)
    return shortest.clamp(max=threshold) * single * _moves(env, command_name)


def feet_slide(
    env: ManagerBasedRlEnv, sensor_name: str, velocity_sensor_names: tuple[str, ...]
) -> Tensor:
    """Horizontal speed of the feet that are on the ground, summed, m/s. As in Isaac Lab.

    Args:
        sensor_name: contacts of the feet.
        velocity_sensor_names: sensors of the model that measure the velocities of the same feet in
            the world frame (``framelinvel``).
    """
    speeds = [env.scene.sensor(name)[:, :2].norm(dim=1) for name in velocity_sensor_names]
    speed = torch.stack(speeds, dim=1) if speeds else torch.zeros(env.num_envs, 0)
    speed = _of_parts(env, speed, sensor_name, "velocity_sensor_names")
    return (speed * _sensor(env, sensor_name).in_contact).sum(1)


def feet_slip(
    env: ManagerBasedRlEnv,
    sensor_name: str,
    asset_cfg: SceneEntityCfg,
    command_name: str | None = None,
    command_threshold: float = 0.01,
) -> Tensor:
    """Squared horizontal speed of the feet that are on the ground, summed. As in mjlab.

    Args:
        asset_cfg: bodies of the feet.
        command_name: 0 while this velocity command is at most ``command_threshold``.
    """
    velocity = env.scene[asset_cfg.name].data.body_lin_vel_w(asset_cfg)[..., :2]
    squared = _of_parts(env, (velocity * velocity).sum(2), sensor_name)
    cost = (squared * _sensor(env, sensor_name).in_contact).sum(1)
    return _if_moving(env, cost, command_name, command_threshold)


def feet_clearance(
    env: ManagerBasedRlEnv,
    target_height: float,
    asset_cfg: SceneEntityCfg,
    command_name: str | None = None,
    command_threshold: float = 0.01,
) -> Tensor:
    """Distance of the feet from ``target_height`` m, times their horizontal speed. As in mjlab.

    Args:
        asset_cfg: bodies of the feet; heights are those of their frames above the ground.
        command_name: 0 while this velocity command is at most ``command_threshold``.
    """
    speed = env.scene[asset_cfg.name].data.body_lin_vel_w(asset_cfg)[..., :2].norm(dim=2)
    cost = ((foot_height(env, asset_cfg) - target_height).abs() * speed).sum(1)
    return _if_moving(env, cost, command_name, command_threshold)


class feet_swing_height(ManagerTermBase):
    """``(highest / target_height - 1)^2`` of each swing, when the foot lands. As in mjlab.

    Args:
        sensor_name: contacts of the feet, with ``track_air_time``.
        target_height: m.
        asset_cfg: bodies of the feet; heights are those of their frames above the ground.
        command_name: 0 while this velocity command is at most ``command_threshold``.
    """

    def __init__(self, cfg: RewardTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        feet = len(_sensor(env, cfg.params["sensor_name"]).parts)
        self._highest = torch.zeros(env.num_envs, feet, device=env.device)

    def __call__(
        self,
        env: ManagerBasedRlEnv,
        sensor_name: str,
        target_height: Positive,
        asset_cfg: SceneEntityCfg,
        command_name: str | None = None,
        command_threshold: float = 0.01,
    ) -> Tensor:
        feet = _sensor(env, sensor_name)
        heights = _of_parts(env, foot_height(env, asset_cfg), sensor_name)
        error = self._highest / target_height - 1.0
        cost = (error * error * feet.first_contact).sum(1)
        contact = feet.in_contact
        torch.maximum(self._highest, heights, out=self._highest).masked_fill_(contact, 0.0)
        return _if_moving(env, cost, command_name, command_threshold)

    def reset(self, env_ids: Tensor) -> None:
        self._highest.index_fill_(0, env_ids, 0.0)


def soft_landing(
    env: ManagerBasedRlEnv,
    sensor_name: str,
    command_name: str | None = None,
    command_threshold: float = 0.05,
) -> Tensor:
    """Force on the feet that land in this step, summed, N. As in mjlab.

    Args:
        sensor_name: contacts of the feet, with ``force`` and ``track_air_time``.
        command_name: 0 while this velocity command is at most ``command_threshold``.
    """
    feet = _sensor(env, sensor_name)
    cost = (feet.force.norm(dim=2) * feet.first_contact).sum(1)
    return _if_moving(env, cost, command_name, command_threshold)


def self_collision_cost(env: ManagerBasedRlEnv, sensor_name: str) -> Tensor:
    """Number of contacts between parts of the robot.

    Args:
        sensor_name: contacts of the robot's tree with itself: ``mode="subtree"`` and the same
            ``pattern`` for ``primary`` and ``secondary``. The robot needs
            ``EntityCfg(self_collisions=True)`` if its model leaves them out.
    """
    return _sensor(env, sensor_name).found.sum(1)


def undesired_contacts(env: ManagerBasedRlEnv, sensor_name: str, threshold: float) -> Tensor:
    """How many parts feel a force above ``threshold`` N."""
    return (_sensor(env, sensor_name).force.norm(dim=2) > threshold).sum(1).float()


def illegal_contact(env: ManagerBasedRlEnv, sensor_name: str, threshold: float) -> Tensor:
    """Any of the parts feels a force above ``threshold`` N; a termination."""
    return (_sensor(env, sensor_name).force.norm(dim=2) > threshold).any(1)


def foot_contact(env: ManagerBasedRlEnv, sensor_name: str) -> Tensor:
    """Whether each part is in contact, ``[num_envs, parts]``, 0 or 1."""
    return _sensor(env, sensor_name).in_contact.float()


def foot_air_time(env: ManagerBasedRlEnv, sensor_name: str) -> Tensor:
    """Time since each part's last contact, ``[num_envs, parts]`` s; 0 in contact."""
    return _sensor(env, sensor_name).current_air_time


def foot_contact_forces(env: ManagerBasedRlEnv, sensor_name: str) -> Tensor:
    """``log(1 + |force|)`` of the net force on each part in N, ``[num_envs, parts]``."""
    return _sensor(env, sensor_name).force.norm(dim=2).log1p()
