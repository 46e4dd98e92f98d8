"""A planar cheetah runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg
from unilab.tasks.suites.dmc.tolerance import INF, tolerance

_SETTLING_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class CheetahCfg(MoveCfg):
    """``dmc/cheetah-run``."""

    episode_length_s: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.must_move("cheetah")

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Cheetah:
        """Build the environment."""
        return Cheetah(self, num_envs=num_envs, device=device, seed=seed)


class Cheetah(DmcEnv[CheetahCfg]):
    """The suite's ``cheetah``."""

    model = "cheetah.xml"
    decimation = 1
    fields = ("sensordata",)

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (data["qpos"][:, 1:], data["qvel"])

    def _reward(self, action: Tensor) -> Tensor:
        speed = self.cfg.move_speed
        return tolerance(
            self._sensor(self.data, "torso_subtreelinvel")[:, 0],
            (speed, INF),
            margin=speed,
            value_at_margin=0.0,
            sigmoid="linear",
        )

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        # Limited joints only: the unlimited ones are the planar root's.
        qpos, home = self._random_pose(rows), self.backend.default_qpos
        qpos[:, :3] = home[:3]
        return {**self._home(rows), "qpos": qpos}

    def _write(self, rows: Tensor, start: dict[str, Tensor]) -> None:
        super()._write(rows, start)
        # Let it come to rest on the ground.
        self.backend.step_rows(rows, _SETTLING_STEPS)
        self.data["time"][rows] = 0.0


def run() -> CheetahCfg:
    """The Control Suite's planar cheetah runs at 10 m/s (6 joints, 1000 steps of 0.01 s)."""
    return CheetahCfg(move_speed=10.0)
