"""Actions: policy outputs mapped to the simulator's controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """Actuators driven by a block of action columns: ``ctrl = offset + scale * action``."""

    actuator_names: Patterns = (".*",)
    """Regular expressions, each matched against whole actuator names."""
    scale: float | dict[str, float] = 1.0
    """Factor for all, or by pattern of actuator names."""


@dataclass(frozen=True, kw_only=True)
class JointPositionActionCfg(ActionTermCfg):
    """Targets of position actuators, in rad (m) about an offset."""

    use_default_offset: bool = True
    """Whether action 0 is the home pose, the joints' ``qpos`` in the keyframe; otherwise 0."""


@dataclass(frozen=True, kw_only=True)
class JointEffortActionCfg(ActionTermCfg):
    """Controls of motors, in the unit of the actuator's control."""


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
        scales: list[float] = []
        offsets: list[float] = []
        specs: list[DelaySpec] = []
        for name, term in cfg.items():
            label = f"action term {name!r}"
            with naming(label):
                found, scale = _driven(label, term, names)
                taken = [names[i] for i in found if i in ids]
                if taken:
                    raise ConfigError(f"actuators {taken} must be driven by one term, got two")
                offsets += _offsets(term, [actuators[i] for i in found], env.backend)
            specs.append(DelaySpec(width=len(found), delay=term))
            ids += found
            scales += scale
        device = env.device
        self._ids = torch.tensor(ids, device=device)
        self.action_dim = len(ids)
        self._in_order = ids == list(range(len(names)))
        self.actuator_names = [names[i] for i in ids]
        self.scale = torch.tensor(scales, device=device)
        """``[action_dim]``."""
        self.offset = torch.tensor(offsets, device=device)
        """``[action_dim]``."""
        self.max_action = _max_action(self.scale, self.offset)
        """Largest action of any column whose control physics accepts."""
        self.action = torch.zeros(env.num_envs, len(ids), device=device)
        """``[num_envs, action_dim]``, the current action; zeros after a reset."""
        self.prev_action = torch.zeros_like(self.action)
        self._delay: DelayBuffer | None = None
        if any(spec.depth > 1 for spec in specs):
            self._delay = DelayBuffer(specs, env.num_envs, env.generator)
        self._ctrl = env.backend.default_ctrl.float().to(device).repeat(env.num_envs, 1)

    def process(self, action: Tensor) -> Tensor:
        """Remember an action and turn it into controls, ``[num_envs, nu]``."""
        self.action, self.prev_action = self.prev_action, self.action
        self.action.copy_(action)
        acting = self.action if self._delay is None else self._delay.push(self.action)
        ctrl = torch.addcmul(self.offset, acting, self.scale)
        if self._in_order:
            return ctrl
        self._ctrl[:, self._ids] = ctrl
        return self._ctrl

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


def _offsets(
    term: ActionTermCfg, actuators: Sequence[ActuatorInfo], backend: SimBackend
) -> list[float]:
    """Controls at action 0."""
    centred = [0.0] * len(actuators)
    if not isinstance(term, JointPositionActionCfg):
        return centred
    joints = {joint.name: joint for joint in backend.joints}
    motors = [a.name for a in actuators if a.stiffness == 0.0 or a.joint not in joints]
    if motors:
        raise ConfigError(
            f"actuators {motors} must be position actuators of joints: use JointEffortActionCfg"
        )
    if not term.use_default_offset:
        return centred
    return [float(backend.default_qpos[joints[a.joint].qpos.start]) for a in actuators if a.joint]


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
