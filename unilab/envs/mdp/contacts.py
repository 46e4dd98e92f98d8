"""Reward and termination terms of contacts.

They read sensors of the model, one for each foot or part: ``contact`` sensors with ``data="found"``
or ``data="force"`` (one slot), or ``touch`` sensors. A part is in contact while the length of its
sensor's value, a count or N, exceeds a threshold. MuJoCo computes these sensors at the beginning of
a substep, so their values belong to the beginning of the last substep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.envs.managers.reward import RewardTermCfg
from unilab.envs.managers.term import ManagerTermBase

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "feet_air_time",
    "feet_air_time_positive_biped",
    "feet_slide",
    "illegal_contact",
    "undesired_contacts",
]


def _lengths(env: ManagerBasedRlEnv, sensor_names: tuple[str, ...]) -> Tensor:
    """``[num_envs, len(sensor_names)]``, Euclidean length of each sensor's value."""
    return torch.stack([env.scene.sensor(name).norm(dim=1) for name in sensor_names], dim=1)


def _moves(env: ManagerBasedRlEnv, command_name: str) -> Tensor:
    """``[num_envs]`` bool, whether the commanded horizontal velocity exceeds 0.1 m/s."""
    return env.command_manager.get_command(command_name)[:, :2].norm(dim=1) > 0.1


class _FeetTimes(ManagerTermBase):
    """Keeps how long each foot has been in the air or on the ground, at the control rate."""

    def __init__(self, cfg: RewardTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        feet = len(cfg.params["sensor_names"])
        self.air_time, self.contact_time = torch.zeros(2, env.num_envs, feet, device=env.device)
        """``[num_envs, feet]`` s; 0 in the other phase."""

    def _advance(self, contact: Tensor) -> None:
        self.air_time.add_(self._env.step_dt).masked_fill_(contact, 0.0)
        self.contact_time.add_(self._env.step_dt).masked_fill_(~contact, 0.0)

    def reset(self, env_ids: Tensor) -> None:
        self.air_time.index_fill_(0, env_ids, 0.0)
        self.contact_time.index_fill_(0, env_ids, 0.0)


class feet_air_time(_FeetTimes):
    """Steps longer than ``threshold`` s: ``sum (air_time - threshold)`` of the feet that land.

    0 while the command is to stand. As in Isaac Lab's velocity tasks; air time is counted in
    control steps, the step of touch-down included.
    """

    def __call__(
        self,
        env: ManagerBasedRlEnv,
        command_name: str,
        sensor_names: tuple[str, ...],
        threshold: float,
        contact_threshold: float = 0.0,
    ) -> Tensor:
        contact = _lengths(env, sensor_names) > contact_threshold
        landing = contact & (self.air_time > 0.0)
        flown = self.air_time + env.step_dt
        self._advance(contact)
        return ((flown - threshold) * landing).sum(1) * _moves(env, command_name)


class feet_air_time_positive_biped(_FeetTimes):
    """Time on one leg, up to ``threshold`` s: the shorter of one foot's air time and the other
    foot's contact time; 0 on both legs or none.

    0 while the command is to stand. As in Isaac Lab's velocity tasks.
    """

    def __call__(
        self,
        env: ManagerBasedRlEnv,
        command_name: str,
        sensor_names: tuple[str, ...],
        threshold: float,
        contact_threshold: float = 0.0,
    ) -> Tensor:
        contact = _lengths(env, sensor_names) > contact_threshold
        self._advance(contact)
        single = contact.sum(1) == 1
        shortest = (self.air_time + self.contact_time).amin(1)  # one of the two is 0
        return shortest.clamp(max=threshold) * single * _moves(env, command_name)


def feet_slide(
    env: ManagerBasedRlEnv,
    sensor_names: tuple[str, ...],
    velocity_sensor_names: tuple[str, ...],
    contact_threshold: float = 0.0,
) -> Tensor:
    """Horizontal speed of the feet that are on the ground, summed, m/s.

    Args:
        sensor_names: contacts of the feet.
        velocity_sensor_names: velocities of the same feet in the world frame (``framelinvel``).
        contact_threshold: lower limit of a contact, N for sensors of force; Isaac Lab's is 1 N.
    """
    contact = _lengths(env, sensor_names) > contact_threshold
    speeds = [env.scene.sensor(name)[:, :2].norm(dim=1) for name in velocity_sensor_names]
    return (torch.stack(speeds, dim=1) * contact).sum(1)


def undesired_contacts(
    env: ManagerBasedRlEnv, sensor_names: tuple[str, ...], threshold: float
) -> Tensor:
    """How many of the sensors read more than ``threshold``."""
    return (_lengths(env, sensor_names) > threshold).sum(1).float()


def illegal_contact(
    env: ManagerBasedRlEnv, sensor_names: tuple[str, ...], threshold: float
) -> Tensor:
    """Any of the sensors reads more than ``threshold``; a termination."""
    return (_lengths(env, sensor_names) > threshold).any(1)
