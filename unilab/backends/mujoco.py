"""MuJoCo on CPU threads: ``mujoco.batch.Batch`` behind the tensor contract."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Literal

import mujoco
import numpy as np
import torch
from mujoco.batch import DATA_FIELDS, MODEL_FIELDS, Batch, SimulationError
from torch import Tensor

from unilab.backends.base import (
    ActuatorInfo,
    GeomInfo,
    JointInfo,
    SimBackend,
    TensorCapabilities,
    TensorExecution,
)
from unilab.errors import CapabilityError, ConfigError, EnvFaultedError, did_you_mean

_logger = logging.getLogger(__name__)
_STATE_FIELDS = ("qpos", "qvel", "ctrl", "act", "time", "qfrc_actuator", "actuator_force")
_JOINT_TYPES: tuple[Literal["free", "ball", "slide", "hinge"], ...] = (
    "free",
    "ball",
    "slide",
    "hinge",
)
_QPOS_WIDTH = (7, 4, 1, 1)
_QVEL_WIDTH = (6, 3, 1, 1)
# Fields of the model that the state after a reset depends on, besides the pose that is given.
_RESET_INPUTS = frozenset({"body_pos", "body_quat", "eq_active0"})
# What mj_setConst reads; besides these, any option.
_DERIVED_FROM = frozenset(mujoco.MjModel._setconst_inputs) & MODEL_FIELDS | {
    name for name in MODEL_FIELDS if name.startswith("opt.")
}
_NONE, _VEL = int(mujoco.mjtStage.mjSTAGE_NONE), int(mujoco.mjtStage.mjSTAGE_VEL)


class MujocoBackend(SimBackend):
    """Many environments of one MuJoCo model, stepped on a thread pool.

    State and sensor views share memory with the physics. Results do not depend on the number of
    threads, bit for bit.

    Args:
        model: a compiled model or the path of an MJCF file.
        num_envs: environments in the batch, at least 1.
        num_threads: worker threads including the caller's; 0 takes all cores.
        keyframe: name of the keyframe that holds the home pose; None takes the model's qpos0.
        fields: further fields of MuJoCo's ``mjData`` to publish beside the state.
        current: bring fields that follow from positions and velocities up to date with the state
            after each step, at the price of kinematics once more; otherwise they are those that the
            last substep began with, as ``mj_step`` leaves them.

    Raises:
        ConfigError: the file is missing or does not compile, a value does not fit, or memory does
            not suffice.
    """

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
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}: give at least 1")
        if num_threads < 0:
            raise ConfigError(f"num_threads is {num_threads}: give 0 (all cores) or more")
        # A copy, because the flag below must not change the caller's model.
        self.mj_model = copy(model) if isinstance(model, mujoco.MjModel) else _load(Path(model))
        # A diverged environment must stay visible as non-finite, not be reset behind our back.
        self.mj_model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        # Without a handler MuJoCo appends each warning to MUJOCO_LOG.TXT in the working directory.
        if mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(_logger.warning)
        try:
            self._batch = Batch(self.mj_model, num_envs, num_threads)
        except (ValueError, MemoryError) as error:
            raise ConfigError(
                f"MuJoCo makes no {num_envs} environments of this model ({error}): lower num_envs"
            ) from error
        self._rows = torch.from_numpy(self._batch.state)  # all state fields are its columns
        self.num_envs = num_envs
        self.timestep = float(self.mj_model.opt.timestep)
        self.joints = _joints(self.mj_model)
        self.actuators = _actuators(self.mj_model)
        self.bodies = tuple(self.mj_model.body(i).name for i in range(self.mj_model.nbody))
        self.geoms = tuple(
            GeomInfo(name=geom.name, body=self.bodies[int(geom.bodyid[0])])
            for geom in map(self.mj_model.geom, range(self.mj_model.ngeom))
        )
        self.default_qpos, self.default_ctrl = _home(self.mj_model, keyframe)
        for name in fields:
            if name not in DATA_FIELDS:
                raise ConfigError(
                    f"mjData has no field {name!r} to publish{did_you_mean(name, DATA_FIELDS)}; "
                    "see mujoco.batch.DATA_FIELDS"
                )
        self._views = {name: self._view(name) for name in (*_STATE_FIELDS, *fields)}
        self._qpos, self._qvel = (self._views[name].numpy() for name in ("qpos", "qvel"))
        self._ctrl = self._views["ctrl"]
        self._ctrl[0] = self.default_ctrl
        # What a reset writes to a row. Copying it spares waking the threads for a handful of rows.
        self._fresh: np.ndarray | None = self._batch.state[0].copy()
        self._sensors = {
            s.name: slice(int(s.adr[0]), int(s.adr[0] + s.dim[0]))
            for s in map(self.mj_model.sensor, range(self.mj_model.nsensor))
        }
        # mj_step leaves sensors one substep behind the state. They are brought up to date only
        # once somebody holds a view of them: that costs kinematics once more a control step.
        self._stage = _VEL if current else _NONE
        home = self.default_qpos.expand(num_envs, -1)
        self.set_state_tensor(torch.arange(num_envs), home, torch.zeros(num_envs, self.mj_model.nv))

    @property
    def num_threads(self) -> int:
        """Threads that step the batch."""
        return int(self._batch.nthread)

    def subtree(self, body: str) -> frozenset[str]:
        members = {self.mj_model.body(body).id}
        # Bodies are numbered parents first.
        for i in range(1, self.mj_model.nbody):
            if int(self.mj_model.body_parentid[i]) in members:
                members.add(i)
        return frozenset(self.bodies[i] for i in members)

    def tensor_execution(self) -> TensorExecution:
        return TensorExecution(kind="HOST_BRIDGE", device=torch.device("cpu"))

    def get_tensor_capabilities(self) -> TensorCapabilities:
        return TensorCapabilities(
            state_fields={name: view.shape[1] for name, view in self._views.items()},
            sensors={name: cols.stop - cols.start for name, cols in self._sensors.items()},
            selected_row_reset=True,
            model_fields=MODEL_FIELDS,
            derived_from=_DERIVED_FROM,
        )

    def get_state_views(self) -> Mapping[str, Tensor]:
        return self._views

    def get_sensor_view(self, name: str) -> Tensor:
        self.get_tensor_capabilities().require_sensor(name)
        sensordata = self._view("sensordata")
        if self._stage == _NONE:
            self._stage = _VEL
            self._batch.forward()
        return sensordata[:, self._sensors[name]]

    def step_tensor(self, ctrl: Tensor, nstep: int) -> None:
        if ctrl.shape != self._ctrl.shape:
            raise ConfigError(
                f"ctrl has shape {tuple(ctrl.shape)}: expected {tuple(self._ctrl.shape)}"
            )
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
                self._batch.reset(ids, stage=_NONE)
                self._ctrl.numpy()[ids] = self.default_ctrl.numpy()
            self._qpos[ids] = qpos.numpy()
            self._qvel[ids] = qvel.numpy()
            # The full forward pass seeds accelerations and contact forces, once per written row.
            self._batch.forward(ids)
        except SimulationError as error:
            raise self._fault(error) from error

    def step_rows(self, rows: Tensor, nstep: int) -> None:
        """Advance some environments under the controls that they have.

        Args:
            rows: ``[n]`` int64 environment indices, unique and ascending.
            nstep: physics substeps.

        Raises:
            EnvFaultedError: physics raised in some environments; names the rows.
        """
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
        if field not in MODEL_FIELDS:
            raise CapabilityError(
                f"MuJoCo cannot vary {field!r} between environments"
                f"{did_you_mean(field, MODEL_FIELDS)}; see mujoco.batch.MODEL_FIELDS"
            )
        if field in _RESET_INPUTS:
            self._fresh = None
        return torch.from_numpy(self._batch.expand(field))

    def set_const(self, rows: Tensor | None = None) -> None:
        try:
            self._batch.set_const(None if rows is None else rows.numpy().astype(np.int32))
        except SimulationError as error:
            raise self._fault(error) from error

    def close(self) -> None:
        self._views.clear()
        self._sensors.clear()
        for name in ("_rows", "_qpos", "_qvel", "_ctrl", "_batch"):
            self.__dict__.pop(name, None)

    def _view(self, name: str) -> Tensor:
        array = self._batch.bind(name).reshape(self.num_envs, -1)
        if np.may_share_memory(array, self._batch.state):
            column = (array.ctypes.data - self._batch.state.ctypes.data) // array.itemsize
            return self._rows[:, column : column + array.shape[1]]
        with warnings.catch_warnings():
            # Outputs are read-only arrays; torch has no such notion and says so.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)

    def _checked_rows(
        self, rows: Tensor, qpos: Tensor, qvel: Tensor
    ) -> tuple[np.ndarray, Tensor, Tensor]:
        """The payload on the CPU, in the ascending order of rows that the batch wants."""
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise ConfigError(
                f"rows are {rows.dtype} of shape {tuple(rows.shape)}: expected a 1-D integer tensor"
            )
        for name, value, width in (
            ("qpos", qpos, self.mj_model.nq),
            ("qvel", qvel, self.mj_model.nv),
        ):
            if value.shape != (rows.shape[0], width):
                raise ConfigError(
                    f"{name} has shape {tuple(value.shape)}: expected {(rows.shape[0], width)}"
                )
        ids, qpos, qvel = rows.cpu().numpy(), qpos.cpu(), qvel.cpu()
        if not (ids[1:] > ids[:-1]).all():
            order = np.argsort(ids, kind="stable")
            ids, qpos, qvel = ids[order], qpos[order], qvel[order]
            if (ids[1:] == ids[:-1]).any():
                raise ConfigError(f"rows {rows.tolist()} name an environment twice")
        if ids.size and (ids[0] < 0 or ids[-1] >= self.num_envs):
            raise ConfigError(f"rows {rows.tolist()} must lie in [0, {self.num_envs})")
        return ids, qpos, qvel

    def _fault(self, error: SimulationError) -> EnvFaultedError:
        rows = [int(i) for i in error.ids]
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        messages = {self._batch.error(i) for i in rows}
        return EnvFaultedError(
            f"MuJoCo raised in {len(rows)} of {self.num_envs} environments (rows {shown}): "
            f"{'; '.join(sorted(messages))}"
        )


def _load(path: Path) -> mujoco.MjModel:
    if not path.is_file():
        raise ConfigError(f"no model file at {path}: give the path of an MJCF file")
    try:
        return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise ConfigError(f"MuJoCo cannot compile {path}: {error}") from error


def _joints(model: mujoco.MjModel) -> tuple[JointInfo, ...]:
    joints = []
    for i in range(model.njnt):
        kind, qpos, qvel = (
            int(model.jnt_type[i]),
            int(model.jnt_qposadr[i]),
            int(model.jnt_dofadr[i]),
        )
        low, high = model.jnt_range[i] if model.jnt_limited[i] else (-np.inf, np.inf)
        joints.append(
            JointInfo(
                name=model.joint(i).name,
                body=model.body(model.jnt_bodyid[i]).name,
                type=_JOINT_TYPES[kind],
                qpos=slice(qpos, qpos + _QPOS_WIDTH[kind]),
                qvel=slice(qvel, qvel + _QVEL_WIDTH[kind]),
                range=(float(low), float(high)),
            )
        )
    return tuple(joints)


def _actuators(model: mujoco.MjModel) -> tuple[ActuatorInfo, ...]:
    actuators = []
    for i in range(model.nu):
        on_joint = model.actuator_trntype[i] == mujoco.mjtTrn.mjTRN_JOINT
        low, high = (
            model.actuator_ctrlrange[i] if model.actuator_ctrllimited[i] else (-np.inf, np.inf)
        )
        weak, strong = (
            model.actuator_forcerange[i] if model.actuator_forcelimited[i] else (-np.inf, np.inf)
        )
        affine = model.actuator_biastype[i] == mujoco.mjtBias.mjBIAS_AFFINE
        actuators.append(
            ActuatorInfo(
                name=model.actuator(i).name,
                joint=model.joint(model.actuator_trnid[i, 0]).name if on_joint else None,
                ctrl_range=(float(low), float(high)),
                force_range=(float(weak), float(strong)),
                stiffness=float(-model.actuator_biasprm[i, 1]) if affine else 0.0,
                damping=float(-model.actuator_biasprm[i, 2]) if affine else 0.0,
            )
        )
    return tuple(actuators)


def _home(model: mujoco.MjModel, keyframe: str | None) -> tuple[Tensor, Tensor]:
    if keyframe is None:
        return torch.from_numpy(model.qpos0.copy()), torch.zeros(model.nu, dtype=torch.float64)
    names = [model.key(i).name for i in range(model.nkey)]
    if keyframe not in names:
        raise ConfigError(
            f"the model has no keyframe {keyframe!r}{did_you_mean(keyframe, names)}; it has {names}"
            ": add one, or name another or None as SceneCfg.keyframe"
        )
    key = model.key(keyframe)
    return torch.from_numpy(key.qpos.copy()), torch.from_numpy(key.ctrl.copy())
