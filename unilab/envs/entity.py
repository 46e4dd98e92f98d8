"""Entities: one articulated body of the model, its current state and the writes of a reset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.backends import SimBackend
from unilab.backends.base import JointInfo, Source
from unilab.envs.actuators import IdealPDActuatorCfg
from unilab.envs.names import Patterns, find_actuators, find_names
from unilab.envs.rotations import gravity_direction, rotate_inverse
from unilab.errors import CapabilityError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.transaction import Transaction

Ids = Any  # Tensor | Sequence[int] | slice, which terms index with
_ALL = (".*",)

DERIVED_FIELDS = {
    "root_lin_vel_b": ("root_quat_w", "root_lin_vel_w"),
    "projected_gravity_b": ("root_quat_w",),
}
"""Fields that are computed, and the fields that they are computed from."""
ROOT_FIELDS = ("root_pos_w", "root_quat_w", "root_lin_vel_w", "root_ang_vel_b")
JOINT_FIELDS = ("joint_pos", "joint_vel", "joint_torque")
FIELDS = (*ROOT_FIELDS, *JOINT_FIELDS, *DERIVED_FIELDS)
"""Every field of :class:`EntityData` that changes in a step."""
CONSTANTS = ("default_joint_pos", "joint_pos_limits")
"""Those that never change."""


@dataclass(frozen=True, kw_only=True)
class EntityCfg:
    """One articulated body of the model."""

    root_body: str
    """Top body of the entity's tree; the entity is this body and all bodies below it."""
    actuators: dict[str, IdealPDActuatorCfg] = field(default_factory=dict)
    """Groups of motors by any name, in place of the model file's actuators of their joints."""
    self_collisions: bool = False
    """Whether to let its bodies collide with each other, except for a parent with its child and for
    bodies that overlap in the keyframe; False: as in the model file. Geoms whose ``contype`` and
    ``conaffinity`` are 0 still touch nothing."""


@dataclass(frozen=True)
class SceneEntityCfg:
    """An entity, or some of its parts, as a parameter of a term.

    Patterns are regular expressions, one or several, each matched against whole names. Ids
    (tensors, lists, slices) select among the parts that the patterns match, by default all. The
    scene checks them, and fills in the ids of all selected parts, as tensors.
    """

    name: str = "robot"
    """The entity's name in the scene."""
    joint_names: Patterns = _ALL
    body_names: Patterns = _ALL
    geom_names: Patterns | None = None
    """None selects all geoms of the bodies, named or not."""
    actuator_names: Patterns | None = None
    """Names of actuators or of their joints; None selects all actuators of the joints."""
    joint_ids: Ids = field(default_factory=lambda: slice(None))
    """Columns of the entity's joint tensors."""
    body_ids: Ids = field(default_factory=lambda: slice(None))
    """Body ids in the model."""
    geom_ids: Ids = field(default_factory=lambda: slice(None))
    """Geom ids in the model."""
    actuator_ids: Ids = field(default_factory=lambda: slice(None))
    """Actuator ids in the model."""

    def joints_of(self, value: Tensor) -> Tensor:
        """Select these joints from a ``[num_envs, num_joints]`` tensor of the entity."""
        return value if isinstance(self.joint_ids, slice) else value[:, self.joint_ids]

    def refuse_ids_except(self, kinds: Sequence[str]) -> None:
        """Refuse ids of other kinds than those that a term uses."""
        for kind in ("joint", "body", "geom", "actuator"):
            ids = getattr(self, f"{kind}_ids")
            if kind not in kinds and not (isinstance(ids, slice) and ids == slice(None)):
                raise ConfigError(
                    f"{kind}_ids of {self.name!r} must be left out, got {ids!r}: the term uses "
                    + " and ".join(f"{used}_ids" for used in kinds)
                )


BodyReads = Callable[[SceneEntityCfg, str], Tensor]
"""Reads a field of the bodies of a parameter, ``[num_envs, bodies, width]``."""
BODY_FIELDS = {"xpos": 3, "xquat": 4, "cvel": 6, "subtree_com": 3}
"""Widths of MuJoCo's fields of each body; ``subtree_com`` is read of the body's whole tree."""


class EntityData:
    """Current state of an entity, float32 on the environment's device.

    Joint tensors are ``[num_envs, num_joints]`` in model order (rad, rad/s, N m), root tensors
    ``[num_envs, 3]`` (m, m/s, rad/s) or ``[num_envs, 4]`` (w, x, y, z). ``_w`` is the world frame,
    ``_b`` the root body's frame. The scene sets the fields that are in its packet, as attributes;
    ``undeclared`` is called to read another one.
    """

    joint_pos: Tensor
    joint_vel: Tensor
    joint_torque: Tensor
    """Actuator torque at the joints during the last substep."""
    root_pos_w: Tensor
    root_quat_w: Tensor
    root_lin_vel_w: Tensor
    root_ang_vel_b: Tensor

    def __init__(
        self,
        joints: Sequence[JointInfo],
        backend: SimBackend,
        device: torch.device,
        undeclared: Callable[[str], Tensor],
        bodies: BodyReads,
    ) -> None:
        self._bodies = bodies
        self._cache: dict[str, Tensor] = {}
        self._on_computed: Callable[[str, Tensor], None] | None = None
        """Called with each computed field, while the scene records reads."""
        self._undeclared = undeclared
        home = [float(backend.default_qpos[j.qpos.start]) for j in joints]
        self.default_joint_pos = torch.tensor(home, dtype=torch.float32, device=device)
        """``[num_joints]``, the home pose."""
        limits = torch.tensor([j.range for j in joints], dtype=torch.float32, device=device)
        self.joint_pos_limits = limits.reshape(-1, 2)
        """``[num_joints, 2]``, lower and upper."""
        self.encoder_bias = torch.zeros(backend.num_envs, len(joints), device=device)
        """``[num_envs, num_joints]`` rad, what the encoders read above ``joint_pos``."""

    def body_pos_w(self, asset_cfg: SceneEntityCfg) -> Tensor:
        """Positions of the bodies' frames, ``[num_envs, bodies, 3]`` m.

        ``asset_cfg`` is a parameter of the term that calls; its ``body_names`` select the bodies.
        """
        return self._bodies(asset_cfg, "xpos")

    def body_quat_w(self, asset_cfg: SceneEntityCfg) -> Tensor:
        """Orientations of the bodies, ``[num_envs, bodies, 4]``; as :meth:`body_pos_w`."""
        return self._bodies(asset_cfg, "xquat")

    def body_lin_vel_w(self, asset_cfg: SceneEntityCfg) -> Tensor:
        """Velocities of the bodies' frames, ``[num_envs, bodies, 3]`` m/s; as
        :meth:`body_pos_w`."""
        # MuJoCo's are those of the point of the body that is at the robot's centre of mass.
        rates, at_com = self._bodies(asset_cfg, "cvel").split(3, -1)
        lever = self._bodies(asset_cfg, "xpos") - self._bodies(asset_cfg, "subtree_com")
        return at_com + torch.linalg.cross(rates, lever)

    def body_ang_vel_w(self, asset_cfg: SceneEntityCfg) -> Tensor:
        """Angular velocities of the bodies, ``[num_envs, bodies, 3]`` rad/s, world frame; as
        :meth:`body_pos_w`."""
        return self._bodies(asset_cfg, "cvel")[..., :3]

    @property
    def root_lin_vel_b(self) -> Tensor:
        return self._derive("root_lin_vel_b", rotate_inverse)

    @property
    def projected_gravity_b(self) -> Tensor:
        """Unit vector of gravity in the root frame: (0, 0, -1) when upright."""
        return self._derive("projected_gravity_b", gravity_direction)

    if not TYPE_CHECKING:  # a type checker reports a misspelt field itself

        def __getattr__(self, name: str) -> Tensor:
            """Called for fields that are not in the scene's packet."""
            if name in FIELDS:
                return self._undeclared(name)
            raise AttributeError(
                f"an entity's data has no field {name!r}{did_you_mean(name, FIELDS)}; "
                f"it has {FIELDS}"
            )

    def _derive(self, name: str, function: Callable[..., Tensor]) -> Tensor:
        """Compute a field from others, once a phase."""
        value = self._cache.get(name)
        if value is None:
            fields = [getattr(self, field) for field in DERIVED_FIELDS[name]]
            if self._on_computed is None:
                value = function(*fields)
            else:
                # Inference tensors have no version.
                with torch.inference_mode(False), torch.no_grad():
                    value = function(*fields)
                self._on_computed(name, value)
            self._cache[name] = value
        return value


class Entity:
    """One articulated body: its names, its data and the writes of a reset.

    Writes are staged for the rows of the open transaction, which ``staged`` returns.
    """

    def __init__(
        self,
        name: str,
        cfg: EntityCfg,
        backend: SimBackend,
        device: torch.device,
        staged: Callable[[], Transaction],
        undeclared: Callable[[str], Tensor],
        read_block: Callable[[tuple[tuple[str, str], ...]], Tensor],
    ) -> None:
        if cfg.root_body not in backend.bodies:
            raise ConfigError(
                f"entity {name!r}: the model has no body {cfg.root_body!r}"
                f"{did_you_mean(cfg.root_body, backend.bodies)}"
            )
        self.name = name
        self.cfg = cfg
        self._model = backend
        self._staged = staged
        tree = backend.subtree(cfg.root_body)
        joints = [j for j in backend.joints if j.body in tree]
        self.root_joint = next((j for j in joints if j.type == "free"), None)
        self.joints = tuple(j for j in joints if j.type in ("hinge", "slide"))
        self.joint_names = tuple(j.name for j in self.joints)
        # Joint tensors are one block of columns.
        spanned = self.joints[-1].qvel.stop - self.joints[0].qvel.start if self.joints else 0
        whole = len(self.joints) + (self.root_joint is not None) == len(joints)
        if spanned != len(self.joints) or not whole:
            kinds = {j.name: j.type for j in joints}
            raise CapabilityError(
                f"entity {name!r} must have hinge and slide joints, one after the other, and at "
                f"most one free joint, got {kinds}"
            )
        self.bodies = tuple(b for b in backend.bodies if b in tree)
        dofs = [j.qvel.start for j in self.joints]
        self.dof_ids = torch.tensor(dofs, dtype=torch.int64, device=device)
        """``[num_joints]``, columns of the joints among the model's degrees of freedom."""
        self.data = EntityData(self.joints, backend, device, undeclared, self._read_bodies)
        self._read_block = read_block
        self._body_reads: dict[tuple[int, str], tuple[Any, tuple[tuple[str, str], ...]]] = {}
        """Reads by a parameter's ids of bodies, which are kept, and field."""
        self._sources: dict[str, Source] = {}
        if self.joints:
            first, last = self.joints[0], self.joints[-1]
            columns = slice(first.qvel.start, last.qvel.stop)
            self._sources |= {
                "joint_pos": ("qpos", slice(first.qpos.start, last.qpos.stop)),
                "joint_vel": ("qvel", columns),
                "joint_torque": ("qfrc_actuator", columns),
            }
        root = slice(0, 0)
        if self.root_joint is not None:
            root = self.root_joint.qpos
            q, v = root.start, self.root_joint.qvel.start
            self._sources |= {
                "root_pos_w": ("qpos", slice(q, q + 3)),
                "root_quat_w": ("qpos", slice(q + 3, q + 7)),
                "root_lin_vel_w": ("qvel", slice(v, v + 3)),
                "root_ang_vel_b": ("qvel", slice(v + 3, v + 6)),
            }
        for body in self.bodies:
            i = backend.bodies.index(body)
            trees = (b for b in backend.bodies[1:] if body in backend.subtree(b))
            com = backend.bodies.index(next(trees, body))
            for name, width in BODY_FIELDS.items():
                at = (com if name == "subtree_com" else i) * width
                self._sources[f"{body}.{name}"] = name, slice(at, at + width)
        self.default_root_pose = backend.default_qpos[root].float().to(device)
        """``[7]``, the root's home position and quaternion; ``[0]`` for a fixed entity."""

    def _read_bodies(self, asset_cfg: SceneEntityCfg, field: str) -> Tensor:
        ids = asset_cfg.body_ids
        key = id(ids), field
        if key not in self._body_reads:
            bodies = [self._model.bodies[i] for i in require_ids(ids).tolist()]
            self._body_reads[key] = ids, tuple((self.name, f"{b}.{field}") for b in bodies)
        _, reads = self._body_reads[key]
        return self._read_block(reads).unflatten(1, (len(reads), -1))

    def find_joints(self, patterns: Patterns) -> list[int]:
        """Columns of the joints whose whole names match, in model order."""
        if not self.joints and tuple(patterns) == _ALL:
            return []
        return find_names(patterns, self.joint_names, f"joint of {self.name!r}")

    def find_bodies(self, patterns: Patterns) -> list[int]:
        """Model ids of the entity's bodies whose whole names match."""
        found = find_names(patterns, self.bodies, f"body of {self.name!r}")
        return [self._model.bodies.index(self.bodies[i]) for i in found]

    def find_geoms(self, patterns: Patterns | None, bodies: Sequence[int]) -> list[int]:
        """Model ids of the bodies' geoms whose whole names match; None selects all."""
        names = {self._model.bodies[i] for i in bodies}
        own = {i: g.name for i, g in enumerate(self._model.geoms) if g.body in names}
        ids = list(own)
        if patterns is None:
            return ids
        return [ids[i] for i in find_names(patterns, list(own.values()), f"geom of {self.name!r}")]

    def find_actuators(self, patterns: Patterns | None, joints: Sequence[int]) -> list[int]:
        """Model ids of the joints' actuators whose whole names match; None selects all."""
        names = {self.joint_names[i] for i in joints}
        own = {i: a for i, a in enumerate(self._model.actuators) if a.joint in names}
        ids = list(own)
        if patterns is None:
            return ids
        found = find_actuators(patterns, list(own.values()), f"actuator of {self.name!r}")
        return [ids[i] for i in found]

    def source(self, name: str) -> Source:
        """The physics array and the columns that a field is read from."""
        try:
            return self._sources[name]
        except KeyError:
            if name not in FIELDS:
                hint = did_you_mean(name, FIELDS)
                raise ConfigError(f"entities have no field {name!r}{hint}") from None
            part = "free root joint" if name in ROOT_FIELDS else "joints"
            raise CapabilityError(f"entity {self.name!r} has no {part} to read {name}") from None

    def write_root_pose(self, pos: Tensor, quat: Tensor) -> None:
        """Stage the root's pose: ``[n, 3]`` m, world frame; ``[n, 4]``, of any length but 0."""
        root = self._staged().qpos[:, self.require_root().qpos]
        _check_shape("root position", pos, root[:, :3])
        _check_shape("root quaternion", quat, root[:, 3:])
        length = quat.norm(dim=1, keepdim=True)
        root[:, :3], root[:, 3:] = pos, quat / length

    def write_root_velocity(self, lin_vel_w: Tensor, ang_vel_b: Tensor) -> None:
        """Stage the root's velocity ``[n, 3]``: m/s, world frame, and rad/s, body frame."""
        root = self._staged().qvel[:, self.require_root().qvel]
        _check_shape("root linear velocity", lin_vel_w, root[:, :3])
        _check_shape("root angular velocity", ang_vel_b, root[:, 3:])
        root[:, :3], root[:, 3:] = lin_vel_w, ang_vel_b

    def staged_root_velocity(self) -> Tensor:
        """``[n, 6]``, the root's velocity with the writes so far, as in the write."""
        return self._staged().qvel[:, self.require_root().qvel]

    def write_joint_state(
        self, pos: Tensor, vel: Tensor, joint_ids: Tensor | slice = slice(None)
    ) -> None:
        """Stage joints, ``[n, joints]`` rad and rad/s; ``joint_ids`` are the entity's columns."""
        if not self.joints:
            raise CapabilityError(f"entity {self.name!r} has no joints to write")
        staged = self._staged()
        qpos = staged.qpos[:, self.joints[0].qpos.start : self.joints[-1].qpos.stop]
        qvel = staged.qvel[:, self.joints[0].qvel.start : self.joints[-1].qvel.stop]
        chosen = qpos[:, joint_ids]
        _check_shape("joint position", pos, chosen)
        _check_shape("joint velocity", vel, chosen)
        qpos[:, joint_ids], qvel[:, joint_ids] = pos.to(qpos), vel.to(qvel)

    def means_root(self, asset_cfg: SceneEntityCfg) -> bool:
        """Whether a term of one body means the root: its ``body_names`` were left out."""
        if isinstance(asset_cfg.body_ids, slice) and asset_cfg.body_names == _ALL:
            return True  # the default of a term that another term calls
        bodies = len(require_ids(asset_cfg.body_ids))
        if 1 < bodies < len(self.bodies):
            raise ConfigError(f"body_names of asset_cfg must be of one body, got {bodies} bodies")
        return bodies == len(self.bodies)

    def require_root(self) -> JointInfo:
        """The free root joint; a fixed entity is a CapabilityError."""
        if self.root_joint is None:
            raise CapabilityError(f"entity {self.name!r} is fixed: it has no root state to write")
        return self.root_joint


def require_ids(ids: Ids) -> Tensor:
    """Ids of a parameter's parts; an ``asset_cfg`` that no term was bound with is refused."""
    if not isinstance(ids, Tensor):
        raise ConfigError("asset_cfg must be a parameter of the term, got one that is unresolved")
    return ids


def _check_shape(what: str, value: Tensor, target: Tensor) -> None:
    """Refuse values that PyTorch would broadcast over the rows."""
    if value.shape != target.shape:
        raise ConfigError(
            f"{what} must have shape {tuple(target.shape)}, a row for each of env_ids, got "
            f"{tuple(value.shape)}: use expand() for one value for all"
        )
