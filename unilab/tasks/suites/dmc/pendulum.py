"""A weak motor swings a pendulum up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.tasks.suites.dmc.dmc_env import DmcEnv, DmcEnvCfg
from unilab.tasks.suites.dmc.tolerance import tolerance

_UPRIGHT = math.cos(math.radians(8.0))


@dataclass(frozen=True, kw_only=True)
class PendulumCfg(DmcEnvCfg):
    """``dmc/pendulum-swingup``."""

    episode_length_s: float = 20.0

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Pendulum:
        """Build the environment."""
        return Pendulum(self, num_envs=num_envs, device=device, seed=seed)


class Pendulum(DmcEnv[PendulumCfg]):
    """The suite's ``pendulum``."""

    model = "pendulum.xml"
    decimation = 1
    fields = ("xmat",)

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        pole = self._frame(data, "pole")
        return pole[:, 2, 2:], pole[:, 0, 2:], data["qvel"]

    def _reward(self, action: Tensor) -> Tensor:
        return tolerance(self._frame(self.data, "pole")[:, 2, 2], (_UPRIGHT, 1.0))

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        turn = torch.tensor((math.pi,), dtype=torch.float64)
        return {**self._home(rows), "qpos": self._uniform(rows, -turn, turn)}


def swingup() -> PendulumCfg:
    """The Control Suite's pendulum swings up (1 motor, 1000 steps of 0.02 s)."""
    return PendulumCfg()
