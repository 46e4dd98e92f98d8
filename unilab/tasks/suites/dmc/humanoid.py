"""A humanoid stands, walks or runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from unilab.checks import Positive
from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg
from unilab.tasks.suites.dmc.tolerance import at_least, tolerance

_STAND_HEIGHT = 1.4
_LIMBS = ("left_hand", "left_foot", "right_hand", "right_foot")


class Humanoid(DmcEnv):
    """The suite's ``humanoid``."""

    cfg: HumanoidCfg
    model = "suite/humanoid.xml"
    decimation = 5
    fields = ("xmat", "xpos", "sensordata")

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (
            data["qpos"][:, 7:],
            self._position(data, "head")[:, 2:],
            self._seen_from(data, "torso", _LIMBS),
            self._frame(data, "torso")[:, 2],
            self._sensor(data, "torso_subtreelinvel"),
            data["qvel"],
        )

    def _reward(self, action: Tensor) -> Tensor:
        head = self._position(self.data, "head")[:, 2]
        standing = tolerance(head, (_STAND_HEIGHT, math.inf), margin=_STAND_HEIGHT / 4)
        upright = at_least(self._frame(self.data, "torso")[:, 2, 2], 0.9, margin=1.9)
        control = tolerance(action, margin=1.0, value_at_margin=0.0, sigmoid="quadratic").mean(1)
        stand = standing * upright * (4.0 + control) / 5.0
        velocity = self._sensor(self.data, "torso_subtreelinvel")[:, :2]
        speed = self.cfg.move_speed
        if speed == 0.0:
            return stand * tolerance(velocity, margin=2.0).mean(1)
        move = at_least(velocity.norm(dim=1), speed, margin=speed)
        return stand * (5.0 * move + 1.0) / 6.0

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        qpos = self._random_pose(rows)
        while (bad := self._touching(qpos).nonzero().flatten()).shape[0]:
            qpos[bad] = self._random_pose(bad.shape[0])
        return {**self._home(rows), "qpos": qpos}


@dataclass(frozen=True, kw_only=True)
class HumanoidCfg(MoveCfg):
    """``dmc/humanoid-stand``, ``dmc/humanoid-walk`` and ``dmc/humanoid-run``."""

    env_class = Humanoid
    episode_length_s: Positive = 25.0


def stand() -> HumanoidCfg:
    """The Control Suite's humanoid stands (21 joints, 1000 steps of 0.025 s)."""
    return HumanoidCfg(move_speed=0.0)


def walk() -> HumanoidCfg:
    """The Control Suite's humanoid walks at 1 m/s (21 joints, 1000 steps of 0.025 s)."""
    return HumanoidCfg(move_speed=1.0)


def run() -> HumanoidCfg:
    """The Control Suite's humanoid runs at 10 m/s (21 joints, 1000 steps of 0.025 s)."""
    return HumanoidCfg(move_speed=10.0)
