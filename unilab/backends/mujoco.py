"""MuJoCo on CPU threads: ``mujoco.batch.Batch`` behind the tensor contract."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco.batch import MODEL_FIELDS, Batch, SimulationError
from torch import Tensor

from unilab.backends.base import (
    JOINT_WIDTHS,
    ActuatorInfo,
    GeomInfo,
    JointInfo,
    SimBackend,
    TensorCapabilities,
    TensorExecution,
)
from unilab.checks import check_fits, to_num_envs
from unilab.errors import CapabilityError, ConfigError, EnvFaultedError, did_you_mean

_logger = logging.getLogger(__name__)
_STATE_FIELDS = (
    *("qpos", "qvel", "ctrl", "act", "time", "xfrc_applied"),
    *("qfrc_actuator", "actuator_force"),
)
# Of every body; computed for views only if one of them is read.
_KINEMATICS = {"xpos": 3, "xquat": 4, "cvel": 6, "subtree_com": 3}
_JOINTS = tuple(JOINT_WIDTHS.items())
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
_FILTERS = {int(mujoco.mjtDyn.mjDYN_FILTER), int(mujoco.mjtDyn.mjDYN_FILTEREXACT)}
_PRM = ("gainprm", "biasprm")
_UNKNOWN = {"gain": np.nan, "stiffness": 0.0}
_GROUND = "generated_terrain"
"""Name of the height field of a generated terrain."""
_BEHIND = 1e-6
"""How far behind a surface a ray starts again, m."""
_NONE, _VEL = int(mujoco.mjtStage.mjSTAGE_NONE), int(mujoco.mjtStage.mjSTAGE_VEL)


class MujocoBackend(SimBackend):
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
        num_envs = to_num_envs(num_envs)
        check_fits("num_threads", num_threads, int)
        # A copy, because the flag below must not change the caller's model.
        self.mj_model = copy(model) if isinstance(model, mujoco.MjModel) else _load(model)
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
        self.num_envs = num_envs
        self.timestep = float(self.mj_model.opt.timestep)
        self.joints = tuple(_joints(self.mj_model))
        self.actuators = tuple(_actuators(self.mj_model))
        self.bodies = tuple(
            _name("body", self.mj_model.body(i)) for i in range(self.mj_model.nbody)
        )
        self.geoms = tuple(
            GeomInfo(name=geom.name, body=self.bodies[int(geom.bodyid[0])])
            for geom in map(self.mj_model.geom, range(self.mj_model.ngeom))
        )
        self.ground = _generated_ground(self.mj_model)
        self._keyframe = _find_keyframe(self.mj_model, keyframe)
        self._batch.reset(keyframe=self._keyframe, stage=_NONE)
        self._outputs: dict[str, Tensor] = {}
        self._expanded: dict[str, Tensor] = {}
        self._shared: dict[str, Tensor] = {}
        self._ray_filters: dict[frozenset[str], tuple[np.ndarray, np.ndarray]] = {}
        self._views = {name: self._view(name) for name in (*_STATE_FIELDS, *fields)}
        self._qpos, self._qvel = (self._views[name].numpy() for name in ("qpos", "qvel"))
        self._ctrl = self._views["ctrl"]
        self._late = _delayed_controls(self.mj_model)
        self._fill_history(np.arange(num_envs))
        self.default_qpos, self.default_ctrl = (
            self._views[name][0].clone() for name in ("qpos", "ctrl")
        )
        # The state of a reset row. Copying it is faster than waking the threads for a few rows.
        self._fresh: np.ndarray | None = self._batch.state[0].copy()
        self.sensor_columns = {  # of sensordata
            s.name: slice(int(s.adr[0]), int(s.adr[0] + s.dim[0]))
            for s in map(self.mj_model.sensor, range(self.mj_model.nsensor))
        }
        # mj_step leaves sensors one substep behind the state. They are updated only once a view of
        # one exists: that costs another pass of kinematics a control step.
        self._stage = _VEL if current else _NONE
        home = self.default_qpos.expand(num_envs, -1)
        self.set_state_tensor(torch.arange(num_envs), home, torch.zeros(num_envs, self.mj_model.nv))

    @property
    def num_threads(self) -> int:
        """Threads that step the batch."""
        return int(self._batch.nthread)

    def subtree(self, body: str) -> frozenset[str]:
        members = {self.bodies.index(body)}
        # Bodies are numbered parents first.
        for i in range(1, self.mj_model.nbody):
            if int(self.mj_model.body_parentid[i]) in members:
                members.add(i)
        return frozenset(self.bodies[i] for i in members)

    def tensor_execution(self) -> TensorExecution:
        return TensorExecution(kind="HOST_BRIDGE", device=torch.device("cpu"))

    def get_tensor_capabilities(self) -> TensorCapabilities:
        return TensorCapabilities(
            state_fields={
                **{name: width * self.mj_model.nbody for name, width in _KINEMATICS.items()},
                **{name: view.shape[1] for name, view in self._views.items()},
            },
            sensors={name: cols.stop - cols.start for name, cols in self.sensor_columns.items()},
            selected_row_reset=True,
            model_fields=MODEL_FIELDS,
            derived_from=_DERIVED_FROM,
        )

    def get_state_views(self) -> Mapping[str, Tensor]:
        return self._views

    def get_state_view(self, name: str) -> Tensor:
        self.get_tensor_capabilities().require(name)
        return self._views[name] if name in self._views else self._current_view(name)

    def get_sensor_view(self, name: str) -> Tensor:
        self.get_tensor_capabilities().require(f"sensor:{name}")
        return self._current_view("sensordata")[:, self.sensor_columns[name]]

    def _current_view(self, name: str) -> Tensor:
        """View of an output that every call from now on makes current with the state."""
        if name in self._outputs and self._stage == _VEL:
            return self._outputs[name]
        view, self._stage = self._view(name), _VEL
        self._batch.forward()
        return view

    def step_tensor(self, ctrl: Tensor, nstep: int) -> None:
        if ctrl.shape != self._ctrl.shape:
            raise ConfigError(
                f"ctrl must have shape {tuple(self._ctrl.shape)}, got {tuple(ctrl.shape)}"
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
                self._batch.reset(ids, keyframe=self._keyframe, stage=_NONE)
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

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return {
            part: {name: tensor.clone() for name, tensor in tensors.items()}
            for part, tensors in self._parts().items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name in state["model"]:
            self.expand(name)
        for part, tensors in self._parts().items():
            for name, tensor in tensors.items():
                # A field that was shared by all environments then has the model's values.
                value = state[part].get(name, self._shared.get(name))
                if value is not None:
                    tensor.copy_(value)
        if _DERIVED_FROM.intersection(self._expanded):
            self.set_const()

    def _fill_history(self, rows: np.ndarray) -> None:
        """Let delayed actuators act on the keyframe's controls until the first ones arrive.

        MuJoCo would begin with controls of 0.
        """
        if not self._late.size:
            return
        columns, actuators = self._late.T
        history = self._batch.bind("history")
        history[np.ix_(rows, columns)] = self._ctrl.numpy()[np.ix_(rows, actuators)]

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        """Live tensors: the state, what the last call computed from it, and the model's fields."""
        rows = {"rows": self._rows}
        return {"state": rows, "outputs": self._outputs, "model": self._expanded}

    def close(self) -> None:
        for tensors in (self._views, self._outputs, self._expanded):
            tensors.clear()
        self.sensor_columns.clear()
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
        n, model = rows.numel(), self.mj_model
        for name, value, width in (("qpos", qpos, model.nq), ("qvel", qvel, model.nv)):
            if value.shape != (n, width):
                raise ConfigError(f"{name} must have shape {(n, width)}, got {tuple(value.shape)}")
        ids, qpos, qvel = rows.cpu().numpy(), qpos.cpu(), qvel.cpu()
        integers = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
        if integers and not (ids[1:] > ids[:-1]).all():
            order = np.argsort(ids, kind="stable")
            ids, qpos, qvel = ids[order], qpos[order], qvel[order]
            integers = not (ids[1:] == ids[:-1]).any()
        if not integers or (ids.size and (ids[0] < 0 or ids[-1] >= self.num_envs)):
            raise ConfigError(
                f"rows must be distinct integers [n] in [0, {self.num_envs}), got {rows.tolist()}"
            )
        return ids, qpos, qvel

    def _fault(self, error: SimulationError) -> EnvFaultedError:
        rows = [int(i) for i in error.ids]
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        messages = {self._batch.error(i) for i in rows}
        return EnvFaultedError(
            f"MuJoCo raised in {len(rows)} of {self.num_envs} environments (rows {shown}): "
            f"{'; '.join(sorted(messages))}"
        )


def put_on_height_field(spec: mujoco.MjSpec, heights: np.ndarray, cell: float) -> None:
    """Replace the floor of a model by a height field around the origin.

    The floor is the one plane of the world; its name, material and contacts stay.

    Args:
        heights: ``[ny, nx]`` m, of grid points along y and x.
        cell: distance between grid points, m.
    """
    planes = [g for g in spec.worldbody.geoms if g.type == mujoco.mjtGeom.mjGEOM_PLANE]
    if len(planes) != 1:
        raise ConfigError(
            f"terrain: the model must have one plane in the world to replace, got {len(planes)}"
        )
    low, high = float(heights.min()), float(heights.max())
    ny, nx = heights.shape
    half = [0.5 * (n - 1) * cell for n in (nx, ny)]
    # MuJoCo stores heights in [0, 1]; elevation and base must not be 0.
    spec.add_hfield(
        name=_GROUND,
        size=[*half, max(high - low, 1e-3), 0.5],
        nrow=ny,
        ncol=nx,
        userdata=heights.astype(np.float32).ravel(),
    )
    (floor,) = planes
    floor.type, floor.hfieldname = mujoco.mjtGeom.mjGEOM_HFIELD, _GROUND
    floor.pos, floor.quat = [0.0, 0.0, low], [1.0, 0.0, 0.0, 0.0]


def _generated_ground(model: mujoco.MjModel) -> tuple[np.ndarray, float] | None:
    """What :func:`put_on_height_field` put there: heights and cell."""
    field = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_HFIELD, _GROUND)
    on_it = (model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD) & (model.geom_dataid == field)
    if field < 0 or not on_it.any():
        return None
    (low,) = model.geom_pos[on_it, 2]
    half_x, _, elevation, _ = model.hfield_size[field]
    data = np.asarray(model.hfield(field).data, np.float32).reshape(
        model.hfield_nrow[field], model.hfield_ncol[field]
    )
    return low + elevation * data, 2.0 * half_x / (data.shape[1] - 1)


def _load(model: str | Path) -> mujoco.MjModel:
    path = Path(model).expanduser()
    try:
        return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise ConfigError(f"MuJoCo cannot compile {path}: {error}") from error


def _name(kind: str, part: Any) -> str:
    """A part's name, or one made of its number: parts are told apart by their names."""
    return part.name or f"unnamed_{kind}_{part.id}"


def _joints(model: mujoco.MjModel) -> Iterator[JointInfo]:
    axes = _joint_axes(model)
    for i in range(model.njnt):
        kind, (nq, nv) = _JOINTS[model.jnt_type[i]]
        qpos, qvel = int(model.jnt_qposadr[i]), int(model.jnt_dofadr[i])
        yield JointInfo(
            name=_name("joint", model.joint(i)),
            body=_name("body", model.body(model.jnt_bodyid[i])),
            type=kind,
            qpos=slice(qpos, qpos + nq),
            qvel=slice(qvel, qvel + nv),
            range=_range(model.jnt_limited[i], model.jnt_range[i]),
            axis=axes[i] if kind in ("hinge", "slide") else None,
        )


def _joint_axes(model: mujoco.MjModel) -> list[tuple[float, float, float]]:
    """Axes at the zero pose, in the frame of the free body above or of the world."""
    free = set(model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE].tolist())
    turned = np.zeros((model.nbody, 4))
    turned[:, 0] = 1.0
    for i in range(1, model.nbody):  # parents first
        if i not in free:
            mujoco.mju_mulQuat(turned[i], turned[model.body_parentid[i]], model.body_quat[i])
    axes = np.zeros((model.njnt, 3))
    for axis, own, body in zip(axes, model.jnt_axis, model.jnt_bodyid, strict=True):
        mujoco.mju_rotVecQuat(axis, own, turned[body])
    return [tuple(axis) for axis in axes.tolist()]


def _actuators(model: mujoco.MjModel) -> Iterator[ActuatorInfo]:
    on_joints = {int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)}
    several = [model.actuator(i).name for i in (model.actuator_ctrlnum != 1).nonzero()[0]]
    if several:
        raise CapabilityError(
            f"actuators must have one control each, got {several} with another number of them"
        )
    for i in range(model.nu):
        joint = model.actuator_trnid[i, 0] if int(model.actuator_trntype[i]) in on_joints else None
        gear = float(model.actuator_gear[i, 0])
        force_range = _range(model.actuator_forcelimited[i], model.actuator_forcerange[i])
        if joint is not None and model.jnt_actfrclimited[joint] and gear:
            at_actuator = sorted(model.jnt_actfrcrange[joint] / gear)
            force_range = (
                max(force_range[0], float(at_actuator[0])),
                min(force_range[1], float(at_actuator[1])),
            )
        filtered = int(model.actuator_dyntype[i]) in _FILTERS
        yield ActuatorInfo(
            name=_name("actuator", model.actuator(i)),
            joint=None if joint is None else _name("joint", model.joint(joint)),
            ctrl_range=_range(model.actuator_ctrllimited[i], model.actuator_ctrlrange[i]),
            force_range=force_range,
            gear=gear,
            time_constant=float(model.actuator_dynprm[i, 0]) if filtered else 0.0,
            delay=float(model.actuator_delay[i]),
            **_force_law(model, i),
        )


def _force_law(model: mujoco.MjModel, i: int) -> dict[str, float]:
    """Gain, bias, stiffness, damping and torque-speed curve of an actuator."""
    kind, prm, biasprm = (getattr(model, f"actuator_{n}")[i] for n in ("gaintype", *_PRM))
    affine = model.actuator_biastype[i] == mujoco.mjtBias.mjBIAS_AFFINE
    constant, length, velocity = biasprm[:3].tolist() if affine else (0.0, 0.0, 0.0)
    law = {"bias": constant, "stiffness": 0.0 - length, "damping": 0.0 - velocity}
    stateless = model.actuator_actadr[i] < 0
    if kind == mujoco.mjtGain.mjGAIN_FIXED:
        known = int(model.actuator_dyntype[i]) in {int(mujoco.mjtDyn.mjDYN_NONE), *_FILTERS}
        return law | ({"gain": float(prm[0])} if known else _UNKNOWN)
    if kind == mujoco.mjtGain.mjGAIN_DCMOTOR and not biasprm.any():
        resistance, motor_constant, *_, stiffness, _, damping, voltage = prm[:8].tolist()
        law |= {"stiffness": stiffness, "damping": damping}
        if voltage:
            law["saturation_effort"] = voltage * motor_constant / resistance
            law["velocity_limit"] = voltage / motor_constant
    elif kind != mujoco.mjtGain.mjGAIN_PID:
        return law | _UNKNOWN
    inputs = mujoco.mjtCtrlInput
    gains = {
        int(inputs.mjINPUT_POS): law["stiffness"],
        int(inputs.mjINPUT_VEL): law["damping"],
        int(inputs.mjINPUT_FF): 1.0,
    }
    spec = int(model.actuator_ctrlspec[i])
    return law | ({"gain": gains[spec]} if stateless and spec in gains else _UNKNOWN)


def _delayed_controls(model: mujoco.MjModel) -> np.ndarray:
    """``[n, 2]``, columns of the history that hold controls, and their actuators."""
    found = []
    late = (model.actuator_history[:, 0] > 0).nonzero()[0]
    data = mujoco.MjData(model if late.size else mujoco.MjModel.from_xml_string("<mujoco/>"))
    for i in late:
        marks = np.full(model.actuator_history[i, 0], np.nan)
        mujoco.mj_initCtrlHistory(model, data, i, None, marks)
        found += [(column, i) for column in np.isnan(data.history).nonzero()[0]]
        mujoco.mj_initCtrlHistory(model, data, i, None, np.zeros_like(marks))
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _range(limited: bool, bounds: np.ndarray) -> tuple[float, float]:
    return (float(bounds[0]), float(bounds[1])) if limited else (-np.inf, np.inf)


def _find_keyframe(model: mujoco.MjModel, keyframe: str | None) -> int:
    """Index of a keyframe at rest; -1 for the model's own pose."""
    if keyframe is None:
        return -1
    names = [model.key(i).name for i in range(model.nkey)]
    if keyframe not in names:
        raise ConfigError(
            f"the model has no keyframe {keyframe!r}{did_you_mean(keyframe, names)}, only {names}: "
            "name another in SceneCfg.keyframe, or None"
        )
    found = names.index(keyframe)
    if model.key_qvel[found].any():
        raise ConfigError(
            f"qvel of keyframe {keyframe!r} must be 0, got {model.key_qvel[found].tolist()}: let a "
            "reset event write velocities"
        )
    return found
