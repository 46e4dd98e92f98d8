"""MuJoCo models in the terms of the contract: parts, actuators, home pose, sensors, ground."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import mujoco
import numpy as np
import torch
from torch import Tensor

from unilab.backends.base import (
    JOINT_WIDTHS,
    ActuatorInfo,
    GeomInfo,
    JointInfo,
    SimBackend,
    TensorCapabilities,
)
from unilab.checks import to_num_envs
from unilab.errors import CapabilityError, ConfigError, did_you_mean

STATE_FIELDS = (
    *("qpos", "qvel", "ctrl", "act", "time", "xfrc_applied"),
    *("qfrc_actuator", "actuator_force"),
)
# Of every body; computed for views only if one of them is read.
_KINEMATICS = {"xpos": 3, "xquat": 4, "cvel": 6, "subtree_com": 3}
_JOINTS = tuple(JOINT_WIDTHS.items())
_FILTERS = {int(mujoco.mjtDyn.mjDYN_FILTER), int(mujoco.mjtDyn.mjDYN_FILTEREXACT)}
_PRM = ("gainprm", "biasprm")
_UNKNOWN = {"gain": np.nan, "stiffness": 0.0}
_GROUND = "generated_terrain"
"""Name of the height field of a generated terrain."""


class MjModelBackend(SimBackend):
    """What every simulator of a MuJoCo model has: the parts of the model, and its views.

    Attributes:
        mj_model: the model, a copy of the caller's.
        sensor_columns: columns of ``sensordata`` by sensor.
    """

    model_fields: frozenset[str]
    """Model fields that may differ between environments."""
    derived_from: ClassVar[frozenset[str]]
    """Model fields that others are computed from."""

    def __init__(
        self, model: mujoco.MjModel | str | Path, num_envs: int, keyframe: str | None
    ) -> None:
        self.num_envs = to_num_envs(num_envs)
        self.mj_model = copy(model) if isinstance(model, mujoco.MjModel) else _load(model)
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
        self.keyframe = _find_keyframe(self.mj_model, keyframe)
        self.sensor_columns = {  # of sensordata
            s.name: slice(int(s.adr[0]), int(s.adr[0] + s.dim[0]))
            for s in map(self.mj_model.sensor, range(self.mj_model.nsensor))
        }
        self._views: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}
        """What the last call computed from the state, as far as there are views of it."""
        self._expanded: dict[str, Tensor] = {}
        self._shared: dict[str, Tensor] = {}
        """Values in the model of each expanded field."""

    def subtree(self, body: str) -> frozenset[str]:
        members = {self.bodies.index(body)}
        # Bodies are numbered parents first.
        for i in range(1, self.mj_model.nbody):
            if int(self.mj_model.body_parentid[i]) in members:
                members.add(i)
        return frozenset(self.bodies[i] for i in members)

    def get_tensor_capabilities(self) -> TensorCapabilities:
        return TensorCapabilities(
            state_fields={
                **{name: width * self.mj_model.nbody for name, width in _KINEMATICS.items()},
                **{name: view.shape[1] for name, view in self._views.items()},
            },
            sensors={name: cols.stop - cols.start for name, cols in self.sensor_columns.items()},
            selected_row_reset=True,
            model_fields=self.model_fields,
            derived_from=self.derived_from,
        )

    def get_state_views(self) -> Mapping[str, Tensor]:
        return self._views

    def get_state_view(self, name: str) -> Tensor:
        self.get_tensor_capabilities().require(name)
        return self._views[name] if name in self._views else self._current_view(name)

    def get_sensor_view(self, name: str) -> Tensor:
        self.get_tensor_capabilities().require(f"sensor:{name}")
        return self._current_view("sensordata")[:, self.sensor_columns[name]]

    @abstractmethod
    def _current_view(self, name: str) -> Tensor:
        """View of an output that every call from now on makes current with the state."""

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
        if self.derived_from.intersection(self._expanded):
            self.set_const()

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        """Live tensors: the state, what the last call computed from it, and the model's fields."""
        rows = {"rows": self.get_replay_state()}
        return {"state": rows, "outputs": self._outputs, "model": self._expanded}

    def _check_ctrl(self, ctrl: Tensor) -> None:
        shape = self.num_envs, self.mj_model.nu
        if ctrl.shape != shape:
            raise ConfigError(f"ctrl must have shape {shape}, got {tuple(ctrl.shape)}")

    def _check_state(self, rows: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Check the shapes of a write, and that rows are integers."""
        n, model = rows.numel(), self.mj_model
        for name, value, width in (("qpos", qpos, model.nq), ("qvel", qvel, model.nv)):
            if value.shape != (n, width):
                raise ConfigError(f"{name} must have shape {(n, width)}, got {tuple(value.shape)}")
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise self._bad_rows(rows)

    def _bad_rows(self, rows: Tensor) -> ConfigError:
        return ConfigError(
            f"rows must be distinct integers [n] in [0, {self.num_envs}), got {rows.tolist()}"
        )

    def close(self) -> None:
        for tensors in (self._views, self._outputs, self._expanded):
            tensors.clear()
        self.sensor_columns.clear()


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


def delayed_controls(model: mujoco.MjModel) -> np.ndarray:
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
