"""Contact sensors: contacts of parts that are named by patterns, and how long they last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import mujoco
import torch
from torch import Tensor

from unilab.backends import SimBackend
from unilab.checks import check_fields
from unilab.envs.entity import EntityCfg
from unilab.envs.names import Patterns, find_names
from unilab.errors import CapabilityError, ConfigError, did_you_mean

_OBJECTS = {
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "subtree": mujoco.mjtObj.mjOBJ_XBODY,
}
_FOUND, _FORCE = 1, 2
_LONGEST_HISTORY = 10_000
_NET_FORCE = 3  # MuJoCo's mjtConReduce: the forces of all contacts of a part, summed


@dataclass(frozen=True, kw_only=True)
class ContactMatch:
    """Parts of the model by name."""

    mode: Literal["geom", "body", "subtree"]
    """What the names are of; ``body``: the body's own geoms, ``subtree``: also those below it."""
    pattern: Patterns
    """Regular expressions, each matched against whole names."""
    entity: str | None = None
    """The entity whose parts are searched; None: all of the model's."""


@dataclass(frozen=True, kw_only=True)
class ContactSensorCfg:
    """Contacts of each of some parts, such as a robot's feet, as MuJoCo's contact sensors."""

    primary: ContactMatch
    """The parts; each has its column, in the model's order."""
    secondary: ContactMatch | None = None
    """The one part that they touch; None: anything."""
    fields: tuple[Literal["found", "force"], ...] = ("found",)
    """``found``: how many contacts; ``force``: their net force on the part. With ``force``, the
    values are those of the last substep; without it, of the state after it."""
    force_threshold: float | None = None
    """N; a part is in contact above this net force. None: while a contact is found."""
    track_air_time: bool = False
    """Whether the durations of contacts, and of the time between them, are measured."""
    history_length: int = 0
    """How many of the last control steps ``found_history`` and ``force_history`` show."""

    def __post_init__(self) -> None:
        check_fields(self, "contact sensor")
        if not 0 <= self.history_length <= _LONGEST_HISTORY:
            raise ConfigError(
                f"history_length must be in [0, {_LONGEST_HISTORY}], got {self.history_length}"
            )
        if not {"found"} <= set(self.fields) or len(set(self.fields)) < len(self.fields):
            raise ConfigError(f"fields must be ('found',) or ('found', 'force'), got {self.fields}")
        least = self.force_threshold
        if least is not None and (least < 0.0 or "force" not in self.fields):
            raise ConfigError(
                f"force_threshold must be at least 0 N, of a sensor with 'force', got {least} with "
                f"{self.fields}"
            )


class ContactSensor:
    """Contacts of some parts in every environment; times are counted in control steps.

    Args:
        name: the sensor's name in the scene.
        read: reads sensors of the model side by side, ``[num_envs, widths]``.
    """

    def __init__(
        self,
        name: str,
        cfg: ContactSensorCfg,
        backend: SimBackend,
        entities: dict[str, EntityCfg],
        read: Callable[[tuple[str, ...]], Tensor],
        device: torch.device,
    ) -> None:
        self.name = name
        self.cfg = cfg
        sensors = backend.get_tensor_capabilities().sensors
        width = 4 if "force" in cfg.fields else 1
        own = tuple(sensor for sensor in sensors if sensor.startswith(f"{name}/"))
        wanted = {f"{name}/{part}": width for part in _parts_of(backend, name, cfg, entities)}
        found = {sensor: sensors[sensor] for sensor in own}
        if found != wanted:
            raise CapabilityError(
                f"the physics must have these sensors and widths for contact sensor {name!r}: "
                f"{wanted}, got {found}: give MujocoBackend the model that "
                "unilab.envs.scene_model(cfg.scene) returns"
            )
        self.parts = tuple(sensor.removeprefix(f"{name}/") for sensor in own)
        """Names of the parts, in the order of the columns."""
        self._own = own
        self._read = read
        shape, length = (backend.num_envs, len(own)), cfg.history_length
        self._times = torch.zeros(4, *shape, device=device) if cfg.track_air_time else None
        self._began = torch.zeros(2, *shape, dtype=torch.bool, device=device)
        self._history = torch.zeros(*shape, length, width, device=device) if length else None

    @property
    def found(self) -> Tensor:
        """Number of contacts, ``[num_envs, parts]``."""
        return self._values()[..., 0]

    @property
    def force(self) -> Tensor:
        """Net force on each part in the world frame, ``[num_envs, parts, 3]`` N."""
        self._require("force" in self.cfg.fields, "fields=('found', 'force')")
        return self._values()[..., 1:]

    @property
    def in_contact(self) -> Tensor:
        """Whether each part is in contact, ``[num_envs, parts]`` bool."""
        if self.cfg.force_threshold is None:
            return self.found > 0.0
        return self.force.norm(dim=-1) > self.cfg.force_threshold

    @property
    def current_air_time(self) -> Tensor:
        """Time since the last contact, ``[num_envs, parts]`` s; 0 in contact."""
        return self._time(0)

    @property
    def current_contact_time(self) -> Tensor:
        """Time since the contact began, ``[num_envs, parts]`` s; 0 in the air."""
        return self._time(1)

    @property
    def last_air_time(self) -> Tensor:
        """Time in the air before the last contact, ``[num_envs, parts]`` s."""
        return self._time(2)

    @property
    def last_contact_time(self) -> Tensor:
        """Duration of the last contact, ``[num_envs, parts]`` s."""
        return self._time(3)

    @property
    def first_contact(self) -> Tensor:
        """Whether each part came down in this step, ``[num_envs, parts]`` bool.

        It was in the air in a step of this episode before.
        """
        self._time(0)
        return self._began[0]

    @property
    def first_air(self) -> Tensor:
        """Whether each part was lifted in this step, ``[num_envs, parts]`` bool."""
        self._time(0)
        return self._began[1]

    @property
    def found_history(self) -> Tensor:
        """``found`` of the last steps, ``[num_envs, parts, history_length]``, newest first."""
        return self._kept()[..., 0]

    @property
    def force_history(self) -> Tensor:
        """``force`` of the last steps, ``[num_envs, parts, history_length, 3]``, newest first."""
        self._require("force" in self.cfg.fields, "fields=('found', 'force')")
        return self._kept()[..., 1:]

    def update(self, dt: float) -> None:
        """Count the contacts of a control step of ``dt`` s."""
        if self._history is not None:
            now = self._values().unsqueeze(2)
            self._history.copy_(torch.cat((now, self._history[:, :, :-1]), 2))
        if self._times is None:
            return
        contact = self.in_contact
        current, last = self._times[:2], self._times[2:]
        # Of air and contact: a phase ends if it lasted and the other one is there.
        ends = torch.stack((contact, ~contact))
        began = ends & (current > 0.0)
        self._began.copy_(began)
        current.add_(dt)
        last.copy_(torch.where(began, current, last))
        current.masked_fill_(ends, 0.0)

    def reset(self, rows: Tensor) -> None:
        """Forget the contacts of episodes that ended."""
        if self._times is not None:
            self._times.index_fill_(1, rows, 0.0)
            self._began.index_fill_(1, rows, False)
        if self._history is not None:
            self._history.index_fill_(0, rows, 0.0)

    def state(self) -> dict[str, Tensor]:
        """What is kept from step to step, live, by name."""
        kept = {"times": self._times, "history": self._history, "began": self._began}
        return {name: value for name, value in kept.items() if value is not None}

    def read_always(self) -> tuple[str, ...]:
        """Sensors of the model that :meth:`update` reads."""
        return self._own if self._times is not None or self._history is not None else ()

    def _values(self) -> Tensor:
        """``[num_envs, parts, 1 or 4]``."""
        return self._read(self._own).unflatten(1, (len(self._own), -1))

    def _time(self, which: int) -> Tensor:
        self._require(self._times is not None, "track_air_time=True")
        assert self._times is not None
        return self._times[which]

    def _kept(self) -> Tensor:
        self._require(self._history is not None, "history_length of at least 1")
        assert self._history is not None
        return self._history

    def _require(self, there: bool, setting: str) -> None:
        if not there:
            raise ConfigError(f"contact sensor {self.name!r} must have {setting} to be read so")


def add_contact_sensors(
    spec: mujoco.MjSpec, sensors: dict[str, ContactSensorCfg], entities: dict[str, EntityCfg]
) -> None:
    """Add a sensor ``<name>/<part>`` to the model for each part of each contact sensor."""
    for name, cfg in sensors.items():
        label = f"contact sensor {name!r}"
        if not name or "/" in name:
            raise ConfigError(f"the name of {label} must have a letter and no '/': rename it")
        parts = _matched(spec, f"primary of {label}", cfg.primary, entities)
        settings = {}
        if cfg.secondary is not None:
            others = _matched(spec, f"secondary of {label}", cfg.secondary, entities)
            if len(others) > 1:
                raise ConfigError(f"secondary of {label} must be one part, got {others}")
            settings = {"objtype": _OBJECTS[cfg.secondary.mode], "objname": others[0]}
        forces = "force" in cfg.fields
        for part in parts:
            spec.add_sensor(
                name=f"{name}/{part}",
                type=mujoco.mjtSensor.mjSENS_CONTACT,
                reftype=_OBJECTS[cfg.primary.mode],  # the second part of a contact feels the force
                refname=part,
                intprm=[_FOUND | _FORCE, _NET_FORCE, 1] if forces else [_FOUND, 0, 1],
                **settings,
            )


def _parts_of(
    backend: SimBackend, name: str, cfg: ContactSensorCfg, entities: dict[str, EntityCfg]
) -> list[str]:
    """Names of the parts that the sensor of this name is to have in a model."""
    match, bodies = cfg.primary, {*backend.bodies}
    if match.entity in entities:  # or None, or add_contact_sensors refuses it
        root = entities[match.entity].root_body
        bodies = {*backend.subtree(root)} if root in backend.bodies else set()
    named = [geom.name for geom in backend.geoms if geom.name and geom.body in bodies]
    if match.mode != "geom":  # a body without a name cannot be meant
        named = [b for b in backend.bodies if b in bodies and not b.startswith("unnamed_body_")]
    what = f"{match.mode} for primary of contact sensor {name!r}"
    return [named[i] for i in find_names(match.pattern, named, what)]


def _matched(
    spec: mujoco.MjSpec, label: str, match: ContactMatch, entities: dict[str, EntityCfg]
) -> list[str]:
    """Names of the parts that match; each has geoms that can touch something."""
    top, where = spec.worldbody, "the model"
    if match.entity is not None:
        if match.entity not in entities:
            raise ConfigError(
                f"entity of the {label} must be one of {sorted(entities)}, got {match.entity!r}"
                f"{did_you_mean(match.entity, entities)}"
            )
        where = repr(match.entity)
        top = spec.body(entities[match.entity].root_body) or top  # or the scene refuses it
    of_geoms = match.mode == "geom"
    kind = mujoco.mjtObj.mjOBJ_GEOM if of_geoms else mujoco.mjtObj.mjOBJ_BODY
    found = [] if of_geoms else [top]
    named = {part.name: part for part in (*found, *top.find_all(kind)) if part.name}
    names = list(named)
    try:
        chosen = [names[i] for i in find_names(match.pattern, names, f"{match.mode} of {where}")]
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from None
    for name in chosen if not spec.pairs else ():
        part = named[name]
        geoms = [part] if of_geoms else part.geoms
        if match.mode == "subtree":
            geoms = part.find_all(mujoco.mjtObj.mjOBJ_GEOM)
        if not any(geom.contype or geom.conaffinity for geom in geoms):
            raise ConfigError(
                f"{label}: {match.mode} {name!r} must have a geom that can touch others "
                "(contype or conaffinity), got none"
            )
    return chosen
