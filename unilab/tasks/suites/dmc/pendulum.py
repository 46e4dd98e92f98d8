"""A weak motor swings a pendulum up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.checks import Positive
from unilab.tasks.suites.dmc.dmc_env import DmcEnv
from unilab.tasks.suites.dmc.tolerance import tolerance
from unilab.tasks.suites.env import SuiteEnvCfg

_UPRIGHT = math.cos(math.radians(8.0))


class Pendulum(DmcEnv):
    """The suite's ``pendulum``."""

    cfg: PendulumCfg
    model = "suite/pendulum.xml"
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


@dataclass(frozen=True, kw_only=True)
class PendulumCfg(SuiteEnvCfg):
    """``dmc/pendulum-swingup``."""

    env_class = Pendulum
    episode_length_s: Positive = 20.0


def swingup() -> PendulumCfg:
    """The Control Suite's pendulum swings up (1 motor, 1000 steps of 0.02 s)."""
    return PendulumCfg()
