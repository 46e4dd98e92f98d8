"""A planar biped walks forward."""

from __future__ import annotations

from dataclasses import dataclass

from unilab.checks import Bound
from unilab.tasks.suites.gym.hopper_v5 import PlanarLeggedCfg, PlanarLeggedEnv


class Walker2d(PlanarLeggedEnv):
    """Gymnasium's ``Walker2d-v5``."""

    model = "envs/mujoco/assets/walker2d_v5.xml"


@dataclass(frozen=True, kw_only=True)
class Walker2dCfg(PlanarLeggedCfg):
    """``gym/Walker2d-v5``."""

    env_class = Walker2d
    healthy_z_range: tuple[Bound, Bound] = (0.8, 2.0)
    healthy_angle_range: tuple[Bound, Bound] = (-1.0, 1.0)


def walker2d_v5() -> Walker2dCfg:
    """Gymnasium's planar biped walks forward (6 joints, 1000 steps of 0.008 s)."""
    return Walker2dCfg()
