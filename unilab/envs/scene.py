"""What terms see of the simulation: entities, sensors, one packed read a phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unilab.backends import HostBridgeTransferPlan, SimBackend
from unilab.backends.base import Source
from unilab.envs.entity import Entity, EntityCfg, SceneEntityCfg
from unilab.envs.entity_data import DERIVED_FIELDS
from unilab.envs.nonfinite import bad_rows, is_finite, is_within, non_finite
from unilab.envs.transaction import StagedWrite, Transaction
from unilab.errors import ConfigError, did_you_mean

MAX_VALUE = 1e10
"""Beyond it MuJoCo as well takes a state as diverged (``mjMAXVAL``)."""


@dataclass(frozen=True, kw_only=True)
class SceneCfg:
    """The model file and the entities in it."""

    model: str | Path
    """Path of the MJCF file."""
    entities: dict[str, EntityCfg] = field(default_factory=dict)
    """Entities by the name that terms use."""
    keyframe: str | None = "home"
    """Keyframe with the home pose; None takes the model's own zero pose."""


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
        self._staged: Transaction | None = None
        self.diverged = torch.zeros(backend.num_envs, dtype=torch.bool, device=device)
        """``[num_envs]``, whose physics diverged in the last step."""
        self.before_write: Callable[[StagedWrite, Tensor], None] | None = None
        """Told of every write to a model parameter and of its rows, before it is done."""
        self._fields: dict[str, Tensor] = {}
        self._nominal: dict[str, Tensor] = {}

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

    @contextmanager
    def declaring(self, keep: bool = True) -> Iterator[dict[tuple[str, str], None]]:
        """Collect what is declared in the block, by one term.

        Args:
            keep: whether it is to be read; if not, it is only checked.
        """
        before, self._declared = self._declared, {}
        try:
            yield self._declared
        finally:
            self._declared = before | self._declared if keep else before

    @contextmanager
    def showing(self, reads: Mapping[tuple[str, str], None]) -> Iterator[None]:
        """Let nothing be read in the block but what is declared in ``reads``."""
        everything = {name: entity.data._columns for name, entity in self.entities.items()}
        sensors = self._sensor_columns
        try:
            for name, columns in everything.items():
                shown = {field: v for field, v in columns.items() if (name, field) in reads}
                self.entities[name].data._columns = shown
            self._sensor_columns = {
                s: v for s, v in sensors.items() if ("", f"sensor:{s}") in reads
            }
            self._changed()
            yield
        finally:
            for name, columns in everything.items():
                self.entities[name].data._columns = columns
            self._sensor_columns = sensors
            self._changed()

    def resolve(self, cfg: SceneEntityCfg) -> SceneEntityCfg:
        """Turn patterns of names into columns.

        Raises:
            ConfigError: no such entity, or a pattern matches nothing.
        """
        entity = self[cfg.name]
        joints = entity.find_joints(cfg.joint_names)
        bodies = entity.find_bodies(cfg.body_names)
        found = {
            "body_ids": bodies,
            "geom_ids": entity.find_geoms(cfg.geom_names, bodies),
            "actuator_ids": entity.find_actuators(cfg.actuator_names, joints),
        }
        ids: dict[str, Any] = {k: torch.tensor(v, dtype=torch.int64) for k, v in found.items()}
        if cfg.joint_names != (".*",):
            ids["joint_ids"] = torch.tensor(joints, device=self._device)
        return replace(cfg, **ids)

    def declare(self, entity: str, name: str) -> None:
        """Add a field of an entity to the union that is read every phase."""
        for base in DERIVED_FIELDS.get(name, (name,)):
            source, _ = self[entity].source(base)
            self._backend.get_tensor_capabilities().require_state_field(source)
            self._declared[(entity, base)] = None

    def declare_sensor(self, name: str) -> None:
        """Add a sensor to the union that is read every phase."""
        self._backend.get_tensor_capabilities().require_sensor(name)
        self._declared[("", f"sensor:{name}")] = None

    def declare_field(self, name: str) -> None:
        """Let a model parameter differ between environments, for a term that writes it.

        Raises:
            CapabilityError: the backend cannot vary it.
        """
        if name not in self._fields:
            self._fields[name] = self._backend.expand(name)
            self._nominal[name] = self._fields[name][0].clone()

    def nominal(self, name: str) -> Tensor:
        """A declared model parameter as the model file has it, without a row an environment."""
        try:
            return self._nominal[name]
        except KeyError:
            raise ConfigError(
                f"model field {name!r} was used by a term that did not declare it: decorate the "
                f"term with @writes({name!r})"
            ) from None

    def write_field(self, name: str, index: tuple[Tensor | int, ...], value: Tensor) -> None:
        """Stage a declared model parameter for the rows of the open transaction.

        What the model derives from the parameter is recomputed with it.

        Args:
            name: the field, as MuJoCo's model has it.
            index: where to write within an environment's field; the first are indices ``[m]``.
            value: ``[n, m]`` (and what the index leaves of the field).

        Raises:
            ConfigError: the index or the shape does not fit; nothing is written.
        """
        self.nominal(name)
        derives = name in self._backend.get_tensor_capabilities().derived_from
        self.staged.stage(StagedWrite(self._fields[name], index, value, name, derives))

    def write_tensor(self, target: Tensor, columns: Tensor, value: Tensor, what: str) -> None:
        """Stage rows of a tensor that is not the simulator's, such as a sensor's bias.

        Args:
            target: ``[num_envs, k]``.
            columns: ``[m]``, where to write.
            value: ``[n, m]``.
            what: its name, for messages.

        Raises:
            ConfigError: the index or the shape does not fit; nothing is written.
        """
        self.staged.stage(StagedWrite(target, (columns,), value, what, derives=False))

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
                "with @reads(sensors=<parameter that names the sensors>), or, in a command, call "
                f"env.scene.declare_sensor({name!r}) in __init__"
            ) from None

    def read(self) -> None:
        """One packed read of every environment; terms see the new values."""
        self.plan.read()
        self._changed()

    def read_rows(self, rows: Tensor) -> None:
        """One packed read of some environments, after they were written."""
        if self._declared:
            self.plan.read_rows(rows)
        self._changed()

    def check_finite(self, lose_rows: bool = False) -> None:
        """One reduction over the packet.

        Args:
            lose_rows: instead of an error, mark the rows in ``diverged``, those of values beyond
                :data:`MAX_VALUE` as well, and let terms read zeros.

        Raises:
            NonFiniteError: names the fields and rows.
        """
        packet = self.plan.packet
        if lose_rows:
            # Before a term could overflow.
            if is_within(packet, MAX_VALUE):
                self.diverged.fill_(False)
            else:
                torch.logical_not((packet.abs() <= MAX_VALUE).all(1), out=self.diverged)
                packet.masked_fill_(self.diverged.unsqueeze(1), 0.0)
            return
        if is_finite(packet):
            return
        bad = {}
        for (entity, name), cols in zip(self._declared, self.plan.columns, strict=True):
            if rows := bad_rows(packet[:, cols]):
                bad[f"{entity}.{name}" if entity else name] = rows
        raise non_finite("physics left non-finite values", bad)

    def stage_reset(self, rows: Tensor) -> None:
        """Open a transaction that will start new episodes from the home pose."""
        rows, n = rows.cpu(), rows.shape[0]
        qpos = self._backend.default_qpos.repeat(n, 1)
        qvel = qpos.new_zeros(n, self._backend.get_state_views()["qvel"].shape[1])
        self._staged = Transaction(rows, qpos, qvel, reset=True)

    def stage_current(self, rows: Tensor) -> None:
        """Open a transaction on the current state, for a push or a nudge."""
        rows, views = rows.cpu(), self._backend.get_state_views()
        self._staged = Transaction(rows, views["qpos"][rows], views["qvel"][rows], reset=False)

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
        """Write the transaction once and close it."""
        staged, self._staged = self.staged, None
        staged.commit(self._backend, self.before_write)

    def _changed(self) -> None:
        for entity in self.entities.values():
            entity.data._cache.clear()
