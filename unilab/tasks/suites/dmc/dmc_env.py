"""Base of the tasks of the DeepMind Control Suite."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch
from torch import Tensor

from unilab.errors import ConfigError
from unilab.tasks.suites.env import SuiteEnv, SuiteEnvCfg


@dataclass(frozen=True, kw_only=True)
class MoveCfg(SuiteEnvCfg):
    """Settings of robots that move at a speed."""

    move_speed: float
    """m/s at which the reward for moving is 1; 0 rewards standing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.move_speed < 0.0:
            raise ConfigError(f"move_speed must be at least 0, got {self.move_speed}")


class DmcEnv(SuiteEnv):
    """A task of the DeepMind Control Suite.

    Fields that follow from positions and velocities are up to date with the state; sensors of
    acceleration, force and touch are those of the last substep, as ``dm_control`` has them.
    """

    suite = "dmc"
    current = True
    reward_terms = ("task",)

    @abstractmethod
    def _reward(self, action: Tensor) -> Tensor:
        """``[num_envs]``, the reward after a step."""

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        return (self._reward(action),)

    @cached_property
    def _disableflags(self) -> Tensor:
        return self.backend.expand("opt.disableflags")

    def _write(self, rows: Tensor, start: dict[str, Tensor]) -> None:
        qpos, qvel = start["qpos"], start["qvel"]
        self.backend.set_state_tensor(rows, qpos, qvel)
        if "act" in start:
            self.data["act"][rows] = start["act"]
        # At a reset dm_control computes the sensors with actuation disabled.
        enabled = self._disableflags[rows]
        self._disableflags[rows] = enabled | int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
        self.backend.set_state_tensor(rows, qpos, qvel, reset=False)
        self._disableflags[rows] = enabled

    @cached_property
    def _body(self) -> dict[str, int]:
        """Indices of the bodies by name."""
        return {name: i for i, name in enumerate(self.backend.bodies)}

    def _sensor(self, data: Mapping[str, Tensor], *names: str) -> Tensor:
        """``[n, sum of widths]``, sensors side by side."""
        columns = self.backend.sensor_columns
        return torch.cat([data["sensordata"][:, columns[name]] for name in names], 1)

    def _position(self, data: Mapping[str, Tensor], body: str) -> Tensor:
        """``[n, 3]`` m, of a body's frame."""
        at = 3 * self._body[body]
        return data["xpos"][:, at : at + 3]

    def _frame(self, data: Mapping[str, Tensor], body: str) -> Tensor:
        """``[n, 3, 3]``, the axes of a body's frame in its columns."""
        at = 9 * self._body[body]
        return data["xmat"][:, at : at + 9].unflatten(1, (3, 3))

    def _seen_from(self, data: Mapping[str, Tensor], body: str, others: Sequence[str]) -> Tensor:
        """``[n, 3 * len(others)]`` m, positions of bodies in the frame of another."""
        there = torch.stack([self._position(data, other) for other in others], 1)
        offset = there - self._position(data, body).unsqueeze(1)
        return (offset @ self._frame(data, body)).flatten(1)

    @cached_property
    def _hinges(self) -> tuple[Tensor, Tensor]:
        """Columns of the hinge joints in qpos and in qvel."""
        joints = [joint for joint in self.backend.joints if joint.type == "hinge"]
        angles, rates = ([getattr(j, at).start for j in joints] for at in ("qpos", "qvel"))
        return torch.tensor(angles), torch.tensor(rates)

    @cached_property
    def _contacts(self) -> tuple[Batch, np.ndarray, np.ndarray]:
        """Simulations that only find contacts, with their qpos and numbers of contacts."""
        batch = Batch(self.backend.mj_model, self.num_envs, self.cfg.num_threads)
        return batch, batch.bind("qpos"), batch.bind("ncon")

    def _touching(self, qpos: Tensor) -> Tensor:
        """``[n]`` bool, whether poses ``[n, nq]`` touch something."""
        batch, poses, ncon = self._contacts
        rows = np.arange(qpos.shape[0])
        poses[rows] = qpos.numpy()
        batch.forward(rows, stage=int(mujoco.mjtStage.mjSTAGE_POS))
        return torch.from_numpy(ncon[rows] > 0)

    def _home(self, rows: int) -> dict[str, Tensor]:
        """The model's initial pose, at rest."""
        qpos = self.backend.default_qpos.repeat(rows, 1)
        return {"qpos": qpos, "qvel": qpos.new_zeros(rows, self.data["qvel"].shape[1])}

    def _random_pose(self, rows: int) -> Tensor:
        """``[rows, nq]``: joints uniform in their ranges, unlimited hinges in [-pi, pi].

        ``dm_control.suite.utils.randomizers.randomize_limited_and_rotational_joints`` for models
        without ball joints. Unlimited slides and the position of a free root stay.
        """
        low, high = self.backend.default_qpos.clone(), self.backend.default_qpos.clone()
        for joint in self.backend.joints:
            if math.isfinite(joint.range[0]):
                low[joint.qpos], high[joint.qpos] = joint.range
            elif joint.type == "hinge":
                low[joint.qpos], high[joint.qpos] = -math.pi, math.pi
        qpos = self._uniform(rows, low, high)
        if self.backend.joints[0].type == "free":
            # Uniform in the unit cube, not on the sphere: the suite does so.
            quat = self._uniform(rows, torch.zeros(4).double(), torch.ones(4).double())
            qpos[:, 3:7] = quat / quat.norm(dim=1, keepdim=True)
        return qpos
