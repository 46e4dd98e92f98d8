"""What Gymnasium's MuJoCo tasks have in common."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import mujoco
import torch
from torch import Tensor

from unilab.errors import CapabilityError, ConfigError
from unilab.tasks.ported import PortedEnv, PortedEnvCfg, quietly


@dataclass(frozen=True, kw_only=True)
class GymEnvCfg(PortedEnvCfg):
    """What the Gymnasium tasks can change; names and defaults are Gymnasium's."""

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset_noise_scale < 0.0:
            raise ConfigError(f"reset_noise_scale is {self.reset_noise_scale}: give at least 0")


Cfg = TypeVar("Cfg", bound=GymEnvCfg)


class GymEnv(PortedEnv[Cfg]):
    """A Gymnasium MuJoCo task.

    Args:
        cfg: the task.
        model: file name of its model in Gymnasium.
        decimation: physics substeps of one control step.
        num_envs: environments in the batch, at least 1.
        device: where observations and rewards are published.
        seed: seed of everything that is random in the environment.

    Raises:
        CapabilityError: gymnasium is not installed, or lacks the model.
    """

    def __init__(
        self,
        cfg: Cfg,
        model: str,
        decimation: int,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        path = str(_model_path(model))
        compiled = quietly(lambda: mujoco.MjModel.from_xml_path(path))
        super().__init__(
            cfg, compiled, decimation=decimation, num_envs=num_envs, device=device, seed=seed
        )

    def _before_step(self) -> None:
        self._x_before = self._x().clone()

    def _x(self) -> Tensor:
        """``[num_envs]`` m, the position whose velocity is rewarded."""
        return self.data["qpos"][:, 0]

    def _forward(self) -> Tensor:
        """``[num_envs]``, the reward for the mean velocity of a step."""
        return self.cfg.forward_reward_weight * (self._x() - self._x_before) / self.step_dt

    def _initial_state(self, rows: int) -> tuple[Tensor, Tensor]:
        scale = self.cfg.reset_noise_scale
        home = self.backend.default_qpos
        return home + self._uniform(rows, home.shape[0], scale), self._velocity_noise(rows, scale)

    def _velocity_noise(self, rows: int, scale: float) -> Tensor:
        return self._uniform(rows, self.data["qvel"].shape[1], scale)


def _model_path(name: str) -> Path:
    # Found without being imported: nothing but its files is needed.
    spec = find_spec("gymnasium")
    if spec is None or spec.origin is None:
        raise CapabilityError(
            "gym/ tasks read their models from gymnasium, which is not installed: "
            'pip install "unilab-torchrl[gym]"'
        )
    path = Path(spec.origin).parent / "envs" / "mujoco" / "assets" / name
    if not path.is_file():
        raise CapabilityError(
            f'the installed gymnasium has no {path}: pip install --upgrade "unilab-torchrl[gym]"'
        )
    return path
