"""Base of Gymnasium's MuJoCo tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from unilab.checks import Bound
from unilab.errors import ConfigError
from unilab.tasks.suites.env import SuiteEnv, SuiteEnvCfg


@dataclass(frozen=True, kw_only=True)
class GymEnvCfg(SuiteEnvCfg):
    """Settings of the Gymnasium tasks; names and defaults are Gymnasium's."""

    forward_reward_weight: float = 1.0
    """Reward of 1 m/s."""
    ctrl_cost_weight: float
    """Cost of the squared controls, summed over the actuators."""
    reset_noise_scale: float
    """Scale of the random offsets that an episode begins with, in each coordinate's unit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            bounds = getattr(self, field.name)
            if field.name.endswith("_range") and not bounds[0] < bounds[1]:
                raise ConfigError(f"{field.name} must be (low, high) with low < high, got {bounds}")


@dataclass(frozen=True, kw_only=True)
class HealthyCfg(GymEnvCfg):
    """Settings of the tasks of legged robots that may fall."""

    healthy_reward: float = 1.0
    """Reward of a step in which the robot stays healthy."""
    terminate_when_unhealthy: bool = True
    """Whether an unhealthy robot's episode ends."""
    healthy_z_range: tuple[Bound, Bound]
    """m, heights at which the robot is healthy."""


class GymEnv(SuiteEnv):
    """A Gymnasium MuJoCo task.

    Derived fields are read as the last substep began with them, because Gymnasium does.
    Velocities begin normally distributed if ``normal_velocities``, else uniformly.
    """

    cfg: GymEnvCfg
    suite = "gym"
    reward_terms: ClassVar[tuple[str, ...]] = ("forward", "ctrl")
    normal_velocities: ClassVar[bool] = False

    def _physics(self, action: Tensor) -> None:
        self._x_before = self._x().clone()
        super()._physics(action)

    def _x(self) -> Tensor:
        """``[num_envs]`` m, the position whose velocity is rewarded."""
        return self.data["qpos"][:, 0]

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (data["qpos"][:, 1:], data["qvel"])

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        velocity = (self._x() - self._x_before) / self.step_dt
        control = -self.cfg.ctrl_cost_weight * action.square().sum(1)
        return self.cfg.forward_reward_weight * velocity, control

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        scale, home = self.cfg.reset_noise_scale, self.backend.default_qpos
        noise = torch.full_like(home, scale)
        qpos = home + self._uniform(rows, -noise, noise)
        width = self.data["qvel"].shape[1]
        if self.normal_velocities:
            return {"qpos": qpos, "qvel": self._normal(rows, width, scale)}
        noise = noise.new_full((width,), scale)
        return {"qpos": qpos, "qvel": self._uniform(rows, -noise, noise)}


class FallingEnv(GymEnv):
    """A Gymnasium task whose robot has to stay healthy."""

    cfg: HealthyCfg
    reward_terms: ClassVar[tuple[str, ...]] = ("forward", "ctrl", "survive")

    @abstractmethod
    def _healthy(self) -> Tensor:
        """``[num_envs]`` bool."""

    def _survived(self) -> Tensor:
        """``[num_envs]`` bool, whether a step earned the reward for surviving."""
        return self._healthy()

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        return (*super()._rewards(action), self.cfg.healthy_reward * self._survived().double())

    def _terminated(self) -> Tensor:
        if not self.cfg.terminate_when_unhealthy:
            return super()._terminated()
        return ~self._healthy()


def between(value: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Whether values lie strictly within bounds."""
    return (value > bounds[0]) & (value < bounds[1])
