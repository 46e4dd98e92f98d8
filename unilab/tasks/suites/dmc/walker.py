"""A planar biped stands, walks or runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from unilab.checks import Positive
from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg
from unilab.tasks.suites.dmc.tolerance import at_least, tolerance

_STAND_HEIGHT = 1.2


class Walker(DmcEnv):
    """The suite's ``walker``."""

    cfg: WalkerCfg
    model = "suite/walker.xml"
    decimation = 10
    fields = ("xmat", "xpos", "sensordata")

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        frames = data["xmat"][:, 9:].unflatten(1, (-1, 9))
        orientations = frames[:, :, [0, 2]].flatten(1)
        height = self._position(data, "torso")[:, 2:]
        return (orientations, height, data["qvel"])

    def _reward(self, action: Tensor) -> Tensor:
        height = self._position(self.data, "torso")[:, 2]
        standing = tolerance(height, (_STAND_HEIGHT, math.inf), margin=_STAND_HEIGHT / 2.0)
        upright = (1.0 + self._frame(self.data, "torso")[:, 2, 2]) / 2.0
        stand = (3.0 * standing + upright) / 4.0
        speed = self.cfg.move_speed
        if speed == 0.0:
            return stand
        forward = self._sensor(self.data, "torso_subtreelinvel")[:, 0]
        move = at_least(forward, speed, margin=speed / 2.0, value_at_margin=0.5)
        return stand * (5.0 * move + 1.0) / 6.0

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        return {**self._home(rows), "qpos": self._random_pose(rows)}


@dataclass(frozen=True, kw_only=True)
class WalkerCfg(MoveCfg):
    """``dmc/walker-stand``, ``dmc/walker-walk`` and ``dmc/walker-run``."""

    env_class = Walker
    episode_length_s: Positive = 25.0


def stand() -> WalkerCfg:
    """The Control Suite's planar biped stands (6 joints, 1000 steps of 0.025 s)."""
    return WalkerCfg(move_speed=0.0)


def walk() -> WalkerCfg:
    """The Control Suite's planar biped walks at 1 m/s (6 joints, 1000 steps of 0.025 s)."""
    return WalkerCfg(move_speed=1.0)


def run() -> WalkerCfg:
    """The Control Suite's planar biped runs at 8 m/s (6 joints, 1000 steps of 0.025 s)."""
    return WalkerCfg(move_speed=8.0)
