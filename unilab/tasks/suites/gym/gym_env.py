"""What Gymnasium's MuJoCo tasks have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import mujoco
import torch
from torch import Tensor

from unilab.checks import Bound
from unilab.errors import CapabilityError, ConfigError
from unilab.tasks.suites.env import SuiteEnv, SuiteEnvCfg, quietly, suite_folder


@dataclass(frozen=True, kw_only=True)
class GymEnvCfg(SuiteEnvCfg):
    """What the Gymnasium tasks can change; names and defaults are Gymnasium's."""

    forward_reward_weight: float = 1.0
    """Reward of 1 m/s."""
    ctrl_cost_weight: float
    """Cost of the squared controls, summed over the actuators."""
    reset_noise_scale: float
    """Of the random offsets, in each coordinate's own unit, that an episode begins with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset_noise_scale < 0.0:
            raise ConfigError(f"reset_noise_scale is {self.reset_noise_scale}: give at least 0")


@dataclass(frozen=True, kw_only=True)
class HealthyCfg(GymEnvCfg):
    """What the tasks of legged robots that may fall can change besides."""

    healthy_reward: float = 1.0
    """Reward of a step in which the robot stays healthy."""
    terminate_when_unhealthy: bool = True
    """Whether an unhealthy robot's episode ends."""
    healthy_z_range: tuple[Bound, Bound]
    """m, heights at which the robot is healthy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("healthy_z_range", self.healthy_z_range)


Cfg = TypeVar("Cfg", bound=GymEnvCfg)
FallingCfg = TypeVar("FallingCfg", bound=HealthyCfg)


class GymEnv(SuiteEnv[Cfg]):
    """A Gymnasium MuJoCo task.

    Derived fields are read as the last substep began with them, because Gymnasium does.

    Args:
        cfg: the task.
        num_envs: environments in the batch, at least 1.
        device: where observations and rewards are published.
        seed: seed of everything that is random in the environment.

    Attributes:
        model: file name of its model in Gymnasium.

    Raises:
        CapabilityError: gymnasium is not installed, or lacks the model.
    """

    model: ClassVar[str]

    def __init__(
        self,
        cfg: Cfg,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        path = str(model_path(self.model))
        model = quietly(lambda: mujoco.MjModel.from_xml_path(path))
        super().__init__(cfg, model, num_envs=num_envs, device=device, seed=seed)

    def _before_step(self) -> None:
        self._x_before = self._x().clone()

    def _x(self) -> Tensor:
        """``[num_envs]`` m, the position whose velocity is rewarded."""
        return self.data["qpos"][:, 0]

    def _forward(self) -> Tensor:
        """``[num_envs]``, the reward for the mean velocity of a step."""
        return self.cfg.forward_reward_weight * (self._x() - self._x_before) / self.step_dt

    def _ctrl_cost(self, action: Tensor) -> Tensor:
        """``[num_envs]``, the reward for the action, which is not positive."""
        return -self.cfg.ctrl_cost_weight * action.square().sum(1)

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        scale = self.cfg.reset_noise_scale
        home = self.backend.default_qpos
        noise = torch.full_like(home, scale)
        return {
            "qpos": home + self._uniform(rows, -noise, noise),
            "qvel": self._velocity_noise(rows, scale),
        }

    def _velocity_noise(self, rows: int, scale: float) -> Tensor:
        """``[rows, nv]``, the velocities that an episode begins with."""
        noise = self.data["qvel"].new_full((self.data["qvel"].shape[1],), scale)
        return self._uniform(rows, -noise, noise)


class FallingEnv(GymEnv[FallingCfg]):
    """A Gymnasium task whose robot has to stay healthy."""

    @abstractmethod
    def _healthy(self) -> Tensor:
        """``[num_envs]`` bool."""

    def _survive(self) -> Tensor:
        """``[num_envs]``, the reward for being healthy."""
        return self.cfg.healthy_reward * self._healthy().double()

    def _terminated(self) -> Tensor:
        if not self.cfg.terminate_when_unhealthy:
            return super()._terminated()
        return ~self._healthy()


def between(value: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Whether values lie within bounds, which are outside."""
    return (value > bounds[0]) & (value < bounds[1])


def check_range(name: str, bounds: tuple[float, float]) -> None:
    """Refuse a range that nothing lies in.

    Raises:
        ConfigError: it is empty.
    """
    if not bounds[0] < bounds[1]:
        raise ConfigError(f"{name} is {bounds}: give the lower bound first")


def model_path(name: str) -> Path:
    """The MJCF file of a model in the installed gymnasium.

    Raises:
        CapabilityError: gymnasium is not installed, or lacks the model.
    """
    path = suite_folder("gym") / "envs" / "mujoco" / "assets" / name
    if not path.is_file():
        raise CapabilityError(
            f'the installed gymnasium has no {path}: pip install --upgrade "unilab-torchrl[gym]"'
        )
    return path
