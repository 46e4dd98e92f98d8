"""A dog of bones and muscles stands, walks, trots or runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import mujoco
import torch
from torch import Tensor

from unilab.checks import Positive
from unilab.tasks.suites.dmc.dmc_env import DmcEnv, MoveCfg
from unilab.tasks.suites.dmc.tolerance import at_least, tolerance

_MIN_UPRIGHT = math.cos(math.radians(30.0))
_TRUNK = ("torso", "pelvis")
_SOLES = ("palm_L", "palm_R", "sole_L", "sole_R")


class Dog(DmcEnv):
    """The suite's ``dog``, without a ball."""

    cfg: DogCfg
    model = "suite/dog.xml"
    decimation = 3
    fields = ("xmat", "xpos", "sensordata")

    @cached_property
    def _standing(self) -> list[float]:
        """m, heights of torso and pelvis that count as standing: 0.9 of those at home."""
        data = mujoco.MjData(self.backend.mj_model)
        mujoco.mj_kinematics(self.backend.mj_model, data)
        return [0.9 * float(data.body(name).xpos[2]) for name in _TRUNK]

    @cached_property
    def _weight(self) -> float:
        """N."""
        model = self.backend.mj_model
        return -float(model.opt.gravity[2]) * float(model.body_subtreemass[self._body["torso"]])

    def _edit(self, spec: mujoco.MjSpec) -> None:
        spec.delete(spec.body("ball"))
        for name in ("ball", "head"):
            spec.delete(spec.camera(name))
        for name in ("target", "wall_px", "wall_py", "wall_nx", "wall_ny"):
            spec.delete(spec.geom(name))
        size = 15.0 * (self.cfg.move_speed or 1.0)  # as far as it gets in an episode of the suite
        spec.geom("floor").size = (size, size, 0.1)

    def _heights(self, data: Mapping[str, Tensor]) -> Tensor:
        """``[n, 2]`` m, of torso and pelvis."""
        bodies = [self._position(data, name)[:, 2] for name in _TRUNK]
        return torch.stack(bodies, 1)

    def _tilt(self, data: Mapping[str, Tensor]) -> Tensor:
        """``[n, 3, 3]``, the vertical axis in the frames of skull, torso and pelvis."""
        frames = [self._frame(data, name)[:, 2] for name in ("skull", *_TRUNK)]
        return torch.stack(frames, 1)

    def _velocity(self, data: Mapping[str, Tensor]) -> Tensor:
        """``[n, 3]`` m/s, of the centre of mass in the torso's frame."""
        velocity = self._sensor(data, "torso_linvel").unsqueeze(1)
        return (velocity @ self._frame(data, "torso")).squeeze(1)

    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        angles, rates = self._hinges
        return (
            data["qpos"][:, angles],
            data["qvel"][:, rates],
            self._heights(data),
            self._tilt(data).flatten(1),
            self._velocity(data),
            self._sensor(data, "accelerometer", "velocimeter", "gyro"),
            self._sensor(data, "foot_L", "foot_R", "hand_L", "hand_R"),
            self._sensor(data, *_SOLES),
            data["act"],
        )

    def _reward(self, action: Tensor) -> Tensor:
        (torso, pelvis), weight = self._standing, self._weight
        heights = self._heights(self.data)
        high = tolerance(heights[:, 0], (torso, math.inf), margin=torso)
        high = high * tolerance(heights[:, 1], (pelvis, math.inf), margin=pelvis)
        tilt = self._tilt(self.data)[:, :, 2]
        upright = at_least(tilt, _MIN_UPRIGHT, margin=_MIN_UPRIGHT + 1.0).prod(1)
        load = self._sensor(self.data, *_SOLES).sum(1)
        touch = at_least(load, weight, margin=weight, value_at_margin=0.9)
        stand = high * upright * touch
        speed = self.cfg.move_speed
        if speed == 0.0:
            return stand
        forward = tolerance(
            self._velocity(self.data)[:, 0],
            (speed, 2.0 * speed),
            margin=max(1.0, speed),
            value_at_margin=0.0,
            sigmoid="linear",
        )
        return stand * (4.0 * forward + 1.0) / 5.0

    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        start = self._home(rows)
        zero = torch.zeros(1, dtype=torch.float64)
        half = self._uniform(rows, zero, zero + math.pi)[:, 0]
        quat = torch.stack((half.cos(), 0.0 * half, 0.0 * half, half.sin()), 1)
        start["qpos"][:, 3:7] = quat
        start["qvel"][:, [0, 1, 5]] = self._normal(rows, 3, 2.0)
        bounds = torch.tensor([a.ctrl_range for a in self.backend.actuators], dtype=torch.float64)
        start["act"] = self._uniform(rows, bounds[:, 0], bounds[:, 1])
        return start


@dataclass(frozen=True, kw_only=True)
class DogCfg(MoveCfg):
    """``dmc/dog-stand``, ``dmc/dog-walk``, ``dmc/dog-trot`` and ``dmc/dog-run``."""

    env_class = Dog
    episode_length_s: Positive = 15.0


def stand() -> DogCfg:
    """The Control Suite's dog stands (38 motors, 1000 steps of 0.015 s)."""
    return DogCfg(move_speed=0.0)


def walk() -> DogCfg:
    """The Control Suite's dog walks at 1 m/s (38 motors, 1000 steps of 0.015 s)."""
    return DogCfg(move_speed=1.0)


def trot() -> DogCfg:
    """The Control Suite's dog trots at 3 m/s (38 motors, 1000 steps of 0.015 s)."""
    return DogCfg(move_speed=3.0)


def run() -> DogCfg:
    """The Control Suite's dog runs at 9 m/s (38 motors, 1000 steps of 0.015 s)."""
    return DogCfg(move_speed=9.0)
