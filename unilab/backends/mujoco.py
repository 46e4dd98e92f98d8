"""MuJoCo on CPU threads: ``mujoco.batch.Batch`` behind the tensor contract."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np
import torch
from mujoco.batch import MODEL_FIELDS, Batch, SimulationError
from torch import Tensor

from unilab.backends.base import TensorExecution
from unilab.backends.mj_model import STATE_FIELDS, MjModelBackend, delayed_controls
from unilab.checks import check_fits
from unilab.errors import CapabilityError, ConfigError, EnvFaultedError

_logger = logging.getLogger(__name__)
# Model fields that the state after a reset depends on, besides the given pose.
_RESET_INPUTS = {name for name in MODEL_FIELDS if name.startswith("key_")} | {
    "body_pos",
    "body_quat",
    "eq_active0",
}
# Model fields that mj_setConst reads, and all options.
_DERIVED_FROM = frozenset(mujoco.MjModel._setconst_inputs) & MODEL_FIELDS | {
    name for name in MODEL_FIELDS if name.startswith("opt.")
}
_BEHIND = 1e-6
"""How far behind a surface a ray starts again, m."""
_NONE, _VEL = int(mujoco.mjtStage.mjSTAGE_NONE), int(mujoco.mjtStage.mjSTAGE_VEL)


class MujocoBackend(MjModelBackend):
    """Many environments of one MuJoCo model, stepped on a thread pool.

    State and sensor views share memory with the physics. Results do not depend on the number of
    threads, bit for bit.

    Args:
        model: a compiled model or the path of an MJCF file.
        num_envs: environments in the batch.
        num_threads: worker threads including the caller's; 0 takes all cores.
        keyframe: name of the keyframe that new episodes start from: its qpos, ctrl, act, mocap
            poses and time. None takes the model's qpos0, and controls of 0.
        fields: further fields of MuJoCo's ``mjData`` to publish beside the state.
        current: whether ``fields`` are updated to the state after each step, which costs another
            pass of kinematics; if not, they belong to the start of the last substep, as
            ``mj_step`` leaves them.
    """

    model_fields = MODEL_FIELDS
    derived_from = _DERIVED_FROM

    def __init__(
        self,
        model: mujoco.MjModel | str | Path,
        num_envs: int,
        *,
        num_threads: int = 0,
        keyframe: str | None = None,
        fields: Sequence[str] = (),
        current: bool = False,
    ) -> None:
        super().__init__(model, num_envs, keyframe)
        check_fits("num_threads", num_threads, int)
        # A diverged environment must stay visible as non-finite; MuJoCo would reset it.
        self.mj_model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        # Without a handler MuJoCo appends each warning to MUJOCO_LOG.TXT in the working directory.
        if mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(_logger.warning)
        try:
            self._batch = Batch(self.mj_model, num_envs, num_threads)
        except (ValueError, MemoryError) as error:
            raise ConfigError(
                f"MuJoCo cannot make a batch of num_envs={num_envs} of this model: {error}"
            ) from error
        self._rows = torch.from_numpy(self._batch.state)  # all state fields are its columns
        self._batch.reset(keyframe=self.keyframe, stage=_NONE)
        self._ray_filters: dict[frozenset[str], tuple[np.ndarray, np.ndarray]] = {}
        self._views |= {name: self._view(name) for name in (*STATE_FIELDS, *fields)}
        self._qpos, self._qvel = (self._views[name].numpy() for name in ("qpos", "qvel"))
        self._ctrl = self._views["ctrl"]
        self._late = delayed_controls(self.mj_model)
        self._fill_history(np.arange(num_envs))
        self.default_qpos, self.default_ctrl = (
            self._views[name][0].clone() for name in ("qpos", "ctrl")
        )
        # The state of a reset row. Copying it is faster than waking the threads for a few rows.
        self._fresh: np.ndarray | None = self._batch.state[0].copy()
        # mj_step leaves sensors one substep behind the state. They are updated only once a view of
        # one exists: that costs another pass of kinematics a control step.
        self._stage = _VEL if current else _NONE
        home = self.default_qpos.expand(num_envs, -1)
        self.set_state_tensor(torch.arange(num_envs), home, torch.zeros(num_envs, self.mj_model.nv))

    @property
    def num_threads(self) -> int:
        """Threads that step the batch."""
        return int(self._batch.nthread)

    def tensor_execution(self) -> TensorExecution:
        return TensorExecution(kind="HOST_BRIDGE", device=torch.device("cpu"))

    def _current_view(self, name: str) -> Tensor:
        if name in self._outputs and self._stage == _VEL:
            return self._outputs[name]
        view, self._stage = self._view(name), _VEL
        self._batch.forward()
        return view

    def step_tensor(self, ctrl: Tensor, nstep: int) -> None:
        self._check_ctrl(ctrl)
        self._ctrl.copy_(ctrl)
        try:
            self._batch.step(nstep=nstep, stage=self._stage)
        except SimulationError as error:
            raise self._fault(error) from error

    def set_state_tensor(
        self, rows: Tensor, qpos: Tensor, qvel: Tensor, *, reset: bool = True
    ) -> None:
        ids, qpos, qvel = self._checked_rows(rows, qpos, qvel)
        try:
            if reset and self._fresh is not None:
                self._batch.state[ids] = self._fresh
            elif reset:
                self._batch.reset(ids, keyframe=self.keyframe, stage=_NONE)
                self._fill_history(ids)
            self._qpos[ids] = qpos.numpy()
            self._qvel[ids] = qvel.numpy()
            # The full forward pass seeds accelerations and contact forces, once per written row.
            self._batch.forward(ids)
        except SimulationError as error:
            raise self._fault(error) from error

    def cast_rays(self, start: Tensor, direction: Tensor, passed: frozenset[str]) -> Tensor:
        groups, passes = self._passed_geoms(passed)
        origin, along = start.numpy(), direction.numpy()
        distance, geom = self._batch.ray(origin, along, geomgroup=groups)
        travelled = np.zeros_like(distance)
        # Behind a geom that it passes through, a ray starts again.
        while (again := passes[geom] & (geom >= 0)).any():
            travelled[again] += distance[again] + _BEHIND
            rows = again.any(1).nonzero()[0]
            origin = start.numpy()[rows] + travelled[rows, :, None] * along[rows]
            distance[rows], geom[rows] = self._batch.ray(
                origin, along[rows], geomgroup=groups, ids=rows
            )
        return torch.from_numpy(np.where(geom < 0, np.inf, travelled + distance))

    def _passed_geoms(self, bodies: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
        """Geom groups that rays meet, and whether they pass through a geom of these groups.

        MuJoCo leaves out whole groups, which is fast: a robot's geoms often have one.
        """
        if bodies not in self._ray_filters:
            ids = [self.bodies.index(body) for body in bodies]
            passes = np.isin(self.mj_model.geom_bodyid, ids)
            group = self.mj_model.geom_group.clip(0, mujoco.mjNGROUP - 1)
            met = np.array([not passes[group == i].all() for i in range(mujoco.mjNGROUP)])
            self._ray_filters[bodies] = met.astype(np.uint8), passes & met[group]
        return self._ray_filters[bodies]

    def step_rows(self, rows: Tensor, nstep: int) -> None:
        """Advance rows ``[n]``, unique and ascending, under their current controls."""
        try:
            self._batch.step(rows.numpy(), nstep=nstep, stage=self._stage)
        except SimulationError as error:
            raise self._fault(error) from error

    def get_replay_state(self) -> Tensor:
        return self._rows

    def get_model_bytes(self, row: int) -> bytes:
        model = self._batch.get_model(row)
        buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        return buffer.tobytes()

    @staticmethod
    def replay(model: bytes, state: Tensor, ctrl: Tensor, nstep: int) -> Tensor:
        batch = Batch(mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": model}), 1, 1)
        batch.state[0] = state.numpy()
        batch.bind("ctrl")[0] = ctrl.numpy()
        batch.step(nstep=nstep)
        return torch.from_numpy(batch.state[0].copy())

    def expand(self, field: str) -> Tensor:
        try:
            values = torch.from_numpy(self._batch.expand(field))
        except ValueError as error:
            raise CapabilityError(
                f"MuJoCo cannot vary {field!r} between environments: {error}"
            ) from error
        if field in _RESET_INPUTS:
            self._fresh = None
        self._shared.setdefault(field, values[0].clone())
        self._expanded[field] = values
        return values

    def set_const(self, rows: Tensor | None = None) -> None:
        try:
            self._batch.set_const(None if rows is None else rows.numpy().astype(np.int32))
        except SimulationError as error:
            raise self._fault(error) from error

    def _fill_history(self, rows: np.ndarray) -> None:
        """Let delayed actuators act on the keyframe's controls until the first ones arrive.

        MuJoCo would begin with controls of 0.
        """
        if not self._late.size:
            return
        columns, actuators = self._late.T
        history = self._batch.bind("history")
        history[np.ix_(rows, columns)] = self._ctrl.numpy()[np.ix_(rows, actuators)]

    def close(self) -> None:
        super().close()
        for name in ("_rows", "_qpos", "_qvel", "_ctrl", "_batch"):
            self.__dict__.pop(name, None)

    def _view(self, name: str) -> Tensor:
        array = self._batch.bind(name).reshape(self.num_envs, -1)
        if np.may_share_memory(array, self._batch.state):
            column = (array.ctypes.data - self._batch.state.ctypes.data) // array.itemsize
            return self._rows[:, column : column + array.shape[1]]
        with warnings.catch_warnings():
            # Outputs are read-only arrays, which torch warns about.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self._outputs[name] = torch.from_numpy(array)
        return self._outputs[name]

    def _checked_rows(
        self, rows: Tensor, qpos: Tensor, qvel: Tensor
    ) -> tuple[np.ndarray, Tensor, Tensor]:
        """The payload on the CPU, in the ascending order of rows that the batch needs."""
        self._check_state(rows, qpos, qvel)
        ids, qpos, qvel = rows.cpu().numpy(), qpos.cpu(), qvel.cpu()
        if not (ids[1:] > ids[:-1]).all():
            order = np.argsort(ids, kind="stable")
            ids, qpos, qvel = ids[order], qpos[order], qvel[order]
            if (ids[1:] == ids[:-1]).any():
                raise self._bad_rows(rows)
        if ids.size and (ids[0] < 0 or ids[-1] >= self.num_envs):
            raise self._bad_rows(rows)
        return ids, qpos, qvel

    def _fault(self, error: SimulationError) -> EnvFaultedError:
        rows = [int(i) for i in error.ids]
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        messages = {self._batch.error(i) for i in rows}
        return EnvFaultedError(
            f"MuJoCo raised in {len(rows)} of {self.num_envs} environments (rows {shown}): "
            f"{'; '.join(sorted(messages))}"
        )
