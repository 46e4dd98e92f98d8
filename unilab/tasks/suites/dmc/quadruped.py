"""A four-legged robot walks or runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import mujoco
import torch
from torch import Tensor

from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg, Touching
from unilab.tasks.suites.dmc.tolerance import INF, tolerance

_TIME_LIMIT = 20.0  # s, by which the suite sizes the floor


@dataclass(frozen=True, kw_only=True)
class QuadrupedCfg(MoveCfg):
    """``dmc/quadruped-walk`` and ``dmc/quadruped-run``."""

    episode_length_s: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.must_move("quadruped")

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> Quadruped:
        """Build the environment."""
        return Quadruped(self, num_envs=num_envs, device=device, seed=seed)


class Quadruped(DmcEnv[QuadrupedCfg]):
    """The suite's ``quadruped``, on a floor."""

    model = "quadruped.xml"
    decimation = 4
    fields = ("xmat", "xpos", "sensordata")

    def __init__(
        self,
        cfg: QuadrupedCfg,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        super().__init__(cfg, num_envs=num_envs, device=device, seed=seed)
        self._touching = Touching(self.backend.mj_model, num_envs, cfg.num_threads)

    def _edit(self, spec: mujoco.MjSpec, cfg: QuadrupedCfg) -> None:
        for name in ("wall_px", "wall_py", "wall_nx", "wall_ny", "terrain"):
            spec.delete(spec.geom(name))
        spec.delete(spec.body("ball"))
        spec.delete(spec.site("target"))
        for sensor in list(spec.sensors):
            if sensor.type == mujoco.mjtSensor.mjSENS_RANGEFINDER:
                spec.delete(sensor)
        size = _TIME_LIMIT * cfg.move_speed
        spec.geom("floor").size = (size, size, 0.5)

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        angles, rates = self._hinges
        return (
            data["qpos"][:, angles],
            data["qvel"][:, rates],
            data["act"],
            self._sensor(data, "velocimeter"),
            self._frame(data, "torso")[:, 2, 2:],
            data["sensordata"][:, self._imu],
            data["sensordata"][:, self._feet].asinh(),
        )

    @cached_property
    def _imu(self) -> Tensor:
        return self._columns(mujoco.mjtSensor.mjSENS_GYRO, mujoco.mjtSensor.mjSENS_ACCELEROMETER)

    @cached_property
    def _feet(self) -> Tensor:
        return self._columns(mujoco.mjtSensor.mjSENS_FORCE, mujoco.mjtSensor.mjSENS_TORQUE)

    def _columns(self, *kinds: mujoco.mjtSensor) -> Tensor:
        """Columns of the sensors of some kinds, in the model's order."""
        model = self.backend.mj_model
        types = [int(kind) for kind in kinds]
        found = [s for s in map(model.sensor, range(model.nsensor)) if int(s.type[0]) in types]
        return torch.cat([torch.arange(int(s.adr[0]), int(s.adr[0] + s.dim[0])) for s in found])

    def _reward(self, action: Tensor) -> Tensor:
        speed = self.cfg.move_speed
        move = tolerance(
            self._sensor(self.data, "velocimeter")[:, 0],
            (speed, INF),
            margin=speed,
            value_at_margin=0.5,
            sigmoid="linear",
        )
        upright = tolerance(
            self._frame(self.data, "torso")[:, 2, 2],
            (1.0, INF),
            sigmoid="linear",
            margin=2.0,
            value_at_margin=0.0,
        )
        return upright * move

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        start = self._home(rows)
        qpos = start["qpos"]
        quat = self._normal(rows, 4, 1.0)
        qpos[:, 3:7] = quat / quat.norm(dim=1, keepdim=True)
        # Up in steps of 1 cm, from within the floor to where nothing touches.
        qpos[:, :3] = 0.0
        low = torch.arange(rows)
        while (low := low[self._touching(qpos[low])]).shape[0]:
            qpos[low, 2] += 0.01
        return start


def walk() -> QuadrupedCfg:
    """The Control Suite's quadruped walks at 0.5 m/s (12 motors, 1000 steps of 0.02 s)."""
    return QuadrupedCfg(move_speed=0.5)


def run() -> QuadrupedCfg:
    """The Control Suite's quadruped runs at 5 m/s (12 motors, 1000 steps of 0.02 s)."""
    return QuadrupedCfg(move_speed=5.0)
