"""The contract between environments and a physics simulator."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unilab.errors import CapabilityError, ConfigError, did_you_mean

Source = tuple[str, slice]
"""A block of columns to read: a state field or ``sensor:<name>``, and which of its columns."""


@dataclass(frozen=True, kw_only=True)
class TensorExecution:
    """Where physics runs and its state lives."""

    kind: Literal["HOST_BRIDGE", "DEVICE_RESIDENT"]
    """HOST_BRIDGE: CPU physics, packed copies to an accelerator; DEVICE_RESIDENT: physics on the
    environment's device, no copies."""
    device: torch.device
    """Device of the state and sensor views."""


@dataclass(frozen=True, kw_only=True)
class TensorCapabilities:
    """Capabilities of a backend; environments decide support from them, not from its name."""

    state_fields: Mapping[str, int]
    """Widths of the readable fields by name."""
    sensors: Mapping[str, int]
    """Widths of the sensors by name."""
    selected_row_reset: bool
    """Whether single environments can be written."""
    model_fields: frozenset[str]
    """Model parameters that may differ between environments."""
    derived_from: frozenset[str]
    """Model parameters from which others are derived: call ``set_const`` after a write."""

    def require(self, source: str) -> None:
        """Refuse a state field or a ``sensor:<name>`` that does not exist."""
        name, known, what = source, self.state_fields, "the backend has no state field"
        if source.startswith("sensor:"):
            name, known, what = source[len("sensor:") :], self.sensors, "the model has no sensor"
        if name not in known:
            raise CapabilityError(f"{what} {name!r}{did_you_mean(name, known)}")


JointType = Literal["free", "ball", "slide", "hinge"]
JOINT_WIDTHS: dict[JointType, tuple[int, int]] = {
    "free": (7, 6),
    "ball": (4, 3),
    "slide": (1, 1),
    "hinge": (1, 1),
}
"""Columns of a joint in qpos and qvel, in the order of MuJoCo's ``mjtJoint``."""


@dataclass(frozen=True, kw_only=True)
class JointInfo:
    """One joint of the model, with its columns in qpos and qvel."""

    name: str
    body: str
    type: JointType
    qpos: slice
    qvel: slice
    range: tuple[float, float]
    """Limits in rad or m; (-inf, inf) when unlimited."""
    axis: tuple[float, float, float] | None = None
    """Unit vector of a hinge or slide joint at the model's zero pose, in the frame of the nearest
    body above it with a free joint, else of the world; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class GeomInfo:
    """One geom of the model."""

    name: str
    """Empty for a geom without a name."""
    body: str


@dataclass(frozen=True, kw_only=True)
class ActuatorInfo:
    """One actuator of the model.

    Its force is ``gain * ctrl + bias - stiffness * length - damping * velocity`` within its
    :meth:`limits`; its length and velocity are ``gear`` times the joint's, and the joint feels
    ``gear`` times its force.
    """

    name: str
    joint: str | None
    """The joint it drives; None for other transmissions."""
    ctrl_range: tuple[float, float]
    force_range: tuple[float, float]
    """N or N m at the actuator; (-inf, inf) when unlimited."""
    stiffness: float
    """Position gain; 0 for a motor, and if ``ctrl`` is not a target of the position."""
    damping: float
    """Velocity gain; 0 for a motor."""
    gear: float = 1.0
    gain: float
    """NaN if it depends on the state, or if the force follows an integral of ``ctrl``."""
    bias: float = 0.0
    time_constant: float = 0.0
    """Of a first-order filter on ``ctrl``, s; 0 for none."""
    delay: float = 0.0
    """What is subtracted from the time to find the control that acts, s."""
    saturation_effort: float = math.inf
    """Force of a DC motor at rest under full voltage, N or N m."""
    velocity_limit: float = math.inf
    """Speed of a DC motor without load under full voltage, m/s or rad/s."""

    def limits(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper limits of the force at velocities of the actuator."""
        low, high = (torch.full_like(velocity, bound) for bound in self.force_range)
        if self.saturation_effort == math.inf:
            return low, high
        lost = self.saturation_effort * velocity / self.velocity_limit
        ends = (-self.saturation_effort - lost, self.saturation_effort - lost)
        lower, upper = (end.clamp(low, high) for end in ends)
        return lower, upper


class HostBridgeTransferPlan:
    """A fixed packed layout between physics arrays and the runtime device.

    A read gathers its columns into one packet, which goes to an accelerator in one copy; there is
    none if physics is on the packet's device. Blocks that touch or overlap share packet columns and
    are copied as one.

    Args:
        views: the physics views by source name, each ``[num_envs, k]``.
        sources: the blocks to read, of adjacent columns.
        device: device of the packet.

    Attributes:
        columns: packet columns of each block, in the order of ``sources``.
        packet: ``[num_envs, width]`` float32; rewritten by every read.
        transfers: host-to-device copies so far (0 where physics is).
        bytes: bytes of those copies.
    """

    def __init__(
        self, views: Mapping[str, Tensor], sources: Sequence[Source], device: torch.device
    ) -> None:
        for name, columns in sources:
            if columns.step not in (None, 1):
                raise ConfigError(
                    f"columns of {name!r} must be adjacent, got {columns}: read them all and select"
                )
        blocks = [(name, range(views[name].shape[1])[columns]) for name, columns in sources]
        read = sorted({(name, column) for name, columns in blocks for column in columns})
        first = [bisect_left(read, (name, columns.start)) for name, columns in blocks]
        self.columns: list[slice] = [
            slice(at, at + len(columns)) for at, (_, columns) in zip(first, blocks, strict=True)
        ]
        self._views = _joined([views[name][:, column : column + 1] for name, column in read])
        widths = [view.shape[1] for view in self._views]
        rows = self._views[0].shape[0] if self._views else 0
        there = self._views[0].device if self._views else torch.device("cpu")
        pinned = device.type == "cuda" and there.type == "cpu"
        self._gathered = torch.zeros(rows, sum(widths), device=there, pin_memory=pinned)
        self._segments = self._gathered.split(widths, dim=1) if widths else ()
        self._resident = there.type == device.type
        self.packet = self._gathered if self._resident else self._gathered.to(device)
        self.transfers = 0
        self.bytes = 0

    def read(self) -> Tensor:
        """Update the packet from physics."""
        for segment, view in zip(self._segments, self._views, strict=True):
            segment.copy_(view)
        if not self._resident:
            self._count(self._gathered)
            self.packet.copy_(self._gathered, non_blocking=True)
        return self.packet

    def read_rows(self, rows: Tensor, on_device: Tensor | None = None) -> Tensor:
        """Update rows ``[n]`` int64 of the packet from physics.

        Args:
            rows: on the physics' device.
            on_device: the same on the packet's device; None copies them there.
        """
        selected = torch.cat([view.index_select(0, rows) for view in self._views], dim=1).float()
        if on_device is None:
            on_device = self._sent(rows)
        self.packet.index_copy_(0, on_device, self._sent(selected))
        return self.packet

    def _sent(self, value: Tensor) -> Tensor:
        """``value`` on the packet's device."""
        if self._resident:
            return value
        self._count(value)
        return value.to(self.packet.device)

    def _count(self, sent: Tensor) -> None:
        self.transfers += 1
        self.bytes += sent.numel() * sent.element_size()


def _joined(views: list[Tensor]) -> list[Tensor]:
    """Views that are adjacent columns of the same memory, joined."""
    joined: list[Tensor] = []
    for view in views:
        left = joined[-1] if joined else view[:, :0]
        if (
            left.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
            and left.dtype == view.dtype
            and left.stride() == view.stride() == (left.stride(0), 1)
            and left.storage_offset() + left.shape[1] == view.storage_offset()
        ):
            shape = (left.shape[0], left.shape[1] + view.shape[1])
            joined[-1:] = [left.as_strided(shape, left.stride())]
        else:
            joined.append(view)
    return joined


class SimBackend(ABC):
    """Batched physics of one model: all that environments use of it.

    An unknown field or sensor is a CapabilityError; rows or shapes that do not fit are a
    ConfigError before anything is written.

    Attributes:
        num_envs: environments in the batch.
        timestep: seconds of one physics substep.
        joints, actuators, bodies, geoms: parts of the model, in model order. Names of joints,
            actuators and bodies are unique.
        default_qpos: ``[nq]`` float64, the home pose.
        default_ctrl: ``[nu]`` float64, the controls of the home pose.
        ground: heights ``[ny, nx]`` m of a terrain that unilab generated, of grid points along y
            and x around the origin, and the distance between them, m; None: there is no such
            terrain.
    """

    num_envs: int
    timestep: float
    joints: tuple[JointInfo, ...]
    actuators: tuple[ActuatorInfo, ...]
    bodies: tuple[str, ...]
    geoms: tuple[GeomInfo, ...]
    default_qpos: Tensor
    default_ctrl: Tensor
    ground: tuple[np.ndarray, float] | None = None

    @abstractmethod
    def subtree(self, body: str) -> frozenset[str]:
        """Names of a body and its descendants."""

    @abstractmethod
    def tensor_execution(self) -> TensorExecution:
        """Where physics runs."""

    @abstractmethod
    def get_tensor_capabilities(self) -> TensorCapabilities:
        """What can be read, written and randomised."""

    @abstractmethod
    def get_state_views(self) -> Mapping[str, Tensor]:
        """Live views of the state fields, ``[num_envs, width]``, without a copy.

        ``qfrc_actuator``, if there is one, holds the actuators' torques of the last substep or,
        after a write, of the written state. ``xfrc_applied``, if there is one, holds the force and
        torque on each body, ``[num_envs, bodies * 6]`` (N and N m, world frame, at the centre of
        mass); environments write it before a step.
        """

    def get_state_view(self, name: str) -> Tensor:
        """Live view of one state field, also of one that a backend computes only if it is read.

        ``xpos``, ``xquat``, ``cvel`` and ``subtree_com``, if there are such, are MuJoCo's fields of
        all bodies, side by side and current with the state.
        """
        self.get_tensor_capabilities().require(name)
        return self.get_state_views()[name]

    @abstractmethod
    def get_sensor_view(self, name: str) -> Tensor:
        """Live view of a sensor, ``[num_envs, width]``, without a copy."""

    @abstractmethod
    def step_tensor(self, ctrl: Tensor, nstep: int) -> None:
        """Advance by ``nstep`` substeps; sensors are current with the new state.

        An error of the simulator is an EnvFaultedError that names its rows.

        Args:
            ctrl: ``[num_envs, nu]`` on the physics' device, held for all substeps; a ``ctrl`` view
                shows them unclamped.
            nstep: physics substeps.
        """

    @abstractmethod
    def set_state_tensor(
        self, rows: Tensor, qpos: Tensor, qvel: Tensor, *, reset: bool = True
    ) -> None:
        """Write the state of some environments; sensors are current with it.

        Args:
            rows: ``[n]`` int64, unique; all on the physics' device.
            qpos, qvel: ``[n, nq]`` and ``[n, nv]``.
            reset: also reset time, warm start, activations and controls, for a new episode.
        """

    def cast_rays(self, start: Tensor, direction: Tensor, passed: frozenset[str]) -> Tensor:
        """Distances to the nearest geom along rays, ``[num_envs, rays]`` float64 m; infinite for a
        miss. A backend without it is a CapabilityError.

        Args:
            start, direction: ``[num_envs, rays, 3]`` float64, m and unit vectors, world frame.
            passed: bodies that the rays pass through.
        """
        raise CapabilityError(f"{type(self).__name__} cannot cast rays: leave the term out")

    @abstractmethod
    def get_replay_state(self) -> Tensor:
        """Live ``[num_envs, k]`` view of all that a step depends on besides controls and model."""

    @abstractmethod
    def get_model_bytes(self, row: int) -> bytes:
        """The model of one environment with its own parameters, for :meth:`replay`."""

    @staticmethod
    @abstractmethod
    def replay(model: bytes, state: Tensor, ctrl: Tensor, nstep: int) -> Tensor:
        """Repeat one control step of one environment, bit for bit; return its state after it.

        Args:
            model: from :meth:`get_model_bytes`.
            state: a row of :meth:`get_replay_state` before the step.
            ctrl: ``[nu]``.
            nstep: physics substeps.
        """

    @abstractmethod
    def expand(self, field: str) -> Tensor:
        """Live ``[num_envs, ...]`` view of a model field with a value for each environment."""

    @abstractmethod
    def set_const(self, rows: Tensor | None = None) -> None:
        """Recompute fields derived from those written through :meth:`expand`."""

    @abstractmethod
    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Copies of all that later steps, reads and resets depend on, by part and name."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue, bit for bit, from a :meth:`state_dict` of the same model and ``num_envs``."""

    def compile_host_bridge_io(
        self, sources: Sequence[Source], device: torch.device
    ) -> HostBridgeTransferPlan:
        """Freeze a packed read layout."""
        views: dict[str, Tensor] = {}
        for name, _ in sources:
            if name not in views:
                kind, _, sensor = name.partition(":")
                of_sensor = kind == "sensor"
                views[name] = (
                    self.get_sensor_view(sensor) if of_sensor else self.get_state_view(name)
                )
        return HostBridgeTransferPlan(views, sources, device)

    @abstractmethod
    def close(self) -> None:
        """Free the simulator; a second call does nothing."""
