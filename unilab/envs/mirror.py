"""Mirror of a task: its reflection from left to right, in the x-z plane of the root."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.backends.base import JointInfo
from unilab.envs import mdp
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.action import ActionColumn
from unilab.envs.managers.observation import ObservationTermCfg, column_treatment
from unilab.envs.managers.term import Reflection, Term
from unilab.errors import CapabilityError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

Columns = tuple[Tensor, Tensor]
"""``index`` int64 and ``sign`` float32, ``[width]`` each; see :func:`reflected`."""

_Signed = Sequence[tuple[str, float]]
"""Names of columns, with the signs that they get."""

_VECTOR = (("x", 1.0), ("y", -1.0), ("z", 1.0))
_AXIAL = (("x", -1.0), ("y", 1.0), ("z", -1.0))
_QUATERNION = (("w", 1.0), ("qx", -1.0), ("qy", 1.0), ("qz", -1.0))
_TERMS: dict[Any, Reflection] = {
    mdp.base_lin_vel: "vector",
    mdp.base_ang_vel: "axial",
    mdp.base_pos_z: "scalar",
    mdp.projected_gravity: "vector",
    mdp.joint_pos_rel: "joints",
    mdp.joint_vel_rel: "joints",
    mdp.last_action: "action",
}
"""Terms whose columns are known; those of other terms depend on their parameters."""
_OF_PARTS = (mdp.foot_contact, mdp.foot_air_time, mdp.foot_contact_forces)
"""Terms with a column for each part of a contact sensor."""


class TaskMirror:
    """Columns of actions, observations and states in the mirror, from names and joint axes.

    Args:
        env: the environment; its configuration names the words of the left and right parts.
    """

    def __init__(self, env: ManagerBasedRlEnv) -> None:
        words = env.cfg.mirror or {}
        both = {**words, **{right: left for left, right in words.items()}}
        if len(both) < 2 * len(words) or "" in both:
            raise ConfigError(f"mirror must pair words of left and right parts, got {words}")
        self._env = env
        self._words = both
        self._pattern = re.compile("|".join(map(_whole, both)) or "(?!)")
        self._joints = {joint.name: joint for joint in env.backend.joints}
        self._signs = {joint.name: self._joint_sign(joint) for joint in env.backend.joints}
        self.action = self._action()
        self.groups = {group: self._group(group) for group in env.cfg.observations}

    def name(self, name: str) -> str:
        """The name of the part on the other side."""
        return self._pattern.sub(lambda found: self._words[found[0]], name)

    def columns(self) -> dict[str, Columns]:
        """By key of the environment's data."""
        return {**self.groups, "action": self.action}

    def state(self) -> tuple[Columns, Columns]:
        """Columns of ``qpos`` and ``qvel``."""
        qpos: list[tuple[str, float]] = []
        qvel: list[tuple[str, float]] = []
        for name, sign in self._signs.items():
            free = self._joints[name].type == "free"
            rates = [(f"w{axis}", sign) for axis, sign in _AXIAL]
            for found, parts in ((qpos, (*_VECTOR, *_QUATERNION)), (qvel, (*_VECTOR, *rates))):
                found += [(f"{name} {part}", s) for part, s in parts] if free else [(name, sign)]
        return self._matched("qpos", qpos, len(qpos)), self._matched("qvel", qvel, len(qvel))

    def command(self, name: str) -> Columns:
        """Columns of a command."""
        term = self._env.command_manager.get_term(name)
        label, width = f"command term {name!r}", term.command.shape[1]
        if term.mirror is None:
            raise ConfigError(f"{label} must give its class a mirror, {_choices(width)}")
        return self._matched(label, self._named(label, term.mirror, width, {}), width)

    def _joint_sign(self, joint: JointInfo) -> float:
        """The sign of a joint's angle on the other side; 1 for a free joint."""
        other = self._joints.get(self.name(joint.name))
        if other is None or other.type != joint.type:
            raise ConfigError(
                f"mirror: joint {joint.name!r} must have a {joint.type} joint "
                f"{self.name(joint.name)!r} on the other side"
                f"{did_you_mean(self.name(joint.name), self._joints)}"
            )
        if joint.type == "free":
            return 1.0
        if joint.axis is None or other.axis is None:
            raise CapabilityError(f"mirror: the axis of joint {joint.name!r} must be known")
        flips = _AXIAL if joint.type == "hinge" else _VECTOR
        axis = [value * sign for value, (_, sign) in zip(joint.axis, flips, strict=True)]
        sign = math.copysign(1.0, sum(a * b for a, b in zip(axis, other.axis, strict=True)))
        if math.dist(axis, [sign * value for value in other.axis]) > 0.02:
            raise ConfigError(
                f"mirror: the axis of joint {joint.name!r}, {_short(joint.axis)}, must be the "
                f"mirror image of that of {other.name!r}, {_short(other.axis)}"
            )
        home = self._env.backend.default_qpos
        here, there = float(home[joint.qpos]), sign * float(home[other.qpos])
        if abs(here - there) > 1e-4:
            raise ConfigError(
                f"mirror: the home position of joint {joint.name!r} must be {there:g}, by that of "
                f"{other.name!r}, got {here:g}: change the keyframe"
            )
        return sign

    def _action(self) -> Columns:
        columns = {c.actuator.name: c for c in self._env.action_manager.columns}
        signed = [(name, self._action_sign(name, columns)) for name in columns]
        return self._matched("action", signed, len(signed))

    def _action_sign(self, name: str, columns: Mapping[str, ActionColumn]) -> float:
        own, other = columns[name], columns.get(self.name(name))
        joint = own.actuator.joint
        if joint is None or other is None or other.actuator.joint != self.name(joint):
            raise ConfigError(
                f"mirror: action {name!r} of joint {joint!r} must have an action "
                f"{self.name(name)!r} of the joint on the other side"
            )
        sign = self._signs[joint]
        (scale, offset), (there, centre) = _at_joint(own), _at_joint(other)
        if not math.isclose(abs(scale), abs(there), rel_tol=1e-3):
            raise ConfigError(
                f"mirror: scale of action {name!r} must be as large as that of "
                f"{self.name(name)!r}, {there:g} at the joint, got {scale:g}"
            )
        if not math.isclose(offset, sign * centre, abs_tol=1e-3):
            raise ConfigError(
                f"mirror: offset of action {name!r} must be {sign * centre:g} at the joint, by "
                f"that of {self.name(name)!r}, got {offset:g}"
            )
        clip, mirrored = (
            sorted(side * (c.joint_bias + c.joint_gain * bound) for bound in c.clip)
            for c, side in ((own, 1.0), (other, sign))
        )
        if not all(map(partial(math.isclose, abs_tol=1e-3), clip, mirrored)):
            raise ConfigError(
                f"mirror: clip of action {name!r} must be {mirrored} at the joint, by that of "
                f"{self.name(name)!r}, got {clip}"
            )
        return sign * math.copysign(1.0, scale * there)

    def _group(self, group: str) -> Columns:
        cfg, manager = self._env.cfg.observations[group], self._env.observation_manager
        indices, signs = [], []
        start = 0
        for name, shown in manager.term_widths[group].items():
            label, term = f"observation ({group}) term {name!r}", cfg.terms[name]
            frames = cfg.frames(term)
            width = shown // frames
            bound = manager.get_term(group, name)
            index, sign = self._term(label, term, bound, width)
            if not cfg.enable_corruption:
                term = replace(term, noise=None, bias=None)
            _check_treatment(label, term, index, sign)
            for _ in range(frames):  # a history shows whole values, one after the other
                indices.append(index + start)
                signs.append(sign)
                start += width
        return torch.cat(indices), torch.cat(signs)

    def _term(self, label: str, cfg: ObservationTermCfg, term: Term, width: int) -> Columns:
        kind = cfg.mirror if cfg.mirror is not None else _TERMS.get(cfg.func)
        if kind is None and cfg.func is mdp.generated_commands:
            return self.command(term.params["command_name"])
        if kind is None and cfg.func in _OF_PARTS:
            parts = self._env.scene.sensors[term.params["sensor_name"]].parts
            return self._matched(label, [(part, 1.0) for part in parts], width)
        if kind is None and cfg.func is mdp.foot_height:
            ids = term.params["asset_cfg"].body_ids.tolist()
            signed = [(self._env.backend.bodies[i], 1.0) for i in ids]
            return self._matched(label, signed, width)
        if kind is None and cfg.func is mdp.joint_pos_sincos:
            joints = self._named(label, "joints", width // 2, term.params)
            signed = [(f"sin {name}", sign) for name, sign in joints]
            signed += [(f"cos {name}", 1.0) for name, _ in joints]
            return self._matched(label, signed, width)
        if kind is None and cfg.func is mdp.height_scan:
            across = round(term.params["size"][1] / term.params["resolution"]) + 1
            return torch.arange(width).reshape(across, -1).flip(0).flatten(), torch.ones(width)
        if kind is None and cfg.func is mdp.ray_distances:
            return _mirrored_rays(label, term.params)
        if kind is None:
            raise ConfigError(f"{label} must have a mirror, {_choices(width)}")
        return self._matched(label, self._named(label, kind, width, term.params), width)

    def _named(
        self, label: str, kind: Reflection, width: int, params: Mapping[str, Any]
    ) -> _Signed:
        """Names and signs of a term's columns."""
        if isinstance(kind, tuple):
            return [(name.removeprefix("-"), -1.0 if name[:1] == "-" else 1.0) for name in kind]
        if kind == "action":
            sign = self.action[1].tolist()
            return list(zip(self._env.action_manager.actuator_names, sign, strict=True))
        if kind == "joints":
            given = (p for p in params.values() if isinstance(p, SceneEntityCfg))
            asset = next(given, SceneEntityCfg())
            names = self._env.scene[asset.name].joint_names
            chosen = asset.joint_ids
            if isinstance(chosen, Tensor):
                names = tuple(names[i] for i in chosen.tolist())
            return [(name, self._signs[name]) for name in names]
        scalars = [(str(i), 1.0) for i in range(width)]
        return {"vector": _VECTOR, "axial": _AXIAL, "scalar": scalars}[kind]

    def _matched(self, label: str, signed: _Signed, width: int) -> Columns:
        """Index and sign of columns by their names."""
        place = {name: i for i, (name, _) in enumerate(signed)}
        if len(signed) != width or len(place) != width:
            raise ConfigError(
                f"mirror of {label} must be {width} different columns, got "
                f"{[name for name, _ in signed]}"
            )
        index, signs = [], []
        for name, sign in signed:
            other = self.name(name)
            if other not in place or signed[place[other]][1] != sign:
                raise ConfigError(
                    f"mirror of {label}: column {name!r} must have a column {other!r} on the "
                    f"other side, of the same sign, got {_dashed(signed)}"
                )
            index.append(place[other])
            signs.append(sign)
        return torch.tensor(index), torch.tensor(signs)


def reflected(columns: Columns, value: Tensor) -> Tensor:
    """Mirror image of ``[..., width]``."""
    index, sign = columns
    return value[..., index] * sign


def _mirrored_rays(label: str, params: Mapping[str, Any]) -> Columns:
    """Each ray's image in the sensor's x-z plane."""
    rays = torch.cat(params["pattern"].rays(), 1)
    image = rays * torch.tensor((1.0, -1.0, 1.0) * 2)
    to = torch.cdist(rays.double(), image.double()).min(1)
    if to.values.max() > 1e-3 or params["offset"][1]:
        raise ConfigError(f"{label} must have rays that are symmetric to the robot's x-z plane")
    return to.indices, torch.ones(len(rays))


def _whole(word: str) -> str:
    """Pattern of a word that is not part of a longer one: ``left`` in ``left_foot``."""
    before = "(?<![A-Za-z0-9])" if word[0].isalnum() else ""
    after = "(?![A-Za-z0-9])" if word[-1].isalnum() else ""
    return before + re.escape(word) + after


def _at_joint(column: ActionColumn) -> tuple[float, float]:
    """Scale and offset of an action at its joint."""
    return column.joint_gain * column.scale, column.joint_bias + column.joint_gain * column.offset


def _choices(width: int) -> str:
    return (
        f"'scalar', 'vector', 'axial', 'joints', 'action' or the names of its {width} columns, got "
        "None: see ObservationTermCfg.mirror"
    )


def _short(axis: Sequence[float]) -> str:
    return f"({', '.join(f'{value:.3g}' for value in axis)})"


def _dashed(signed: _Signed) -> list[str]:
    return ["-" * (sign < 0) + name for name, sign in signed]


def _check_treatment(label: str, cfg: ObservationTermCfg, index: Tensor, sign: Tensor) -> None:
    """Refuse scale, noise, bias and clip that the mirror would change."""
    scale, lower, upper, *errors = column_treatment(label, cfg, len(index))
    low, high = lower[index] * sign, upper[index] * sign
    noise, bias = ([(m, m[index] * sign)] for m in (errors[0], errors[3]))
    in_mirror = {
        "scale": [(scale, scale[index])],
        "noise": noise,
        "bias": bias,
        "clip": [(lower, torch.minimum(low, high)), (upper, torch.maximum(low, high))],
    }
    for what, pairs in in_mirror.items():
        if not all(torch.equal(own, other) for own, other in pairs):
            raise ConfigError(
                f"{what} of {label} must be the same left and right, and symmetric about 0 where "
                f"the mirror changes the sign, got {getattr(cfg, what)}"
            )
