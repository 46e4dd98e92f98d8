"""What tasks of the DeepMind Control Suite have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeVar

import mujoco
import torch
from mujoco.batch import Batch
from torch import Tensor

from unilab.errors import CapabilityError, ConfigError
from unilab.tasks.suites.env import SuiteEnv, SuiteEnvCfg, quietly, suite_folder


@dataclass(frozen=True, kw_only=True)
class DmcEnvCfg(SuiteEnvCfg):
    """What every task of the suite can change."""


@dataclass(frozen=True, kw_only=True)
class MoveCfg(DmcEnvCfg):
    """What the tasks of robots that move at a speed can change."""

    move_speed: float
    """m/s at which the reward for moving is 1; 0 rewards standing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.move_speed < 0.0:
            raise ConfigError(f"move_speed is {self.move_speed}: give at least 0")

    def must_move(self, robot: str) -> None:
        """Refuse a speed of 0 for a robot that is not rewarded for standing.

        Raises:
            ConfigError: the speed is 0.
        """
        if self.move_speed == 0.0:
            raise ConfigError(f"move_speed is 0: the {robot} has no task of standing, give m/s")


Cfg = TypeVar("Cfg", bound=DmcEnvCfg)


class DmcEnv(SuiteEnv[Cfg]):
    """A task of the DeepMind Control Suite.

    Fields that follow from positions and velocities are up to date with the state; sensors of
    acceleration, force and touch are those of the last substep, as ``dm_control`` has them.

    Args:
        cfg: the task.
        num_envs: environments in the batch, at least 1.
        device: where observations and rewards are published.
        seed: seed of everything that is random in the environment.

    Attributes:
        model: file name of its model in the suite.

    Raises:
        CapabilityError: dm_control is not installed, or lacks the model.
    """

    model: ClassVar[str]
    reward_terms = ("task",)

    def __init__(
        self,
        cfg: Cfg,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        path = suite_folder("dmc") / "suite" / self.model
        if not path.is_file():
            raise CapabilityError(
                f"the installed dm_control has no {path}: pip install --upgrade "
                '"unilab-torchrl[dmc]"'
            )
        spec = quietly(lambda: mujoco.MjSpec.from_file(str(path)))
        self._edit(spec, cfg)
        model = quietly(spec.compile)
        self._sensors = {
            s.name: slice(int(s.adr[0]), int(s.adr[0] + s.dim[0]))
            for s in map(model.sensor, range(model.nsensor))
        }
        self._body = {model.body(i).name: i for i in range(model.nbody)}
        super().__init__(cfg, model, current=True, num_envs=num_envs, device=device, seed=seed)
        self._disableflags = self.backend.expand("opt.disableflags")

    def _edit(self, spec: mujoco.MjSpec, cfg: Cfg) -> None:
        """Change the model as the suite does for the task."""

    @abstractmethod
    def _reward(self, action: Tensor) -> Tensor:
        """``[num_envs]``, the reward after a step."""

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        return (self._reward(action),)

    def _write(self, rows: Tensor, start: dict[str, Tensor]) -> None:
        qpos, qvel = start["qpos"], start["qvel"]
        self.backend.set_state_tensor(rows, qpos, qvel)
        if "act" in start:
            self.data["act"][rows] = start["act"]
        # dm_control has no controls yet, and disables actuation to compute the first sensors.
        enabled = self._disableflags[rows]
        self._disableflags[rows] = enabled | int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
        self.backend.set_state_tensor(rows, qpos, qvel, reset=False)
        self._disableflags[rows] = enabled

    # What tasks read ------------------------------------------------------------------------------

    def _sensor(self, data: Mapping[str, Tensor], name: str) -> Tensor:
        """``[n, width]``."""
        return data["sensordata"][:, self._sensors[name]]

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

    # What episodes begin with ---------------------------------------------------------------------

    def _home(self, rows: int) -> dict[str, Tensor]:
        """The model's own pose, at rest."""
        qpos = self.backend.default_qpos.repeat(rows, 1)
        return {"qpos": qpos, "qvel": qpos.new_zeros(rows, self.data["qvel"].shape[1])}

    def _random_pose(self, rows: int) -> Tensor:
        """``[rows, nq]``: joints anywhere in their ranges, unlimited ones turned anyhow.

        ``dm_control.suite.utils.randomizers.randomize_limited_and_rotational_joints`` for models
        without ball joints; unlimited slides, and where a root is, stay.
        """
        low, high = self.backend.default_qpos.clone(), self.backend.default_qpos.clone()
        for joint in self.backend.joints:
            if joint.type == "free":
                continue
            if math.isfinite(joint.range[0]):
                low[joint.qpos], high[joint.qpos] = joint.range
            elif joint.type == "hinge":
                low[joint.qpos], high[joint.qpos] = -math.pi, math.pi
        qpos = self._uniform(rows, low, high)
        for joint in self.backend.joints:
            if joint.type == "free":
                turned = slice(joint.qpos.start + 3, joint.qpos.stop)
                # Of the unit cube, not the sphere: the suite's benchmarks have it so.
                quat = self._uniform(rows, torch.zeros(4).double(), torch.ones(4).double())
                qpos[:, turned] = quat / quat.norm(dim=1, keepdim=True)
        return qpos


class Touching:
    """Which poses touch something, found in simulations that are nothing else's.

    Args:
        model: the task's.
        num_envs: poses that are looked at together, at most.
        num_threads: threads that do it; 0 takes all cores.
    """

    def __init__(self, model: mujoco.MjModel, num_envs: int, num_threads: int) -> None:
        self._batch = Batch(model, num_envs, num_threads)
        self._qpos, self._ncon = self._batch.bind("qpos"), self._batch.bind("ncon")

    def __call__(self, qpos: Tensor) -> Tensor:
        """``[n]`` bool for poses ``[n, nq]``."""
        rows = torch.arange(qpos.shape[0]).numpy()
        self._qpos[rows] = qpos.numpy()
        self._batch.forward(rows, stage=int(mujoco.mjtStage.mjSTAGE_POS))
        return torch.from_numpy(self._ncon[rows] > 0)
