"""Actions: policy outputs mapped to the simulator's controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unilab.backends import SimBackend
from unilab.backends.base import ActuatorInfo
from unilab.envs.entity import Patterns, find_names
from unilab.envs.managers.delay import DelayBuffer, DelayCfg, DelaySpec
from unilab.envs.managers.term import naming, table
from unilab.envs.nonfinite import MAX_VALUE
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class ActionTermCfg(DelayCfg):
    """Actuators driven by a block of action columns, by ``offset + scale * action``."""

    actuator_names: Patterns = (".*",)
    """Regular expressions, each matched against whole actuator names."""
    scale: float | dict[str, float] = 1.0
    """Factor for all, or by pattern of actuator names."""


@dataclass(frozen=True, kw_only=True)
class JointPositionActionCfg(ActionTermCfg):
    """Targets of the joints of position actuators, in rad (m), relative to an offset.

    A target is a reading of the joint's encoder: with
    :func:`~unilab.envs.mdp.randomize_encoder_bias` the joint moves to the target minus the bias.
    """

    use_default_offset: bool = True
    """Whether action 0 is the home pose, the joints' ``qpos`` in the keyframe; otherwise 0."""


@dataclass(frozen=True, kw_only=True)
class JointEffortActionCfg(ActionTermCfg):
    """Controls of motors, in the unit of the actuator's control."""


@dataclass(frozen=True, kw_only=True)
class ActionColumn:
    """What one column of the action does: ``ctrl = offset + scale * action``.

    At the joint this is ``joint_bias + joint_gain * ctrl``, a target in rad or m, or an effort
    in N m or N.
    """

    actuator: ActuatorInfo
    kind: Literal["position", "effort"]
    scale: float
    offset: float
    joint_gain: float
    joint_bias: float


class ActionManager:
    """Maps actions in [-1, 1] to controls and remembers the last two.

    The columns of an action are those of the terms, in order.
    """

    def __init__(self, cfg: Mapping[str, ActionTermCfg], env: ManagerBasedRlEnv) -> None:
        if not cfg:
            raise ConfigError("actions must have at least one term, got none")
        actuators = env.backend.actuators
        names = [a.name for a in actuators]
        ids: list[int] = []
        specs: list[DelaySpec] = []
        self.columns: list[ActionColumn] = []
        """In the order of the action's columns."""
        for name, term in cfg.items():
            label = f"action term {name!r}"
            with naming(label):
                found, scale = _driven(label, term, names)
                taken = [names[i] for i in found if i in ids]
                if taken:
                    raise ConfigError(f"actuators {taken} must be driven by one term, got two")
                self.columns += [
                    _column(term, actuators[i], each, env.backend)
                    for i, each in zip(found, scale, strict=True)
                ]
            specs.append(DelaySpec(width=len(found), delay=term))
            ids += found
        device = env.device
        self._ids = torch.tensor(ids, device=device)
        self.action_dim = len(ids)
        self._in_order = ids == list(range(len(names)))
        self.actuator_names = [names[i] for i in ids]
        self.scale = torch.tensor([column.scale for column in self.columns], device=device)
        """``[action_dim]``."""
        self.offset = torch.tensor([column.offset for column in self.columns], device=device)
        """``[action_dim]``."""
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
        rows = zip(self.actuator_names, self.offset.tolist(), self.scale.tolist(), strict=True)
        shown = [(name, f"{offset:+.3f} + {scale:.3f} a") for name, offset, scale in rows]
        return table(f"actions [{self.action_dim}]", shown)


def _column(
    term: ActionTermCfg, actuator: ActuatorInfo, scale: float, backend: SimBackend
) -> ActionColumn:
    """The column of an actuator that a term drives."""
    if not isinstance(term, JointPositionActionCfg):
        return ActionColumn(
            actuator=actuator,
            kind="effort",
            scale=scale,
            offset=0.0,
            joint_gain=actuator.gear * actuator.gain,
            joint_bias=actuator.gear * actuator.bias,
        )
    joints = {j.name: j for j in backend.joints if j.type in ("hinge", "slide")}
    stiffness = actuator.gear * actuator.stiffness
    if actuator.joint not in joints or not _is_loop(actuator):
        raise ConfigError(
            f"actuator {actuator.name!r} must be a position actuator of a joint: use "
            "JointEffortActionCfg"
        )
    home = 0.0
    if term.use_default_offset:
        home = float(backend.default_qpos[joints[actuator.joint].qpos.start])
    gain, bias = actuator.gain / stiffness, actuator.bias / stiffness
    return ActionColumn(
        actuator=actuator,
        kind="position",
        scale=scale / gain,
        offset=(home - bias) / gain,
        joint_gain=gain,
        joint_bias=bias,
    )


def _is_loop(actuator: ActuatorInfo) -> bool:
    """Whether the control is a target of the position; a gain that is unknown is NaN."""
    return abs(actuator.gear * actuator.stiffness * actuator.gain) > 0.0


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


def _driven(label: str, term: ActionTermCfg, names: list[str]) -> tuple[list[int], list[float]]:
    """Ids of the actuators that a term drives, and their scales."""
    term.check_delay(label)
    found = find_names(term.actuator_names, names, "actuator")
    scale = term.scale if isinstance(term.scale, dict) else {".*": term.scale}
    by_id = {
        i: float(value) for p, value in scale.items() for i in find_names([p], names, "actuator")
    }
    missing = [names[i] for i in found if i not in by_id]
    if missing:
        raise ConfigError(f"scale of {label} must cover {missing}, got {list(scale)}")
    return found, [by_id[i] for i in found]
