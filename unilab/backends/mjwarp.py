"""MuJoCo Warp: physics that stays on the environment's device, an accelerator or the CPU.

Importing this module imports Warp, which is the extra ``unilab-torchrl[mjwarp]``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from unilab.backends.base import TensorExecution
from unilab.backends.mj_model import STATE_FIELDS, MjModelBackend, delayed_controls
from unilab.checks import to_device
from unilab.errors import CapabilityError, ConfigError, did_you_mean

try:
    import warp as wp

    wp.config.log_level = wp.LOG_WARNING  # else it prints a line for each kernel that it loads
    import mujoco_warp as mjw
except ImportError as error:
    raise CapabilityError(
        f"backend 'mjwarp' needs MuJoCo Warp, whose import failed ({error}): "
        "pip install 'unilab-torchrl[mjwarp]', or use backend='mujoco'"
    ) from error


_logger = logging.getLogger(__name__)
# What a step depends on besides the model, in the order of the replay state.
_STATE = (
    *("time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "ctrl"),
    *("qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat"),
)
_LOST = ("NEFC", "NJMAX_NNZ", "BROADPHASE", "NARROWPHASE", "CONTACT_MATCH")
"""Overflows by which Warp loses contacts or constraints."""
_LAST_SUBSTEP = ("qfrc_actuator", "actuator_force", "sensordata")
# Model fields that Warp's set_const reads, and those that it writes.
_DERIVED_FROM = frozenset(
    ("body_mass", "body_inertia", "body_ipos", "body_iquat", "body_pos", "body_quat", "qpos0")
) | {"dof_armature", "actuator_gear"}
_DERIVED = (
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0"),
    *("tendon_length0", "tendon_invweight0", "eq_data"),
)
# Fields of which Warp keeps more than their values, such as bounds or whether they are 0.
_FIXED = ("geom_size", "geom_aabb", "geom_rbound", "geom_margin", "geom_gap", "geom_surfacevel")
# MuJoCo's, which Warp does not take: a task may write them, and nothing follows.
_SHORT_CUTS = frozenset(("body_sameframe", "body_simple", "dof_simplenum"))
_MOST_CONTACTS = 256


def _scalar(dtype: Any) -> Any:
    """Type of the numbers in a vector or matrix; of a number, its own."""
    return getattr(dtype, "_wp_scalar_type_", dtype)


def _model_fields() -> frozenset[str]:
    """Fields of Warp's model with a row for each environment, by MuJoCo's names."""
    found = {"opt.gravity"}
    for field in dataclasses.fields(mjw.Model):
        array: Any = field.type
        batched = getattr(array, "shape", ())[:1] == ("*",)
        own = field.name.startswith(("body_", "dof_", "geom_", "actuator_", "jnt_", "qpos0"))
        if batched and own and _scalar(array.dtype) in (float, wp.float32):
            found.add(field.name)
    return frozenset(found - {*_DERIVED, *_FIXED}) | _SHORT_CUTS


class MjWarpBackend(MjModelBackend):
    """Many environments of one MuJoCo model in Warp's kernels, in float32.

    State, controls, sensors and model fields are PyTorch tensors on Warp's memory. On CUDA a
    control step is one graph, captured in its second call. On the CPU, for tests, Warp takes one
    thread. Kernels are compiled when they are first needed, which takes minutes, and kept in
    Warp's own cache, ``~/.cache/warp`` or ``WARP_CACHE_PATH``.

    An environment with more contacts than its share of the memory becomes NaN, and Warp prints
    which limit it met.

    Args:
        model: a compiled model or the path of an MJCF file.
        num_envs: environments in the batch.
        device: where physics runs and the views are.
        keyframe: name of the keyframe that new episodes start from, as of
            :class:`~unilab.backends.MujocoBackend`.
    """

    model_fields = _model_fields()
    derived_from = _DERIVED_FROM & model_fields

    def __init__(
        self,
        model: mujoco.MjModel | str | Path,
        num_envs: int,
        *,
        device: torch.device | str = "cpu",
        keyframe: str | None = None,
    ) -> None:
        super().__init__(model, num_envs, keyframe)
        if self.mj_model.body_simple[1:].any():
            # Warp stores their part of the mass matrix as a diagonal.
            self.model_fields = self.model_fields - {"body_ipos", "body_iquat"}
        self.device = _exact(to_device(device))
        wp.init()
        if not any(Path(wp.config.kernel_cache_dir or "").glob("*")):
            _logger.warning(
                "MuJoCo Warp compiles its kernels, which takes minutes the first time: it keeps "
                "them in %s",
                wp.config.kernel_cache_dir,
            )
        self._wp_device = wp.device_from_torch(self.device)
        self._graphs: dict[Any, Any] = {}
        """CUDA graphs by call; None: called once."""
        self._senses = False
        with wp.ScopedDevice(self._wp_device):
            self._model, self._data = self._put()
            self._rows = self._one_block()
        self._overflow = wp.to_torch(self._data.overflow)
        for name in _LAST_SUBSTEP:
            self._outputs[name] = self._tensor(getattr(self._data, name))
        self._views |= {n: self._outputs[n] for n in STATE_FIELDS if n in self._outputs}
        home = self._home()
        self.default_qpos, self.default_ctrl = (
            torch.from_numpy(getattr(home, name).copy()) for name in ("qpos", "ctrl")
        )
        first = [np.ravel(getattr(home, name)) for name in self._columns]
        self._fresh = torch.from_numpy(np.concatenate(first)).float().to(self.device)
        """The state of a reset row."""
        everyone = torch.arange(self.num_envs, device=self.device)
        qpos = self.default_qpos.to(self.device).expand(self.num_envs, -1)
        self.set_state_tensor(everyone, qpos, qpos.new_zeros(self.num_envs, self.mj_model.nv))

    def tensor_execution(self) -> TensorExecution:
        return TensorExecution(kind="DEVICE_RESIDENT", device=self.device)

    def _current_view(self, name: str) -> Tensor:
        if not self._senses:
            self._senses = True
            self._graphs.clear()
            self._launch("sense", self._sense)
        if name not in self._outputs:
            self._outputs[name] = self._tensor(getattr(self._data, name))
        return self._outputs[name]

    def step_tensor(self, ctrl: Tensor, nstep: int) -> None:
        self._check_ctrl(ctrl)
        self._check_device("ctrl", ctrl)
        self._views["ctrl"].copy_(ctrl)

        def step() -> None:
            self._data.overflow.zero_()
            for _ in range(nstep):
                mjw.step(self._model, self._data)
            if self._senses:
                self._sense()

        self._launch(("step", nstep), step)
        lost = (self._overflow & self._lost).ne(0).unsqueeze(1)
        self._views["qpos"].masked_fill_(lost, torch.nan)

    def set_state_tensor(
        self, rows: Tensor, qpos: Tensor, qvel: Tensor, *, reset: bool = True
    ) -> None:
        self._check_state(rows, qpos, qvel)
        for name, value in (("rows", rows), ("qpos", qpos), ("qvel", qvel)):
            self._check_device(name, value)
        rows = rows.long()
        inside = rows.clamp(0, self.num_envs - 1)
        written = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        written.index_fill_(0, inside, True)
        # One wait for the device, in place of one for each condition.
        if not bool((written.sum() == len(rows)) & (inside == rows).all()):
            raise self._bad_rows(rows)
        if reset:
            self._rows.index_copy_(0, rows, self._fresh.expand(len(rows), -1))
        self._views["qpos"].index_copy_(0, rows, qpos.float())
        self._views["qvel"].index_copy_(0, rows, qvel.float())
        # Warp computes every row again; those that were not written keep their last substep's.
        with _kept(written, [self._outputs[n] for n in _LAST_SUBSTEP]):
            self._launch("forward", lambda: mjw.forward(self._model, self._data))

    def get_replay_state(self) -> Tensor:
        return self._rows

    def get_model_bytes(self, row: int) -> bytes:
        model = copy(self.mj_model)
        for name, values in self._expanded.items():
            owner, _, field = name.rpartition(".")
            target = getattr(model.opt if owner else model, field)
            target[...] = values[row].cpu().numpy().reshape(target.shape)
        buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        return buffer.tobytes()

    @staticmethod
    def replay(model: bytes, state: Tensor, ctrl: Tensor, nstep: int) -> Tensor:
        compiled = mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": model})
        one = MjWarpBackend(compiled, 1, device=state.device)
        one._rows.copy_(state.unsqueeze(0))
        one.step_tensor(ctrl.to(state).unsqueeze(0), nstep)
        return one._rows[0].clone()

    def expand(self, field: str) -> Tensor:
        if field in self._expanded:
            return self._expanded[field]
        if field not in self.model_fields:
            raise CapabilityError(
                f"MuJoCo Warp cannot vary {field!r} between environments"
                f"{did_you_mean(field, self.model_fields)}: use backend='mujoco'"
            )
        if field in _SHORT_CUTS:
            own = torch.from_numpy(getattr(self.mj_model, field).astype(np.float32))
            self._shared[field] = own = own.to(self.device)
            self._expanded[field] = own.repeat(self.num_envs, 1)
            return self._expanded[field]
        for name in (field, *(_DERIVED if field in self.derived_from else ())):
            owner, _, attribute = name.rpartition(".")
            target = self._model.opt if owner else self._model
            shared = getattr(target, attribute)
            if name not in self._expanded and shared.size:
                value = wp.to_torch(shared)
                values = value.expand(self.num_envs, *value.shape[1:]).contiguous()
                setattr(target, attribute, _array(values, shared.dtype))
                self._shared[name], self._expanded[name] = value[0].clone(), values
        self._graphs.clear()  # they read the shared values
        return self._expanded[field]

    def set_const(self, rows: Tensor | None = None) -> None:
        derived = [self._expanded[name] for name in _DERIVED if name in self._expanded]
        if not derived:
            return
        written = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        if rows is not None:
            written.zero_().index_fill_(0, rows.long(), True)
        with _kept(written, derived), wp.ScopedDevice(self._wp_device), self._stream():
            mjw.set_const(self._model, self._data)

    def close(self) -> None:
        super().close()
        self._graphs.clear()
        for name in ("_rows", "_overflow", "_data", "_model"):
            self.__dict__.pop(name, None)

    def _put(self) -> tuple[Any, Any]:
        """The model and its environments in Warp's memory."""
        try:
            model = mjw.put_model(self.mj_model)
            contacts = _contacts(self.mj_model)
            rows = _rows_of_constraints(self.mj_model, contacts)
            data = mjw.make_data(self.mj_model, self.num_envs, nconmax=contacts, njmax=rows)
        except (NotImplementedError, ValueError) as error:
            raise CapabilityError(
                f"MuJoCo Warp cannot simulate this model ({error}): use backend='mujoco', or "
                "change the model"
            ) from error
        overflows = mjw.OverflowType
        self._lost = int(sum(overflows[name] for name in _LOST))
        model.opt.warn_overflow = self._lost  # and not of solvers that stop at their iterations
        return model, data

    def _one_block(self) -> Tensor:
        """Move the state to adjacent columns of one tensor ``[num_envs, k]``."""
        parts = {name: getattr(self._data, name) for name in _STATE}
        parts = {name: part for name, part in parts.items() if part.size or name in STATE_FIELDS}
        values = {name: self._tensor(part) for name, part in parts.items()}
        self._columns = tuple(values)
        block = torch.cat([*values.values()], 1)
        columns = block.split([value.shape[1] for value in values.values()], 1)
        for (name, part), own in zip(parts.items(), columns, strict=True):
            if name in STATE_FIELDS:
                self._views[name] = own
            if part.size:
                vector = getattr(part.dtype, "_shape_", None)
                shaped = own if vector is None else own.unflatten(1, (-1, *vector))
                array = _array(shaped if part.ndim > 1 else own[:, 0], part.dtype)
                setattr(self._data, name, array)
        return block

    def _tensor(self, array: Any) -> Tensor:
        """A view ``[num_envs, width]`` of an array with a row for each environment."""
        return wp.to_torch(array).reshape(self.num_envs, -1)

    def _home(self) -> mujoco.MjData:
        """The state that new episodes start from."""
        model, data = self.mj_model, mujoco.MjData(self.mj_model)
        if self.keyframe >= 0:
            mujoco.mj_resetDataKeyframe(model, data, self.keyframe)
        # Delayed actuators act on the keyframe's controls until the first ones arrive.
        columns, actuators = delayed_controls(model).T
        data.history[columns] = data.ctrl[actuators]
        return data

    def _sense(self) -> None:
        """Make kinematics and sensors current with the state, which a step leaves one late."""
        model, data = self._model, self._data
        mjw.fwd_position(model, data, factorize=False)
        mjw.sensor_pos(model, data)
        mjw.fwd_velocity(model, data)
        mjw.sensor_vel(model, data)

    def _launch(self, call: Any, function: Callable[[], None]) -> None:
        """Call a function that only launches kernels; on CUDA as a graph from the second time."""
        with wp.ScopedDevice(self._wp_device), self._stream():
            if self.device.type != "cuda" or call not in self._graphs:
                function()  # also compiles its kernels, which a graph could not
                self._graphs[call] = None
                return
            if self._graphs[call] is None:
                with wp.ScopedCapture(force_module_load=False) as capture:
                    function()
                self._graphs[call] = capture.graph
            wp.capture_launch(self._graphs[call])

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """Order the block's kernels after PyTorch's so far, and before its next ones."""
        if self.device.type != "cuda":
            yield
            return
        ours = wp.get_stream(self._wp_device)
        theirs = wp.stream_from_torch(torch.cuda.current_stream(self.device))
        ours.wait_stream(theirs)
        yield
        theirs.wait_stream(ours)

    def _check_device(self, name: str, value: Tensor) -> None:
        if value.device != self.device:
            raise ConfigError(f"{name} must be on {self.device}, got one on {value.device}")


@contextmanager
def _kept(written: Tensor, tensors: list[Tensor]) -> Iterator[None]:
    """Keep the other rows than those ``written`` of some tensors through the block."""
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        mask = written.view(-1, *(1,) * (tensor.ndim - 1))
        tensor.copy_(torch.where(mask, tensor, old))


def _array(tensor: Tensor, dtype: Any) -> Any:
    """Warp's array on a tensor's memory, with a row for each environment."""
    array: Any = wp.from_torch(tensor, dtype=dtype)
    array._is_batched = True
    return array


def _exact(device: torch.device) -> torch.device:
    """The device with its index; one that Warp cannot use is a CapabilityError."""
    if device.type == "cpu":
        return device
    if device.type != "cuda" or not torch.cuda.is_available() or not wp.is_cuda_available():
        raise CapabilityError(
            f"MuJoCo Warp must have a CUDA device or the CPU, got {str(device)!r}, and PyTorch and "
            "Warp see no such device: use device='cpu' or backend='mujoco'"
        )
    return torch.device(
        "cuda", torch.cuda.current_device() if device.index is None else device.index
    )


def _contacts(model: mujoco.MjModel) -> int:
    """Contacts that an environment has room for: four of each geom that moves and collides."""
    moving = model.body_weldid[model.geom_bodyid] > 0
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    each = 16 if model.nhfield else 4  # prisms of a height field
    return int(min(max(each * (moving & collides).sum(), 16), _MOST_CONTACTS))


def _rows_of_constraints(model: mujoco.MjModel, contacts: int) -> int:
    """Constraint rows of an environment with so many contacts."""
    most = int(model.geom_condim.max(initial=1))
    each = most if model.opt.cone == mujoco.mjtCone.mjCONE_ELLIPTIC else max(2 * (most - 1), 1)
    others = model.nv + int(model.jnt_limited.sum()) + 2 * model.ntendon + 6 * model.neq
    return others + contacts * each
