"""Gymnasium's v4 tasks, on which most published curves were made: how they differ from v5.

Their contacts are those of MuJoCo 3.3.3, as in the curves of the FlashSAC paper (Kim et al., 2026);
the contacts of the v5 tasks are those of the installed MuJoCo, as in Gymnasium.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import torch
from torch import Tensor

from unilab.tasks.suites.gym.ant_v5 import Ant, AntCfg
from unilab.tasks.suites.gym.gym_env import FallingEnv
from unilab.tasks.suites.gym.humanoid_v5 import Humanoid, HumanoidCfg
from unilab.tasks.suites.gym.planar_v5 import (
    HalfCheetahCfg,
    Hopper,
    HopperCfg,
    Walker2d,
    Walker2dCfg,
    half_cheetah_v5,
)


class FallingV4(FallingEnv):
    """A v4 task whose robot has to stay healthy.

    The step in which it falls earns the reward for surviving, unless the episode continues.
    """

    def _edit(self, spec: mujoco.MjSpec) -> None:
        # MuJoCo adds the margins of two geoms, and took the larger one then. In each of these
        # models all geoms have the same margin.
        for geom in spec.geoms:
            geom.margin /= 2.0

    def _survived(self) -> Tensor:
        healthy = super()._survived()
        return torch.ones_like(healthy) if self.cfg.terminate_when_unhealthy else healthy


class HopperV4(FallingV4, Hopper):
    """Gymnasium's ``Hopper-v4``."""

    cfg: HopperV4Cfg


@dataclass(frozen=True, kw_only=True)
class HopperV4Cfg(HopperCfg):
    """``gym/Hopper-v4``."""

    env_class = HopperV4


class Walker2dV4(FallingV4, Walker2d):
    """Gymnasium's ``Walker2d-v4``: the right foot has less friction than the left one."""

    model = "envs/mujoco/assets/walker2d.xml"


@dataclass(frozen=True, kw_only=True)
class Walker2dV4Cfg(Walker2dCfg):
    """``gym/Walker2d-v4``."""

    env_class = Walker2dV4


class AntV4(FallingV4, Ant):
    """Gymnasium's ``Ant-v4``: without contact forces in observation and reward."""

    cfg: AntV4Cfg


@dataclass(frozen=True, kw_only=True)
class AntV4Cfg(AntCfg):
    """``gym/Ant-v4``."""

    env_class = AntV4


class HumanoidV4(FallingV4, Humanoid):
    """Gymnasium's ``Humanoid-v4``: the world's rows are observed too, and contacts cost nothing."""

    cfg: HumanoidV4Cfg


@dataclass(frozen=True, kw_only=True)
class HumanoidV4Cfg(HumanoidCfg):
    """``gym/Humanoid-v4``."""

    env_class = HumanoidV4


def half_cheetah_v4() -> HalfCheetahCfg:
    """As gym/HalfCheetah-v5: v4 is the same task (6 joints, 1000 steps of 0.05 s)."""
    return half_cheetah_v5()


def hopper_v4() -> HopperV4Cfg:
    """As gym/Hopper-v5 with contacts of MuJoCo 3.3.3 (3 joints, 1000 steps of 0.008 s)."""
    return HopperV4Cfg()


def walker2d_v4() -> Walker2dV4Cfg:
    """As gym/Walker2d-v5 with less friction at one foot (6 joints, 1000 steps of 0.008 s)."""
    return Walker2dV4Cfg()


def ant_v4() -> AntV4Cfg:
    """As gym/Ant-v5 with contacts of MuJoCo 3.3.3, unobserved (8 joints, 1000 steps of 0.05 s)."""
    return AntV4Cfg()


def humanoid_v4() -> HumanoidV4Cfg:
    """As gym/Humanoid-v5, contacts of MuJoCo 3.3.3, no cost (17 joints, 1000 steps of 0.015 s)."""
    return HumanoidV4Cfg()
