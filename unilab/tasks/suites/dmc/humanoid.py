"""A humanoid stands, walks or runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg, Touching
from unilab.tasks.suites.dmc.tolerance import INF, tolerance

_STAND_HEIGHT = 1.4
_LIMBS = ("left_hand", "left_foot", "right_hand", "right_foot")


@dataclass(frozen=True, kw_only=True)
class HumanoidCfg(MoveCfg):
    """``dmc/humanoid-stand``, ``dmc/humanoid-walk`` and ``dmc/humanoid-run``."""

    episode_length_s: float = 25.0

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Humanoid:
        """Build the environment."""
        return Humanoid(self, num_envs=num_envs, device=device, seed=seed)


class Humanoid(DmcEnv[HumanoidCfg]):
    """The suite's ``humanoid``."""

    model = "humanoid.xml"
    decimation = 5
    fields = ("xmat", "xpos", "sensordata")

    def __init__(
        self,
        cfg: HumanoidCfg,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        super().__init__(cfg, num_envs=num_envs, device=device, seed=seed)
        self._touching = Touching(self.backend.mj_model, num_envs, cfg.num_threads)

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
        standing = tolerance(
            self._position(self.data, "head")[:, 2], (_STAND_HEIGHT, INF), margin=_STAND_HEIGHT / 4
        )
        upright = tolerance(
            self._frame(self.data, "torso")[:, 2, 2],
            (0.9, INF),
            sigmoid="linear",
            margin=1.9,
            value_at_margin=0.0,
        )
        control = tolerance(action, margin=1.0, value_at_margin=0.0, sigmoid="quadratic").mean(1)
        stand = standing * upright * (4.0 + control) / 5.0
        velocity = self._sensor(self.data, "torso_subtreelinvel")[:, :2]
        speed = self.cfg.move_speed
        if speed == 0.0:
            return stand * tolerance(velocity, margin=2.0).mean(1)
        move = tolerance(
            velocity.norm(dim=1), (speed, INF), margin=speed, value_at_margin=0.0, sigmoid="linear"
        )
        return stand * (5.0 * move + 1.0) / 6.0

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        qpos = self._random_pose(rows)
        while (bad := self._touching(qpos).nonzero().flatten()).shape[0]:
            qpos[bad] = self._random_pose(bad.shape[0])
        return {**self._home(rows), "qpos": qpos}


def stand() -> HumanoidCfg:
    """The Control Suite's humanoid stands (21 joints, 1000 steps of 0.025 s)."""
    return HumanoidCfg(move_speed=0.0)


def walk() -> HumanoidCfg:
    """The Control Suite's humanoid walks at 1 m/s (21 joints, 1000 steps of 0.025 s)."""
    return HumanoidCfg(move_speed=1.0)


def run() -> HumanoidCfg:
    """The Control Suite's humanoid runs at 10 m/s (21 joints, 1000 steps of 0.025 s)."""
    return HumanoidCfg(move_speed=10.0)
