"""A planar cheetah runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from unilab.checks import Positive
from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg
from unilab.tasks.suites.dmc.tolerance import at_least


class Cheetah(DmcEnv):
    """The suite's ``cheetah``."""

    cfg: CheetahCfg
    model = "suite/cheetah.xml"
    decimation = 1
    fields = ("sensordata",)

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (data["qpos"][:, 1:], data["qvel"])

    def _reward(self, action: Tensor) -> Tensor:
        speed = self.cfg.move_speed
        return at_least(self._sensor(self.data, "torso_subtreelinvel")[:, 0], speed, margin=speed)

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        # Limited joints only: the unlimited ones are the planar root's.
        qpos, home = self._random_pose(rows), self.backend.default_qpos
        qpos[:, :3] = home[:3]
        return {**self._home(rows), "qpos": qpos}

    def _write(self, rows: Tensor, start: dict[str, Tensor]) -> None:
        super()._write(rows, start)
        # Let it settle on the ground.
        self.backend.step_rows(rows, 200)
        self.data["time"][rows] = 0.0


@dataclass(frozen=True, kw_only=True)
class CheetahCfg(MoveCfg):
    """``dmc/cheetah-run``."""

    env_class = Cheetah
    move_speed: Positive
    episode_length_s: Positive = 10.0


def run() -> CheetahCfg:
    """The Control Suite's planar cheetah runs at 10 m/s (6 joints, 1000 steps of 0.01 s)."""
    return CheetahCfg(move_speed=10.0)
