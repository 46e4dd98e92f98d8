"""What terms see of the simulation: named entities, sensors, one packed read a phase."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unilab.backends import HostBridgeTransferPlan, SimBackend
from unilab.backends.base import JointInfo, Source
from unilab.envs.finite import bad_rows, is_finite
from unilab.envs.rotations import gravity_direction, rotate_inverse
from unilab.errors import CapabilityError, ConfigError, NonFiniteError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class EntityCfg:
    """One articulated body of the model."""

    root_body: str
    """Body at the top of the entity's tree; the entity is that body and all below it."""


@dataclass(frozen=True, kw_only=True)
class SceneCfg:
    """The model file and the entities in it."""

    model: str
    """Path of the MJCF file."""
    entities: dict[str, EntityCfg] = field(default_factory=dict)
    """Entities by the name that terms use."""
    keyframe: str | None = "home"
    """Keyframe with the home pose; None takes the model's own zero pose."""


@dataclass(frozen=True)
class SceneEntityCfg:
    """An entity, or some of its joints, as a term's parameter."""

    name: str = "robot"
    """The entity's name in the scene."""
    joint_names: tuple[str, ...] = (".*",)
    """Regular expressions, each matched against whole joint names."""
    joint_ids: Tensor | slice = field(default_factory=lambda: slice(None))
    """Columns of the entity's joint tensors; filled in by the scene."""


# What an entity publishes -> the fields it is computed from. Others are read as such.
_DERIVED = {
    "root_lin_vel_b": ("root_quat_w", "root_lin_vel_w"),
    "projected_gravity_b": ("root_quat_w",),
}
_ROOT_FIELDS = ("root_pos_w", "root_quat_w", "root_lin_vel_w", "root_ang_vel_b")
_JOINT_FIELDS = ("joint_pos", "joint_vel", "joint_torque")
FIELDS = (*_ROOT_FIELDS, *_JOINT_FIELDS, *_DERIVED)
"""Everything that a term may declare with ``@reads``."""


class EntityData:
    """An entity's current quantities, all float32 on the runtime device.

    Joint tensors are ``[num_envs, num_joints]`` in model order (rad, rad/s, N m), root tensors
    ``[num_envs, 3]`` (m, m/s, rad/s) or ``[num_envs, 4]`` (w, x, y, z). ``_w`` is the world frame,
    ``_b`` the root body's. Reading a field that no term declared is a ConfigError.
    """

    def __init__(
        self, entity: str, joints: Sequence[JointInfo], qpos: Tensor, device: torch.device
    ):
        self._entity = entity
        self._columns: dict[str, Tensor] = {}
        self._cache: dict[str, Tensor] = {}
        home = [float(qpos[j.qpos.start]) for j in joints]
        self.default_joint_pos = torch.tensor(home, dtype=torch.float32, device=device)
        """``[num_joints]``, the home pose."""
        limits = torch.tensor([j.range for j in joints], dtype=torch.float32, device=device)
        self.joint_pos_limits = limits.reshape(-1, 2)
        """``[num_joints, 2]``, lower and upper."""

    @property
    def joint_pos(self) -> Tensor:
        return self._read("joint_pos")

    @property
    def joint_vel(self) -> Tensor:
        return self._read("joint_vel")

    @property
    def joint_torque(self) -> Tensor:
        """Actuator torque at the joints during the last substep."""
        return self._read("joint_torque")

    @property
    def root_pos_w(self) -> Tensor:
        return self._read("root_pos_w")

    @property
    def root_quat_w(self) -> Tensor:
        return self._read("root_quat_w")

    @property
    def root_lin_vel_w(self) -> Tensor:
        return self._read("root_lin_vel_w")

    @property
    def root_ang_vel_b(self) -> Tensor:
        return self._read("root_ang_vel_b")

    @property
    def root_lin_vel_b(self) -> Tensor:
        cached = self._cache.get("root_lin_vel_b")
        if cached is None:
            cached = rotate_inverse(self.root_quat_w, self.root_lin_vel_w)
            self._cache["root_lin_vel_b"] = cached
        return cached

    @property
    def projected_gravity_b(self) -> Tensor:
        """Unit vector of gravity in the root frame: (0, 0, -1) when upright."""
        cached = self._cache.get("projected_gravity_b")
        if cached is None:
            cached = gravity_direction(self.root_quat_w)
            self._cache["projected_gravity_b"] = cached
        return cached

    def _read(self, name: str) -> Tensor:
        try:
            return self._columns[name]
        except KeyError:
            raise ConfigError(
                f"{self._entity}.data.{name} was read by a term that did not declare it: "
                f"decorate the term with @reads({name!r})"
            ) from None


class Entity:
    """One articulated body: its names, its data and the writes of a reset."""

    def __init__(
        self,
        name: str,
        cfg: EntityCfg,
        backend: SimBackend,
        scene: EntityScene,
        device: torch.device,
    ) -> None:
        if cfg.root_body not in backend.bodies:
            raise ConfigError(
                f"entity {name!r}: the model has no body {cfg.root_body!r}"
                f"{did_you_mean(cfg.root_body, backend.bodies)}"
            )
        self.name = name
        self._scene = scene
        tree = backend.subtree(cfg.root_body)
        joints = [j for j in backend.joints if j.body in tree]
        self.root_joint = next((j for j in joints if j.type == "free"), None)
        self.joints = tuple(j for j in joints if j.type in ("hinge", "slide"))
        self.joint_names = tuple(j.name for j in self.joints)
        # Joint tensors are one block of columns.
        spanned = joints[-1].qvel.stop - joints[0].qvel.start if joints else 0
        if spanned != len(self.joints) + (6 if self.root_joint else 0):
            kinds = {j.name: j.type for j in joints}
            raise CapabilityError(
                f"entity {name!r} has joints {kinds}: one free joint at the root and, below it, "
                "hinge and slide joints are supported"
            )
        self.data = EntityData(name, self.joints, backend.default_qpos, device)
        root = slice(0, 0) if self.root_joint is None else self.root_joint.qpos
        self.default_root_pose = backend.default_qpos[root].float().to(device)
        """``[7]``, the root's home position and quaternion; ``[0]`` for a fixed entity."""

    def find_joints(self, patterns: Sequence[str]) -> list[int]:
        """Indices of the joints whose whole names match, in model order.

        Raises:
            ConfigError: a pattern matches nothing.
        """
        return find_names(patterns, self.joint_names, f"joint of {self.name!r}")

    def source(self, name: str) -> Source:
        """Where a field is read from.

        Raises:
            ConfigError: there is no such field.
            CapabilityError: the entity has no free root joint or no joints.
        """
        if name in _ROOT_FIELDS:
            if self.root_joint is None:
                raise CapabilityError(f"entity {self.name!r} has no free root joint to read {name}")
            q, v = self.root_joint.qpos.start, self.root_joint.qvel.start
            return {
                "root_pos_w": ("qpos", slice(q, q + 3)),
                "root_quat_w": ("qpos", slice(q + 3, q + 7)),
                "root_lin_vel_w": ("qvel", slice(v, v + 3)),
                "root_ang_vel_b": ("qvel", slice(v + 3, v + 6)),
            }[name]
        if name not in _JOINT_FIELDS:
            raise ConfigError(f"entities have no field {name!r}{did_you_mean(name, FIELDS)}")
        if not self.joints:
            raise CapabilityError(f"entity {self.name!r} has no joints to read {name}")
        if name == "joint_pos":
            return "qpos", slice(self.joints[0].qpos.start, self.joints[-1].qpos.stop)
        dofs = slice(self.joints[0].qvel.start, self.joints[-1].qvel.stop)
        return ("qvel" if name == "joint_vel" else "qfrc_actuator"), dofs

    def write_root_pose(self, pos: Tensor, quat: Tensor) -> None:
        """Stage the root's pose for the rows of the open transaction.

        Args:
            pos: ``[n, 3]`` m, world frame.
            quat: ``[n, 4]``.
        """
        cols = self._root().qpos
        self._scene.staged.qpos[:, cols.start : cols.start + 3] = pos
        self._scene.staged.qpos[:, cols.start + 3 : cols.stop] = quat

    def write_root_velocity(self, lin_vel_w: Tensor, ang_vel_b: Tensor) -> None:
        """Stage the root's velocity.

        Args:
            lin_vel_w: ``[n, 3]`` m/s, world frame.
            ang_vel_b: ``[n, 3]`` rad/s, body frame.
        """
        cols = self._root().qvel
        self._scene.staged.qvel[:, cols.start : cols.start + 3] = lin_vel_w
        self._scene.staged.qvel[:, cols.start + 3 : cols.stop] = ang_vel_b

    def write_joint_state(self, pos: Tensor, vel: Tensor) -> None:
        """Stage all joints.

        Args:
            pos, vel: ``[n, num_joints]`` rad, rad/s.
        """
        staged = self._scene.staged
        staged.qpos[:, self.joints[0].qpos.start : self.joints[-1].qpos.stop] = pos
        staged.qvel[:, self.joints[0].qvel.start : self.joints[-1].qvel.stop] = vel

    def _root(self) -> JointInfo:
        if self.root_joint is None:
            raise CapabilityError(f"entity {self.name!r} is fixed: it has no root state to write")
        return self.root_joint


@dataclass
class StagedState:
    """The rows of an open transaction and what will be written to them."""

    rows: Tensor
    """``[n]`` int64, on the CPU."""
    qpos: Tensor
    """``[n, nq]`` float64."""
    qvel: Tensor
    """``[n, nv]`` float64."""
    reset: bool
    """Whether a new episode begins."""


class EntityScene:
    """The entities of a model and the one packet that all terms read from.

    Args:
        cfg: the entities.
        backend: the physics.
        device: where terms run.

    Raises:
        ConfigError: an entity's root body does not exist.
    """

    def __init__(self, cfg: SceneCfg, backend: SimBackend, device: torch.device) -> None:
        self._backend = backend
        self._device = device
        self.entities = {
            name: Entity(name, entity, backend, self, device)
            for name, entity in cfg.entities.items()
        }
        self._declared: dict[tuple[str, str], None] = {}
        self._sensor_columns: dict[str, Tensor] = {}
        self._plan: HostBridgeTransferPlan | None = None
        self._staged: StagedState | None = None

    def __getitem__(self, name: str) -> Entity:
        try:
            return self.entities[name]
        except KeyError:
            raise ConfigError(
                f"the scene has no entity {name!r}{did_you_mean(name, self.entities)}; "
                f"it has {sorted(self.entities)}"
            ) from None

    @property
    def plan(self) -> HostBridgeTransferPlan:
        """The compiled reads, with their transfer counts."""
        if self._plan is None:
            raise ConfigError("call EntityScene.compile_tensor_reads() before reading")
        return self._plan

    def resolve(self, cfg: SceneEntityCfg) -> SceneEntityCfg:
        """Turn joint patterns into columns.

        Raises:
            ConfigError: no such entity, or a pattern matches no joint.
        """
        entity = self[cfg.name]
        if cfg.joint_names == (".*",):
            return cfg
        ids = torch.tensor(entity.find_joints(cfg.joint_names), device=self._device)
        return replace(cfg, joint_ids=ids)

    def declare(self, entity: str, name: str) -> None:
        """Add a field of an entity to the union that is read every phase."""
        for base in _DERIVED.get(name, (name,)):
            self[entity].source(base)
            self._declared[(entity, base)] = None

    def declare_sensor(self, name: str) -> None:
        """Add a sensor to the union that is read every phase."""
        self._backend.get_tensor_capabilities().require_sensor(name)
        self._declared[("", f"sensor:{name}")] = None

    def compile_tensor_reads(self) -> HostBridgeTransferPlan:
        """Freeze the union of declared columns into one packet."""
        keys = list(self._declared)
        sources: list[Source] = [
            self[entity].source(name) if entity else (name, slice(None)) for entity, name in keys
        ]
        self._plan = self._backend.compile_host_bridge_io(sources, self._device)
        for (entity, name), cols in zip(keys, self._plan.columns, strict=True):
            column = self._plan.packet[:, cols]
            if entity:
                self[entity].data._columns[name] = column
            else:
                self._sensor_columns[name.removeprefix("sensor:")] = column
        self.read()
        return self._plan

    def sensor(self, name: str) -> Tensor:
        """Current values of a declared sensor, ``[num_envs, width]``."""
        try:
            return self._sensor_columns[name]
        except KeyError:
            raise ConfigError(
                f"sensor {name!r} was read by a term that did not declare it: decorate the term "
                "with @reads(sensors=<parameter that names the sensors>)"
            ) from None

    def read(self) -> None:
        """One packed read of every environment; terms see the new values."""
        self.plan.read()
        self._changed()

    def read_rows(self, rows: Tensor) -> None:
        """One packed read of some environments, after they were written."""
        self.plan.read_rows(rows)
        self._changed()

    def check_finite(self) -> None:
        """One reduction over the packet.

        Raises:
            NonFiniteError: names the fields and rows.
        """
        packet = self.plan.packet
        if is_finite(packet):
            return
        bad = {}
        for (entity, name), cols in zip(self._declared, self.plan.columns, strict=True):
            if rows := bad_rows(packet[:, cols]):
                bad[f"{entity}.{name}" if entity else name] = rows
        raise NonFiniteError(f"physics left non-finite values (field: first rows): {bad}")

    def stage_reset(self, rows: Tensor) -> None:
        """Open a transaction that will start new episodes from the home pose."""
        rows, n = rows.cpu(), rows.shape[0]
        qpos = self._backend.default_qpos.repeat(n, 1)
        qvel = qpos.new_zeros(n, self._backend.get_state_views()["qvel"].shape[1])
        self._staged = StagedState(rows, qpos, qvel, reset=True)

    def stage_current(self, rows: Tensor) -> None:
        """Open a transaction on the current state, for a push or a nudge."""
        rows, views = rows.cpu(), self._backend.get_state_views()
        self._staged = StagedState(rows, views["qpos"][rows], views["qvel"][rows], reset=False)

    @property
    def staged(self) -> StagedState:
        """The open transaction."""
        if self._staged is None:
            raise ConfigError("state can be written only by an event term, while it runs")
        return self._staged

    def validate_staged(self) -> None:
        """Check the whole payload before anything is written.

        Raises:
            NonFiniteError: a staged value is not finite; nothing was written.
        """
        staged = self.staged
        if is_finite(staged.qpos) and is_finite(staged.qvel):
            return
        bad = staged.rows[bad_rows(torch.cat((staged.qpos, staged.qvel), dim=1))]
        raise NonFiniteError(
            f"a reset or interval event staged non-finite state for rows {bad.tolist()}: "
            "nothing was written"
        )

    def discard_staged(self) -> None:
        """Close the transaction without writing."""
        self._staged = None

    def commit_staged(self) -> None:
        """Write the transaction once and close it."""
        staged, self._staged = self.staged, None
        self._backend.set_state_tensor(staged.rows, staged.qpos, staged.qvel, reset=staged.reset)

    def _changed(self) -> None:
        for entity in self.entities.values():
            entity.data._cache.clear()


def find_names(patterns: Sequence[str], names: Sequence[str], what: str) -> list[int]:
    """Indices of the names that match any pattern as a whole, in the order of ``names``.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    found: set[int] = set()
    for pattern in patterns:
        hits = [i for i, name in enumerate(names) if re.fullmatch(pattern, name)]
        if not hits:
            raise ConfigError(
                f"pattern {pattern!r} matches no {what}{did_you_mean(pattern, names)}; "
                f"there are {list(names)}"
            )
        found.update(hits)
    return sorted(found)
