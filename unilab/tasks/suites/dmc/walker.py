"""A planar biped stands, walks or runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg
from unilab.tasks.suites.dmc.tolerance import INF, tolerance

_STAND_HEIGHT = 1.2


@dataclass(frozen=True, kw_only=True)
class WalkerCfg(MoveCfg):
    """``dmc/walker-stand``, ``dmc/walker-walk`` and ``dmc/walker-run``."""

    episode_length_s: float = 25.0

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Walker:
        """Build the environment."""
        return Walker(self, num_envs=num_envs, device=device, seed=seed)


class Walker(DmcEnv[WalkerCfg]):
    """The suite's ``walker``."""

    model = "walker.xml"
    decimation = 10
    fields = ("xmat", "xpos", "sensordata")

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        frames = data["xmat"][:, 9:].unflatten(1, (-1, 9))
        orientations = frames[:, :, [0, 2]].flatten(1)
        height = self._position(data, "torso")[:, 2:]
        return (orientations, height, data["qvel"])

    def _reward(self, action: Tensor) -> Tensor:
        height = self._position(self.data, "torso")[:, 2]
        standing = tolerance(height, (_STAND_HEIGHT, INF), margin=_STAND_HEIGHT / 2.0)
        upright = (1.0 + self._frame(self.data, "torso")[:, 2, 2]) / 2.0
        stand = (3.0 * standing + upright) / 4.0
        speed = self.cfg.move_speed
        if speed == 0.0:
            return stand
        move = tolerance(
            self._sensor(self.data, "torso_subtreelinvel")[:, 0],
            (speed, INF),
            margin=speed / 2.0,
            value_at_margin=0.5,
            sigmoid="linear",
        )
        return stand * (5.0 * move + 1.0) / 6.0

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        return {**self._home(rows), "qpos": self._random_pose(rows)}


def stand() -> WalkerCfg:
    """The Control Suite's planar biped stands (6 joints, 1000 steps of 0.025 s)."""
    return WalkerCfg(move_speed=0.0)


def walk() -> WalkerCfg:
    """The Control Suite's planar biped walks at 1 m/s (6 joints, 1000 steps of 0.025 s)."""
    return WalkerCfg(move_speed=1.0)


def run() -> WalkerCfg:
    """The Control Suite's planar biped runs at 8 m/s (6 joints, 1000 steps of 0.025 s)."""
    return WalkerCfg(move_speed=8.0)
