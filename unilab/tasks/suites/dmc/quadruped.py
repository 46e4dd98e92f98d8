"""A four-legged robot walks or runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import torch
from torch import Tensor

from unilab.checks import Positive
from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg
from unilab.tasks.suites.dmc.tolerance import at_least

_TOES = ("front_left", "front_right", "back_right", "back_left")
_FEET = tuple(f"{kind}_toe_{toe}" for kind in ("force", "torque") for toe in _TOES)


class Quadruped(DmcEnv):
    """The suite's ``quadruped``, on a floor."""

    cfg: QuadrupedCfg
    model = "suite/quadruped.xml"
    decimation = 4
    fields = ("xmat", "xpos", "sensordata")

    def _edit(self, spec: mujoco.MjSpec) -> None:
        for name in ("wall_px", "wall_py", "wall_nx", "wall_ny", "terrain"):
            spec.delete(spec.geom(name))
        spec.delete(spec.body("ball"))
        spec.delete(spec.site("target"))
        for sensor in list(spec.sensors):
            if sensor.type == mujoco.mjtSensor.mjSENS_RANGEFINDER:
                spec.delete(sensor)
        size = 20.0 * self.cfg.move_speed  # as far as it gets in an episode of the suite
        spec.geom("floor").size = (size, size, 0.5)

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        angles, rates = self._hinges
        return (
            data["qpos"][:, angles],
            data["qvel"][:, rates],
            data["act"],
            self._sensor(data, "velocimeter"),
            self._frame(data, "torso")[:, 2, 2:],
            self._sensor(data, "imu_accel", "imu_gyro"),
            self._sensor(data, *_FEET).asinh(),
        )

    def _reward(self, action: Tensor) -> Tensor:
        speed = self.cfg.move_speed
        forward = self._sensor(self.data, "velocimeter")[:, 0]
        move = at_least(forward, speed, margin=speed, value_at_margin=0.5)
        upright = at_least(self._frame(self.data, "torso")[:, 2, 2], 1.0, margin=2.0)
        return upright * move

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        start = self._home(rows)
        qpos = start["qpos"]
        quat = self._normal(rows, 4, 1.0)
        qpos[:, 3:7] = quat / quat.norm(dim=1, keepdim=True)
        # Raise it from inside the floor in steps of 1 cm until nothing touches.
        qpos[:, :3] = 0.0
        low = torch.arange(rows)
        while (low := low[self._touching(qpos[low])]).shape[0]:
            qpos[low, 2] += 0.01
        return start


@dataclass(frozen=True, kw_only=True)
class QuadrupedCfg(MoveCfg):
    """``dmc/quadruped-walk`` and ``dmc/quadruped-run``."""

    env_class = Quadruped
    move_speed: Positive
    episode_length_s: Positive = 20.0


def walk() -> QuadrupedCfg:
    """The Control Suite's quadruped walks at 0.5 m/s (12 motors, 1000 steps of 0.02 s)."""
    return QuadrupedCfg(move_speed=0.5)


def run() -> QuadrupedCfg:
    """The Control Suite's quadruped runs at 5 m/s (12 motors, 1000 steps of 0.02 s)."""
    return QuadrupedCfg(move_speed=5.0)
