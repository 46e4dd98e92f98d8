"""A cart on a rail balances a pole."""

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


class Cartpole(DmcEnv):
    """The suite's ``cartpole``."""

    cfg: CartpoleCfg
    model = "suite/cartpole.xml"
    decimation = 1
    fields = ("xmat",)

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        pole = self._frame(data, "pole_1")
        return data["qpos"][:, :1], pole[:, 2, 2:], pole[:, 0, 2:], data["qvel"]

    def _reward(self, action: Tensor) -> Tensor:
        position = self.data["qpos"][:, 0]
        cosine = self._frame(self.data, "pole_1")[:, 2, 2]
        if self.cfg.sparse:
            return tolerance(position, (-0.25, 0.25)) * tolerance(cosine, (0.995, 1.0))
        upright = (cosine + 1.0) / 2.0
        centered = (1.0 + tolerance(position, margin=2.0)) / 2.0
        control = tolerance(action[:, 0], margin=1.0, value_at_margin=0.0, sigmoid="quadratic")
        slow = (1.0 + tolerance(self.data["qvel"][:, 1], margin=5.0)) / 2.0
        return upright * (4.0 + control) / 5.0 * slow * centered

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        if self.cfg.swing_up:
            qpos = self._normal(rows, 2, 0.01)
            qpos[:, 1] += math.pi
        else:
            bound = torch.tensor((0.1, 0.034), dtype=torch.float64)
            qpos = self._uniform(rows, -bound, bound)
        return {"qpos": qpos, "qvel": self._normal(rows, 2, 0.01)}


@dataclass(frozen=True, kw_only=True)
class CartpoleCfg(SuiteEnvCfg):
    """``dmc/cartpole-balance`` and ``dmc/cartpole-swingup``, and these with ``_sparse``."""

    env_class = Cartpole
    episode_length_s: Positive = 10.0
    swing_up: bool
    """Whether the pole hangs at first."""
    sparse: bool = False
    """Whether the reward is 1 where the pole stands in the middle of the rail, else 0."""


def balance() -> CartpoleCfg:
    """The Control Suite's cart balances a pole (1 motor, 1000 steps of 0.01 s)."""
    return CartpoleCfg(swing_up=False)


def balance_sparse() -> CartpoleCfg:
    """The Control Suite's cart balances a pole, reward 0 or 1 (1 motor, 1000 steps of 0.01 s)."""
    return CartpoleCfg(swing_up=False, sparse=True)


def swingup() -> CartpoleCfg:
    """The Control Suite's cart swings a pole up (1 motor, 1000 steps of 0.01 s)."""
    return CartpoleCfg(swing_up=True)


def swingup_sparse() -> CartpoleCfg:
    """The Control Suite's cart swings a pole up, reward 0 or 1 (1 motor, 1000 steps of 0.01 s)."""
    return CartpoleCfg(swing_up=True, sparse=True)
