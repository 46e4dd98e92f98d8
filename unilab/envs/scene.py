"""The scene: entities, sensors, one packed read a phase and one staged write a reset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unilab.backends import HostBridgeTransferPlan, SimBackend
from unilab.backends.base import Source
from unilab.envs.entity import CONSTANTS, DERIVED_FIELDS, Entity, EntityCfg, SceneEntityCfg
from unilab.envs.nonfinite import MAX_VALUE, is_finite, is_within, non_finite
from unilab.envs.sensors import ContactSensor, ContactSensorCfg
from unilab.envs.terrains import Terrain, TerrainGeneratorCfg
from unilab.envs.transaction import StagedWrite, State, Transaction
from unilab.errors import ConfigError, NonFiniteError, did_you_mean

NO_WRITE = (
    "must not be written to by a term that reads it, because other terms read it too: use x * 2 in "
    "place of x.mul_(2), or clone it first"
)

Read = tuple[str, str]
"""An entity and one of its fields, or an empty string and a sensor."""


@dataclass(frozen=True, kw_only=True)
class SceneCfg:
    """The model file and the entities in it."""

    model: str | Path
    """Path of the MJCF file."""
    entities: dict[str, EntityCfg] = field(default_factory=dict)
    """Entities by the name that terms use."""
    sensors: dict[str, ContactSensorCfg] = field(default_factory=dict)
    """Contact sensors by the name that terms use; ``env.scene.sensors`` has them."""
    keyframe: str | None = "home"
    """Keyframe that episodes start from, with its activations and mocap poses; None uses the
    model's zero pose."""
    terrain: TerrainGeneratorCfg | None = None
    """Ground in place of the model's plane."""


def _read_name(read: Read) -> str:
    entity, name = read
    return f"{entity}.data.{name}" if entity else f"sensor {name!r}"


def _checked_ids(what: str, ids: Any, size: int, own: list[int]) -> list[int]:
    """Ids of parts as a list: distinct, and of the entity's ``own`` parts."""
    if isinstance(ids, slice):
        found = list(range(size))[ids]
    else:
        listed = ids.reshape(-1).tolist() if isinstance(ids, Tensor | np.ndarray) else ids
        found = list(listed) if isinstance(listed, Sequence) else [listed]
    integers = all(isinstance(i, Integral) and not isinstance(i, bool) for i in found)
    if not found or not integers or len(set(found)) < len(found) or not set(found) <= set(own):
        raise ConfigError(f"{what} must be distinct ids among {own}, got {ids!r}")
    return found


class EntityScene:
    """The entities of a model and the one packet that all terms read from.

    While the environment is built, every term is called once inside :meth:`recording`, which notes
    the fields and sensors that it reads. :meth:`compile_tensor_reads` then freezes their union into
    one packet. From then on a read of anything else is an error.
    """

    def __init__(
        self,
        cfg: SceneCfg,
        backend: SimBackend,
        device: torch.device,
        terrain: Terrain | None = None,
    ) -> None:
        self.terrain = terrain
        """The ground; None: the plane at height 0."""
        self._backend = backend
        self._device = device
        self.physics = backend.tensor_execution().device
        """Device of physics."""
        self._declared: dict[Read, None] = {}
        self._recorded: dict[Read, None] | None = None
        self._dry_plans: dict[Read, HostBridgeTransferPlan] = {}
        self._versions: dict[str, tuple[Tensor, int]] = {}
        """What must not be written to in a first call, with PyTorch's versions of it, by name."""
        self._constants: list[tuple[str, Tensor, int]] = []
        """The entities' home poses and joint limits, with PyTorch's versions of them."""
        self.packet = torch.zeros(0)
        """What the terms read; its version changes when one of them writes to it."""
        self._sensor_columns: dict[str, Tensor] = {}
        self._columns: dict[Read, slice] = {}
        """Columns of the packet that each read has."""
        self._blocks: dict[tuple[Read, ...], slice | Tensor] = {}
        """Columns of the packet that some reads have together."""
        self._dry_blocks: dict[tuple[Read, ...], None] = {}
        """Reads together so far, whose columns are found when the packet is compiled: on an
        accelerator the first step would otherwise copy them."""
        self.plan: HostBridgeTransferPlan
        """The compiled reads, with their transfer counts."""
        self._compiled = False
        self._staged: Transaction | None = None
        self._home = backend.default_qpos.to(device)
        self._fields: dict[str, Tensor] = {}
        self._nominal: dict[str, Tensor] = {}
        self.entities = {
            name: Entity(
                name,
                entity,
                backend,
                device,
                lambda: self.staged,
                partial(self._read_dry, name),
                self._read_block,
            )
            for name, entity in cfg.entities.items()
        }
        self.sensors = {
            name: ContactSensor(
                name,
                sensor,
                backend,
                cfg.entities,
                lambda own: self._read_block(tuple(("", each) for each in own)),
                device,
            )
            for name, sensor in cfg.sensors.items()
        }
        """Contact sensors by name."""
        self.diverged = torch.zeros(backend.num_envs, dtype=torch.bool, device=device)
        """``[num_envs]``, rows whose physics diverged in the last step."""
        self.wrenches: Tensor | None = None
        """``[num_envs, bodies of the model, 7]`` on the physics' device, forces and torques on
        bodies with the control steps that they still last; None: no event writes any."""
        self.before_write: Callable[[StagedWrite, Tensor], None] | None = None
        """Called with every write to a model parameter and its rows, before the write."""

    def __getitem__(self, name: str) -> Entity:
        try:
            return self.entities[name]
        except KeyError:
            raise ConfigError(
                f"the scene has no entity {name!r}{did_you_mean(name, self.entities)}; "
                f"it has {sorted(self.entities)}"
            ) from None

    def require_terrain(self) -> Terrain:
        """The terrain; a scene without one is a ConfigError."""
        if self.terrain is None:
            raise ConfigError("scene.terrain must be given for this term, got None")
        return self.terrain

    def ground_height(self, x: Tensor, y: Tensor) -> Tensor:
        """Height of the ground at points of the world, m; 0 without a terrain."""
        return torch.zeros_like(x) if self.terrain is None else self.terrain.height(x, y)

    def cast_rays(self, start: Tensor, direction: Tensor, exclude: Sequence[str] = ()) -> Tensor:
        """Distances to the nearest geom along rays, ``[num_envs, rays]`` m; infinite for a miss.

        On an accelerator it is one copy each way.

        Args:
            start, direction: ``[num_envs, rays, 3]``, m and unit vectors, world frame.
            exclude: entities that the rays pass through.
        """
        passed = frozenset().union(*(self[name].bodies for name in exclude))
        start, direction = torch.stack((start, direction)).cpu().double()
        distance = self._backend.cast_rays(start, direction, passed)
        return distance.to(self._device, torch.float32)

    def resolve(self, cfg: SceneEntityCfg) -> SceneEntityCfg:
        """Turn patterns of names into ids, and check the ids of the parameter."""
        entity, model = self[cfg.name], self._backend
        ids: dict[str, Any] = {}

        def find(what: str, size: int, search: Callable[[Any], list[int]]) -> list[int]:
            names, chosen = getattr(cfg, f"{what}_names"), getattr(cfg, f"{what}_ids")
            found = search(names)
            if not (isinstance(chosen, slice) and chosen == slice(None)):
                found = _checked_ids(f"{what}_ids of {cfg.name!r}", chosen, size, found)
            ids[f"{what}_ids"] = torch.tensor(found, dtype=torch.int64, device=self._device)
            return found

        joints = find("joint", len(entity.joints), entity.find_joints)
        bodies = find("body", len(model.bodies), entity.find_bodies)
        find("geom", len(model.geoms), lambda names: entity.find_geoms(names, bodies))
        find("actuator", len(model.actuators), lambda n: entity.find_actuators(n, joints))
        if joints == list(range(len(entity.joints))):
            ids["joint_ids"] = slice(None)
        return replace(cfg, **ids)

    def declare(self, entity: str, name: str) -> None:
        """Add a field of an entity to the packet, if no term reads it in its first call."""
        for base in DERIVED_FIELDS.get(name, (name,)):
            source, _ = self[entity].source(base)
            self._backend.get_tensor_capabilities().require(source)
            self._declared[(entity, base)] = None

    def declare_sensor(self, name: str) -> None:
        """Add a sensor to the packet, if no term reads it in its first call."""
        self._backend.get_tensor_capabilities().require(f"sensor:{name}")
        self._declared[("", name)] = None

    @contextmanager
    def recording(self) -> Iterator[dict[Read, None]]:
        """Declare every field and sensor that is read in the block, and collect them.

        A write to one of them, or to a tensor of :meth:`watch`, is an error.
        """
        self._changed()
        self._recorded, self._versions = {}, {}
        for name, entity in self.entities.items():
            entity.data._on_computed = partial(self._watch_computed, name)
        try:
            yield self._recorded
            written = [k for k, (value, v) in self._versions.items() if value._version != v]
            if written:
                raise ConfigError(f"{', '.join(written)} {NO_WRITE}")
        finally:
            self._recorded = None
            for entity in self.entities.values():
                entity.data._on_computed = None
            self._changed()

    def watch(self, name: str, value: Tensor) -> None:
        """Refuse writes to a tensor in the rest of the :meth:`recording` block."""
        if not value.is_inference():
            self._versions[name] = value, value._version

    def _watch_computed(self, entity: str, name: str, value: Tensor) -> None:
        self.watch(_read_name((entity, name)), value)

    @property
    def in_first_call(self) -> bool:
        """Whether a term is called for the first time, while the environment is built."""
        return self._recorded is not None

    def _read_dry(self, entity: str, name: str) -> Tensor:
        """Read one field or sensor while it is not in the packet: a first call's read."""
        key = (entity, name)
        what = _read_name(key)
        if self._compiled:
            raise ConfigError(
                f"{what} must be read by some term when the environment is built, got its first "
                "read now: declare it with @reads, or env.scene.declare in a command's __init__"
            )
        if self._recorded is None:
            raise ConfigError(f"{what} must be read in a term's call, got a read in its __init__")
        self._recorded[key] = None
        if key not in self._dry_plans:
            if entity:
                self.declare(entity, name)
            else:
                self.declare_sensor(name)
            with torch.inference_mode(False):
                self._dry_plans[key] = self._backend.compile_host_bridge_io(
                    [self._source(key)], self._device
                )
        plan = self._dry_plans[key]
        if what not in self._versions:  # each read writes to the packet
            self.watch(what, plan.read())
        return plan.packet

    def _read_block(self, reads: tuple[Read, ...]) -> Tensor:
        """Fields and sensors side by side; a view of the packet if they are adjacent there."""
        if not self._compiled:
            self._dry_blocks[reads] = None
            return torch.cat([self._read_dry(*read) for read in reads], 1)
        at = self._blocks.get(reads)
        if at is None:
            at = self._blocks[reads] = self._block_columns(reads)
        packet = self.plan.packet
        return packet[:, at] if isinstance(at, slice) else packet.index_select(1, at)

    def _block_columns(self, reads: tuple[Read, ...]) -> slice | Tensor:
        unread = next((read for read in reads if read not in self._columns), None)
        if unread is not None:
            self._read_dry(*unread)  # raises
        columns = [self._columns[read] for read in reads]
        listed = [c for cols in columns for c in range(cols.start, cols.stop)]
        at = slice(listed[0], listed[-1] + 1)
        if listed == list(range(at.start, at.stop)):
            return at
        return torch.tensor(listed, device=self._device)

    def _source(self, read: Read) -> Source:
        entity, name = read
        return self[entity].source(name) if entity else (f"sensor:{name}", slice(None))

    def compile_tensor_reads(self) -> HostBridgeTransferPlan:
        """Freeze the union of what is read into one packet, and read it."""
        for sensor in self.sensors.values():
            for name in sensor.read_always():
                self.declare_sensor(name)
        sources = [self._source(key) for key in self._declared]
        self.plan = self._backend.compile_host_bridge_io(sources, self._device)
        self._compiled, self.packet = True, self.plan.packet
        self._columns = dict(zip(self._declared, self.plan.columns, strict=True))
        self._blocks = {reads: self._block_columns(reads) for reads in self._dry_blocks}
        for (entity, name), cols in self._columns.items():
            fields = vars(self[entity].data) if entity else self._sensor_columns
            fields[name] = self.plan.packet[:, cols]
        for plan in self._dry_plans.values():
            plan.packet.fill_(torch.nan)  # a term that keeps it would read stale values
        self._dry_plans.clear()
        for name, owner in self.entities.items():
            own = {f"data.{k}": getattr(owner.data, k) for k in CONSTANTS}
            own["default_root_pose"] = owner.default_root_pose
            self._constants += [(f"{name}.{k}", value, value._version) for k, value in own.items()]
        self.read()
        return self.plan

    def sensor(self, name: str) -> Tensor:
        """Current values of a sensor, ``[num_envs, width]``."""
        value = self._sensor_columns.get(name)
        return self._read_dry("", name) if value is None else value

    def read(self) -> None:
        """One packed read of every environment; terms see the new values."""
        written = [name for name, value, version in self._constants if value._version != version]
        if written:
            raise ConfigError(f"{', '.join(written)} {NO_WRITE}")
        self.plan.read()
        self._changed()

    def check_finite(self, lose_rows: bool = False) -> NonFiniteError | None:
        """Check the packet, with one reduction, and raise an error that names rows and fields.

        ``lose_rows`` returns the error instead, also for values beyond ``MAX_VALUE``, marks its
        rows in ``diverged`` and lets terms read zeros there.
        """
        packet = self.plan.packet
        # Larger values are lost before a term could overflow.
        limit = MAX_VALUE if lose_rows else None
        if is_finite(packet) if limit is None else is_within(packet, limit):
            if lose_rows:
                self.diverged.fill_(False)
            return None
        values = {
            f"{entity}.{name}" if entity else f"sensor:{name}": packet[:, cols]
            for (entity, name), cols in self._columns.items()
        }
        error = non_finite("physics left non-finite values", values, limit=limit)
        if not lose_rows:
            raise error
        torch.logical_not((packet.abs() <= MAX_VALUE).all(1), out=self.diverged)
        packet.masked_fill_(self.diverged.unsqueeze(1), 0.0)
        return error

    def _changed(self) -> None:
        for entity in self.entities.values():
            entity.data._cache.clear()

    def declare_field(self, name: str) -> None:
        """Let a model parameter differ between environments, for a term that writes it."""
        if name not in self._fields:
            self._fields[name] = self._backend.expand(name)
            nominal = self._fields[name][0].to(self._device, copy=True)
            # In float64 also where physics is not, so that a seed draws the same everywhere.
            self._nominal[name] = nominal.double() if nominal.is_floating_point() else nominal

    def nominal(self, name: str) -> Tensor:
        """A declared model parameter with the model file's values, without a row dimension, on the
        environment's device."""
        try:
            return self._nominal[name]
        except KeyError:
            raise ConfigError(
                f"model field {name!r} must be declared by the term that uses it: decorate the "
                f"term with @writes({name!r})"
            ) from None

    def write_field(self, name: str, index: tuple[Tensor | int, ...], value: Tensor) -> None:
        """Stage values ``[n, m, ...]`` of a declared model parameter, by MuJoCo's name of it.

        ``index`` is where to write in each row of the field; the first are indices ``[m]``.
        """
        self.nominal(name)
        derives = name in self._backend.get_tensor_capabilities().derived_from
        self.staged.stage(StagedWrite(self._fields[name], index, value, name, derives))

    def write_tensor(self, target: Tensor, columns: Tensor, value: Tensor, what: str) -> None:
        """Stage columns ``[m]`` of a tensor outside the simulator, such as a sensor's bias."""
        self.staged.stage(StagedWrite(target, (columns,), value, what, derives=False))

    def write_wrench(self, body_ids: Tensor, force: Tensor, torque: Tensor, steps: Tensor) -> None:
        """Stage forces and torques on bodies, in place of those that act on them.

        They act at the bodies' centres of mass from the next control step on, until ``steps`` have
        passed, or the episode ends.

        Args:
            body_ids: ``[m]``, ids in the model.
            force, torque: ``[n, m, 3]`` N and N m, world frame.
            steps: ``[n, m]``, control steps.
        """
        if self.wrenches is None:
            self._backend.get_tensor_capabilities().require("xfrc_applied")
            with torch.inference_mode(False):
                n, bodies = self._backend.num_envs, len(self._backend.bodies)
                acting = self._backend.get_state_views()["xfrc_applied"]
                self.wrenches = acting.new_zeros(n, bodies, 7)
        value = torch.cat((force, torque, steps.unsqueeze(2)), 2)
        write = StagedWrite(self.wrenches, (body_ids,), value, "external wrench", False, False)
        self.staged.stage(write)

    def apply_wrenches(self) -> None:
        """Let the wrenches act in the next control step, and count it."""
        if self.wrenches is not None:
            wrench, left = self.wrenches[..., :6], self.wrenches[..., 6:]
            acting = self._backend.get_state_views()["xfrc_applied"].unflatten(1, (-1, 6))
            torch.mul(wrench, left > 0.0, out=acting)
            left.sub_(1.0).clamp_(min=0.0)

    def stage_reset(self, rows: Tensor) -> None:
        """Open a transaction that starts new episodes from the home pose."""
        qpos = self._home.repeat(rows.shape[0], 1)
        if self.terrain is not None:
            for entity in self.entities.values():
                if entity.root_joint is not None:
                    root = qpos[:, entity.root_joint.qpos]
                    root[:, :3] = self.terrain.place(root[:, :3].float(), rows)
        qvel = qpos.new_zeros(rows.shape[0], self._backend.get_state_views()["qvel"].shape[1])
        self._staged = Transaction(rows, self.physics, self._read_state, home=(qpos, qvel))

    def stage_current(self, rows: Tensor) -> None:
        """Open a transaction on the current state, for a push."""
        self._staged = Transaction(rows, self.physics, self._read_state, home=None)

    def _read_state(self, rows: Tensor) -> State:
        views = self._backend.get_state_views()
        return views["qpos"][rows].double(), views["qvel"][rows].double()

    @property
    def staged(self) -> Transaction:
        """The open transaction."""
        if self._staged is None:
            raise ConfigError("state can be written only by an event term, while it runs")
        return self._staged

    def discard_staged(self) -> None:
        """Close the transaction without writing."""
        self._staged = None

    def commit_staged(self) -> None:
        """Write the validated transaction once, close it, and read the written rows."""
        staged, self._staged = self.staged, None
        payload = staged.payload
        if self.wrenches is not None and staged.reset:
            self.wrenches[payload.rows] = 0.0
        for write in payload.writes:
            here = write.target.device.type == payload.rows.device.type
            rows = payload.rows if here else staged.rows
            if self.before_write is not None:
                self.before_write(write, rows)
            write.commit(rows)
        if any(write.derives for write in payload.writes):
            self._backend.set_const(payload.rows)
        if not payload.changes_state:
            return
        self._backend.set_state_tensor(payload.rows, *payload.state, reset=staged.reset)
        if self._compiled and self._declared:
            self.plan.read_rows(payload.rows, staged.rows)
        self._changed()
