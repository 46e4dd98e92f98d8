"""Actions: policy outputs mapped to the simulator's controls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unilab.backends import SimBackend
from unilab.backends.base import ActuatorInfo
from unilab.checks import Bound, check_clip
from unilab.envs.managers.delay import DelayBuffer, DelayCfg, DelaySpec
from unilab.envs.managers.term import naming, table
from unilab.envs.names import Patterns, find_actuators, values_of_names
from unilab.envs.nonfinite import MAX_VALUE
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.entity import EntityData
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


Range = tuple[Bound, Bound]
Kind = Literal["position", "relative_position", "velocity", "effort"]


@dataclass(frozen=True, kw_only=True)
class ActionTermCfg(DelayCfg):
    """Actuators driven by a block of action columns, by ``offset + scale * action``.

    Patterns match whole names of actuators or, if there is none, the names of their joints.
    """

    actuator_names: Patterns = (".*",)
    """Regular expressions."""
    scale: float | dict[str, float] = 1.0
    """Factor for all, or by pattern."""
    clip: Range | dict[str, Range] | None = None
    """Bounds of ``offset + scale * action`` for all, or by pattern, in the unit of ``scale``."""


@dataclass(frozen=True, kw_only=True)
class JointPositionActionCfg(ActionTermCfg):
    """Targets of the joints of position actuators, in rad (m), relative to an offset.

    A target is a reading of the joint's encoder: with
    :func:`~unilab.envs.mdp.randomize_encoder_bias` the joint moves to the target minus the bias.
    """

    use_default_offset: bool = True
    """Whether action 0 is the home pose, the joints' ``qpos`` in the keyframe; otherwise 0."""


@dataclass(frozen=True, kw_only=True)
class RelativeJointPositionActionCfg(ActionTermCfg):
    """Targets of the joints of position actuators, in rad (m), relative to their positions.

    The position is that at the beginning of the control step; the target stays for the whole step.
    """


@dataclass(frozen=True, kw_only=True)
class JointVelocityActionCfg(ActionTermCfg):
    """Target velocities of the joints of velocity actuators, in rad/s (m/s)."""


@dataclass(frozen=True, kw_only=True)
class JointEffortActionCfg(ActionTermCfg):
    """Controls of motors, in the unit of the actuator's control."""


@dataclass(frozen=True, kw_only=True)
class ActionColumn:
    """What one column of the action does: ``ctrl = offset + scale * action`` within ``clip``.

    At the joint this is ``joint_bias + joint_gain * ctrl``, a target in rad or m, a target velocity
    in rad/s or m/s, or an effort in N m or N. A relative target is added to the joint's position.
    """

    actuator: ActuatorInfo
    kind: Kind
    scale: float
    offset: float
    joint_gain: float
    joint_bias: float
    clip: Range
    """Of ``ctrl``."""


_KINDS: dict[type[ActionTermCfg], Kind] = {
    JointPositionActionCfg: "position",
    RelativeJointPositionActionCfg: "relative_position",
    JointVelocityActionCfg: "velocity",
}


class ActionManager:
    """Maps actions in [-1, 1] to controls and remembers the last two.

    The columns of an action are those of the terms, in order.
    """

    def __init__(self, cfg: Mapping[str, ActionTermCfg], env: ManagerBasedRlEnv) -> None:
        if not cfg:
            raise ConfigError("actions must have at least one term, got none")
        actuators = env.backend.actuators
        ids: list[int] = []
        specs: list[DelaySpec] = []
        self.columns: list[ActionColumn] = []
        """In the order of the action's columns."""
        for name, term in cfg.items():
            label = f"action term {name!r}"
            with naming(label):
                term.check_delay(label)
                found = find_actuators(term.actuator_names, actuators, "actuator")
                taken = [actuators[i].name for i in found if i in ids]
                if taken:
                    raise ConfigError(f"actuators {taken} must be driven by one term, got two")
                self.columns += _columns(label, term, [actuators[i] for i in found], env.backend)
            specs.append(DelaySpec(width=len(found), delay=term))
            ids += found
        device = env.device
        self._ids = torch.tensor(ids, device=device)
        self.action_dim = len(ids)
        self._in_order = ids == list(range(len(actuators)))
        self.actuator_names = [actuators[i].name for i in ids]
        self.scale = torch.tensor([column.scale for column in self.columns], device=device)
        """``[action_dim]``."""
        self.offset = torch.tensor([column.offset for column in self.columns], device=device)
        """``[action_dim]``."""
        clip = torch.tensor([column.clip for column in self.columns], device=device).T
        self._clip = None if clip.isinf().all() else clip.contiguous()
        self._relative = list(_relative(env, self.columns))
        self._encoders = list(_encoders(env))
        self._versions = [bias._version for bias, *_ in self._encoders]
        self._biased_offset = self.offset
        self.max_action = _max_action(self.scale, self.offset)
        """Largest action of any column whose control physics accepts."""
        self.action = torch.zeros(env.num_envs, len(ids), device=device)
        """``[num_envs, action_dim]``, the current action; zeros after a reset."""
        self.prev_action = torch.zeros_like(self.action)
        self._delay: DelayBuffer | None = None
        if any(spec.depth > 1 for spec in specs):
            self._delay = DelayBuffer(specs, env.num_envs, env.generator)
        self._home_ctrl = env.backend.default_ctrl.to(device, torch.float32, copy=True)
        self._home_ctrl[self._ids] = self.offset
        self._ctrl = self._home_ctrl.repeat(env.num_envs, 1)

    def process(self, action: Tensor) -> Tensor:
        """Remember an action and turn it into controls, ``[num_envs, nu]``."""
        self.action, self.prev_action = self.prev_action, self.action
        self.action.copy_(action)
        acting = self.action if self._delay is None else self._delay.push(self.action)
        versions = [bias._version for bias, *_ in self._encoders]
        if self._versions != versions:
            self._versions = versions
            self._add_bias()
        ctrl = torch.addcmul(self._biased_offset, acting, self.scale)
        if self._clip is not None:
            wanted = torch.addcmul(self.offset, acting, self.scale)
            ctrl = wanted.clamp(*self._clip) + (self._biased_offset - self.offset)
        for data, joints, columns, factors in self._relative:
            read = data.joint_pos[:, joints] + data.encoder_bias[:, joints]
            ctrl[:, columns] += read * factors
        if self._in_order:
            return ctrl
        self._ctrl[:, self._ids] = ctrl
        return self._ctrl

    def _add_bias(self) -> None:
        """Shift the controls of all position loops by the bias of their encoders."""
        self._ctrl.copy_(self._home_ctrl)
        for bias, joints, actuators, factor in self._encoders:
            self._ctrl[:, actuators] += bias[:, joints] * factor
        self._biased_offset = self._ctrl if self._in_order else self._ctrl[:, self._ids]

    def reset(self, rows: Tensor) -> None:
        """Forget the actions of some environments."""
        self.action.index_fill_(0, rows, 0.0)
        self.prev_action.index_fill_(0, rows, 0.0)
        if self._delay is not None:
            self._delay.begin(rows, self.action.new_zeros(rows.shape[0], self.action_dim))

    def __str__(self) -> str:
        shown = []
        for column in self.columns:
            law = f"{column.offset:+.3f} + {column.scale:.3f} a"
            if column.clip != (-math.inf, math.inf):
                law += f" in [{column.clip[0]:.3f}, {column.clip[1]:.3f}]"
            shown.append((column.actuator.name, law + " from the position" * _is_relative(column)))
        return table(f"actions [{self.action_dim}]", shown)


def _columns(
    label: str, term: ActionTermCfg, driven: list[ActuatorInfo], backend: SimBackend
) -> Iterator[ActionColumn]:
    """The columns of the actuators that a term drives."""
    names, joints = [a.name for a in driven], [a.joint or "" for a in driven]
    what, free = f"actuator of {label}", (-math.inf, math.inf)
    scales = values_of_names(term.scale, names, what, f"scale of {label}", joints)
    clips = values_of_names(term.clip or free, names, what, f"clip of {label}", joints, free)
    for actuator, scale, clip in zip(driven, scales, clips, strict=True):
        check_clip(f"clip of {label}", clip, MAX_VALUE)
        column = _column(term, actuator, float(scale), clip, backend)
        check_clip(f"control of {actuator.name!r} for the clip of {label}", column.clip, MAX_VALUE)
        yield column


def _column(
    term: ActionTermCfg, actuator: ActuatorInfo, scale: float, clip: Range, backend: SimBackend
) -> ActionColumn:
    """The column of an actuator that a term drives; ``scale`` and ``clip`` are the term's."""
    joint = next((j for j in backend.joints if j.name == actuator.joint), None)
    kinds = [kind for cfg, kind in _KINDS.items() if isinstance(term, cfg)]
    kind = kinds[0] if kinds else "effort"
    home = 0.0
    # What the control does at the joint, and in the term's unit.
    gain, bias = actuator.gear * actuator.gain, actuator.gear * actuator.bias
    unit, zero = 1.0, 0.0
    if kind != "effort":
        fits = _is_velocity_loop(actuator) if kind == "velocity" else _is_loop(actuator)
        if joint is None or joint.type not in ("hinge", "slide") or not fits:
            wanted = "velocity" if kind == "velocity" else "position"
            raise ConfigError(
                f"actuator {actuator.name!r} must be a {wanted} actuator of a joint: use another "
                "action, or actuators of the entity that have such a control"
            )
        feedback = actuator.gear * (actuator.damping if kind == "velocity" else actuator.stiffness)
        unit, zero = gain, bias = actuator.gain / feedback, actuator.bias / feedback
        if isinstance(term, JointPositionActionCfg) and term.use_default_offset:
            home = float(backend.default_qpos[joint.qpos.start])
    low, high = sorted((bound - zero) / unit for bound in clip)
    return ActionColumn(
        actuator=actuator,
        kind=kind,
        scale=scale / unit,
        offset=(home - zero) / unit,
        joint_gain=gain,
        joint_bias=bias,
        clip=(low, high),
    )


def _is_loop(actuator: ActuatorInfo) -> bool:
    """Whether the control is a target of the position; a gain that is unknown is NaN."""
    return abs(actuator.gear * actuator.stiffness * actuator.gain) > 0.0


def _is_velocity_loop(actuator: ActuatorInfo) -> bool:
    """Whether the control is a target of the velocity alone."""
    feedback = abs(actuator.gear * actuator.damping * actuator.gain)
    return actuator.stiffness == 0.0 and feedback > 0.0


def _relative(
    env: ManagerBasedRlEnv, columns: Sequence[ActionColumn]
) -> Iterator[tuple[EntityData, Tensor, Tensor, Tensor]]:
    """By entity: its data, the joints of relative targets, their columns of the action, and the
    control for each rad of their position."""
    left = [i for i, column in enumerate(columns) if _is_relative(column)]
    for name, entity in env.scene.entities.items():
        at = {joint: i for i, joint in enumerate(entity.joint_names)}
        own = [i for i in left if columns[i].actuator.joint in at]
        left = [i for i in left if i not in own]
        if own:
            env.scene.declare(name, "joint_pos")
            joints = [at[columns[i].actuator.joint or ""] for i in own]
            factors = [1.0 / columns[i].joint_gain for i in own]
            yield (
                entity.data,
                torch.tensor(joints, device=env.device),
                torch.tensor(own, device=env.device),
                torch.tensor(factors, device=env.device),
            )
    if left:
        names = [columns[i].actuator.name for i in left]
        raise ConfigError(f"actuators {names} of relative actions must be on joints of an entity")


def _is_relative(column: ActionColumn) -> bool:
    return column.kind == "relative_position"


def _encoders(env: ManagerBasedRlEnv) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """By entity: the bias of its encoders, the joints of its position actuators, these actuators,
    and the control for each rad of the bias."""
    for entity in env.scene.entities.values():
        at = {name: i for i, name in enumerate(entity.joint_names)}
        loops = [
            (at[a.joint], i, -a.gear * a.stiffness / a.gain)
            for i, a in enumerate(env.backend.actuators)
            if a.joint in at and _is_loop(a)
        ]
        if loops:
            joints, actuators, factors = zip(*loops, strict=True)
            yield (
                entity.data.encoder_bias,
                torch.tensor(joints, device=env.device),
                torch.tensor(actuators, device=env.device),
                torch.tensor(factors, device=env.device),
            )


def _max_action(scale: Tensor, offset: Tensor) -> float:
    """The largest action whose controls stay within ``MAX_VALUE``."""
    limit = float(((MAX_VALUE - offset.abs()) / scale.abs()).amin().clamp(max=MAX_VALUE))
    if not limit >= 1.0:
        raise ConfigError(
            f"scale of actions must keep controls within {MAX_VALUE:g} for actions in [-1, 1], got "
            f"{scale.tolist()}"
        )
    return limit
