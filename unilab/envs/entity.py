"""One articulated body of the model: its names, and the writes of a reset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.backends import SimBackend
from unilab.backends.base import JointInfo, Source
from unilab.envs.entity_data import FIELDS, JOINT_FIELDS, ROOT_FIELDS, EntityData
from unilab.errors import CapabilityError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.scene import EntityScene


Patterns = str | Sequence[str]
_ALL = (".*",)


@dataclass(frozen=True, kw_only=True)
class EntityCfg:
    """One articulated body of the model."""

    root_body: str
    """Body at the top of the entity's tree; the entity is that body and all below it."""


@dataclass(frozen=True)
class SceneEntityCfg:
    """An entity, or some of its parts, as a term's parameter.

    Patterns are regular expressions, one or several, each matched against whole names.
    """

    name: str = "robot"
    """The entity's name in the scene."""
    joint_names: Patterns = _ALL
    body_names: Patterns = _ALL
    geom_names: Patterns | None = None
    """None takes all geoms of the bodies, named or not."""
    actuator_names: Patterns | None = None
    """None takes all actuators of the joints."""
    joint_ids: Tensor | slice = field(default_factory=lambda: slice(None))
    """Columns of the entity's joint tensors; filled in by the scene, as those below."""
    body_ids: Tensor | slice = field(default_factory=lambda: slice(None))
    """Bodies of the model."""
    geom_ids: Tensor | slice = field(default_factory=lambda: slice(None))
    """Geoms of the model."""
    actuator_ids: Tensor | slice = field(default_factory=lambda: slice(None))
    """Actuators of the model."""

    def joints_of(self, value: Tensor) -> Tensor:
        """The columns of these joints in a ``[num_envs, num_joints]`` tensor of the entity."""
        return value if isinstance(self.joint_ids, slice) else value[:, self.joint_ids]


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
        self.bodies = tuple(b for b in backend.bodies if b in tree)
        self._model = backend
        self.dof_ids = torch.tensor([j.qvel.start for j in self.joints], dtype=torch.int64)
        """``[num_joints]``, columns of the joints among the model's degrees of freedom."""
        self.data = EntityData(name, self.joints, backend.default_qpos, backend.num_envs, device)
        root = slice(0, 0) if self.root_joint is None else self.root_joint.qpos
        self.default_root_pose = backend.default_qpos[root].float().to(device)
        """``[7]``, the root's home position and quaternion; ``[0]`` for a fixed entity."""

    def find_joints(self, patterns: Patterns) -> list[int]:
        """Indices of the joints whose whole names match, in model order.

        Raises:
            ConfigError: a pattern matches nothing; that for all may where there are no joints.
        """
        if not self.joints and tuple(patterns) == _ALL:
            return []
        return find_names(patterns, self.joint_names, f"joint of {self.name!r}")

    def find_bodies(self, patterns: Patterns) -> list[int]:
        """The model's numbers of the entity's bodies whose whole names match.

        Raises:
            ConfigError: a pattern matches nothing.
        """
        found = find_names(patterns, self.bodies, f"body of {self.name!r}")
        return [self._model.bodies.index(self.bodies[i]) for i in found]

    def find_geoms(self, patterns: Patterns | None, bodies: Sequence[int]) -> list[int]:
        """The model's numbers of the bodies' geoms whose whole names match; None takes all.

        Raises:
            ConfigError: a pattern matches nothing.
        """
        names = {self._model.bodies[i] for i in bodies}
        own = [i for i, geom in enumerate(self._model.geoms) if geom.body in names]
        if patterns is None:
            return own
        named = [self._model.geoms[i].name for i in own]
        return [own[i] for i in find_names(patterns, named, f"geom of {self.name!r}")]

    def find_actuators(self, patterns: Patterns | None, joints: Sequence[int]) -> list[int]:
        """The model's numbers of the joints' actuators whose whole names match; None takes all.

        Raises:
            ConfigError: a pattern matches nothing.
        """
        names = {self.joint_names[i] for i in joints}
        own = [i for i, a in enumerate(self._model.actuators) if a.joint in names]
        if patterns is None:
            return own
        named = [self._model.actuators[i].name for i in own]
        return [own[i] for i in find_names(patterns, named, f"actuator of {self.name!r}")]

    def source(self, name: str) -> Source:
        """Where a field is read from.

        Raises:
            ConfigError: there is no such field.
            CapabilityError: the entity has no free root joint or no joints.
        """
        if name in ROOT_FIELDS:
            if self.root_joint is None:
                raise CapabilityError(f"entity {self.name!r} has no free root joint to read {name}")
            q, v = self.root_joint.qpos.start, self.root_joint.qvel.start
            return {
                "root_pos_w": ("qpos", slice(q, q + 3)),
                "root_quat_w": ("qpos", slice(q + 3, q + 7)),
                "root_lin_vel_w": ("qvel", slice(v, v + 3)),
                "root_ang_vel_b": ("qvel", slice(v + 3, v + 6)),
            }[name]
        if name not in JOINT_FIELDS:
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
            quat: ``[n, 4]``, of any length but 0.

        Raises:
            ConfigError: another shape; nothing is written.
            CapabilityError: the entity is fixed.
        """
        root = self._scene.staged.qpos[:, self._root().qpos]
        _check_rows("root position", pos, root[:, :3])
        _check_rows("root quaternion", quat, root[:, 3:])
        length = quat.norm(dim=1, keepdim=True)
        root[:, :3], root[:, 3:] = pos, quat / length

    def write_root_velocity(self, lin_vel_w: Tensor, ang_vel_b: Tensor) -> None:
        """Stage the root's velocity.

        Args:
            lin_vel_w: ``[n, 3]`` m/s, world frame.
            ang_vel_b: ``[n, 3]`` rad/s, body frame.

        Raises:
            ConfigError: another shape; nothing is written.
            CapabilityError: the entity is fixed.
        """
        root = self._scene.staged.qvel[:, self._root().qvel]
        _check_rows("root linear velocity", lin_vel_w, root[:, :3])
        _check_rows("root angular velocity", ang_vel_b, root[:, 3:])
        root[:, :3], root[:, 3:] = lin_vel_w, ang_vel_b

    def staged_root_velocity(self) -> Tensor:
        """The root's velocity in the open transaction.

        Returns:
            ``[n, 6]``: linear, m/s, world frame; angular, rad/s, body frame.
        """
        cols = self._root().qvel
        return self._scene.staged.qvel[:, cols.start : cols.stop]

    def write_joint_state(
        self, pos: Tensor, vel: Tensor, joint_ids: Tensor | slice = slice(None)
    ) -> None:
        """Stage joints.

        Args:
            pos, vel: ``[n, joints]`` rad, rad/s.
            joint_ids: which, as ``SceneEntityCfg.joint_ids``; all by default.

        Raises:
            ConfigError: another shape, or a joint that is not there; nothing is written.
        """
        staged = self._scene.staged
        if isinstance(joint_ids, Tensor):
            joint_ids = joint_ids.cpu()
        qpos = staged.qpos[:, self.joints[0].qpos.start : self.joints[-1].qpos.stop]
        qvel = staged.qvel[:, self.joints[0].qvel.start : self.joints[-1].qvel.stop]
        try:
            chosen = qpos[:, joint_ids]
        except IndexError as error:
            raise ConfigError(
                f"joint_ids are {joint_ids}: {self.name!r} has {qpos.shape[1]} joints"
            ) from error
        _check_rows("joint position", pos, chosen)
        _check_rows("joint velocity", vel, chosen)
        qpos[:, joint_ids], qvel[:, joint_ids] = pos.to(qpos), vel.to(qvel)

    def _root(self) -> JointInfo:
        if self.root_joint is None:
            raise CapabilityError(f"entity {self.name!r} is fixed: it has no root state to write")
        return self.root_joint


def _check_rows(what: str, value: Tensor, target: Tensor) -> None:
    """Refuse values that are not one row for each row that is written: nothing is broadcast.

    Raises:
        ConfigError: names what was written.
    """
    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if shape != tuple(target.shape):
        raise ConfigError(
            f"{what} was written with {shape}: expected a tensor of shape {tuple(target.shape)}, "
            "a row for each of env_ids; expand() one that is the same for all"
        )


def find_names(patterns: Patterns, names: Sequence[str], what: str) -> list[int]:
    """Indices of the names that match any pattern as a whole, in the order of ``names``.

    Raises:
        ConfigError: a pattern matches nothing, or is none.
    """
    if not isinstance(patterns, str | Sequence) or not patterns:
        raise ConfigError(
            f"no names of a {what} are given, but {patterns!r}: give a pattern or several; "
            f"there are {list(names)}"
        )
    found: set[int] = set()
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        if not isinstance(pattern, str):
            raise ConfigError(f"pattern {pattern!r} of a {what} is no string")
        try:
            hits = [i for i, name in enumerate(names) if re.fullmatch(pattern, name)]
        except re.error as error:
            raise ConfigError(f"pattern {pattern!r} is no regular expression: {error}") from error
        if not hits:
            raise ConfigError(
                f"pattern {pattern!r} matches no {what}{did_you_mean(pattern, names)}; "
                f"there are {list(names)}"
            )
        found.update(hits)
    return sorted(found)
