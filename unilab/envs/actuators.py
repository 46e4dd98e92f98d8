"""Actuator models: motors that a task's configuration puts on the joints of the model file.

MuJoCo computes their torques in every physics step, of all environments in one call; Python does
not run within a control step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mujoco
import torch
from torch import Tensor

from unilab.backends.base import ActuatorInfo, SimBackend
from unilab.checks import Bound, check_fields
from unilab.envs.managers.delay import check_lags
from unilab.envs.names import Patterns, find_names, values_of_names
from unilab.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from unilab.envs.entity import Entity
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_NUMBERS = ("stiffness", "damping", "effort_limit", "saturation_effort", "velocity_limit")
ON_JOINT = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
"""Transmissions of actuators that drive a joint."""
_TARGETS = {
    "position": mujoco.mjtCtrlInput.mjINPUT_POS,
    "velocity": mujoco.mjtCtrlInput.mjINPUT_VEL,
    "effort": mujoco.mjtCtrlInput.mjINPUT_FF,
}


@dataclass(frozen=True, kw_only=True)
class IdealPDActuatorCfg:
    """Motors with PD control and an effort limit.

    In every physics step the joint gets ``stiffness * (target - position) + damping * (target
    velocity - velocity)``, within the effort limit. Their control is a target position, with the
    target velocity 0; with stiffness 0 it is a target velocity, and without gains an effort. All
    values are at the joint: N m, rad and s, or N, m and s for slides.

    A number is for all joints, a dict gives numbers by pattern of joint names.
    """

    joint_names_expr: Patterns
    """Joints of the entity that have such a motor."""
    stiffness: float | dict[str, float]
    damping: float | dict[str, float]
    effort_limit: Bound | dict[str, Bound] | None = None
    """Largest effort either way; None keeps the ``forcerange`` of the model file."""
    delay_min_lag: int = 0
    """Smallest lag of the control in physics steps."""
    delay_max_lag: int = 0
    """Largest lag in physics steps; each environment draws one for the group when an episode
    begins. Until the episode's first action arrives, the control is the keyframe's."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in _NUMBERS:
            value = getattr(self, name, None)
            bound = "at least 0" if name in ("stiffness", "damping") else "above 0"
            for number in value.values() if isinstance(value, dict) else [value]:
                if number is not None and (number < 0.0 or (number == 0.0 and bound == "above 0")):
                    raise ConfigError(f"{name} must be {bound}, got {value}")
        check_lags("", self.delay_min_lag, self.delay_max_lag)


@dataclass(frozen=True, kw_only=True)
class DCMotorCfg(IdealPDActuatorCfg):
    """PD-controlled motors whose effort falls with speed, as a DC motor's at its full voltage.

    The effort is at most ``saturation_effort * (1 - velocity / velocity_limit)`` and at least
    ``saturation_effort * (-1 - velocity / velocity_limit)``, then within the effort limit.
    """

    saturation_effort: float | dict[str, float]
    """Stall effort: the curve's at rest."""
    velocity_limit: float | dict[str, float]
    """Speed without load, at which the curve reaches 0, rad/s or m/s."""


@dataclass(frozen=True, kw_only=True)
class Motor:
    """An actuator model on one joint, in values at the joint."""

    joint: str
    stiffness: float
    damping: float
    effort_limit: float | None
    saturation_effort: float = math.inf
    velocity_limit: float = math.inf
    max_lag: int

    @property
    def target(self) -> str:
        """What its control is."""
        return _target(self.stiffness, self.damping)


def motors_of(
    entity: str, groups: dict[str, IdealPDActuatorCfg], joints: Sequence[str]
) -> Iterator[Motor]:
    """The motors of an entity, which has the hinge and slide ``joints``."""
    owner: dict[str, str] = {}
    for group, cfg in groups.items():
        label = f"actuators {group!r} of {entity!r}"
        found = find_names(cfg.joint_names_expr, joints, f"joint of {entity!r} for {label}")
        names = [joints[i] for i in found]
        given = {n: getattr(cfg, n) for n in _NUMBERS if getattr(cfg, n, None) is not None}
        numbers: dict[str, list[float | None]] = {"effort_limit": [None] * len(names)}
        for name, value in given.items():
            numbers[name] = values_of_names(value, names, f"joint of {label}", f"{name} of {label}")
        for i, joint in enumerate(names):
            if joint in owner:
                raise ConfigError(
                    f"joint {joint!r} must have one motor, got two, of actuators "
                    f"{owner[joint]!r} and {group!r} of {entity!r}"
                )
            owner[joint] = group
            own: dict[str, Any] = {name: values[i] for name, values in numbers.items()}
            yield Motor(joint=joint, max_lag=cfg.delay_max_lag, **own)


def add_motor(spec: mujoco.MjSpec, motor: Motor) -> float:
    """Put a motor on a joint of a model, in place of the actuator that is there.

    It keeps the actuator's name, place and gear and, with the same kind of control, the range of
    the control. The return is the part of the joint's range that it must still get as that range.
    """
    there = [a for a in spec.actuators if a.trntype in ON_JOINT and a.target == motor.joint]
    if len(there) > 1:
        raise ConfigError(
            f"joint {motor.joint!r} must have one actuator in the model file to be replaced, got "
            f"{[a.name for a in there]}"
        )
    if there:
        (own,) = there
    else:
        own = spec.add_actuator(name=motor.joint, target=motor.joint, trntype=ON_JOINT[0])
    gear, inherited = abs(float(own.gear[0])), float(own.inheritrange)
    if not gear:
        raise ConfigError(
            f"gear of actuator {own.name!r} on joint {motor.joint!r} must not be 0 in the model "
            "file: a motor takes its place and keeps the gear"
        )
    affine = own.gaintype in (mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtGain.mjGAIN_PID)
    if not affine or _target(-own.biasprm[1], -own.biasprm[2]) != motor.target:
        own.ctrlrange, own.ctrllimited, inherited = [0, 0], mujoco.mjtLimited.mjLIMITED_AUTO, 0.0
    own.actrange, own.actlimited = [0, 0], mujoco.mjtLimited.mjLIMITED_AUTO
    own.actearly = False
    kp, kv = motor.stiffness / gear**2, motor.damping / gear**2
    if motor.saturation_effort < math.inf:
        # A motor constant of 1 makes its voltage a speed: full voltage is the speed without load.
        speed = motor.velocity_limit * gear
        own.set_to_dcmotor(
            motorconst=[1.0, 1.0],
            resistance=speed / (motor.saturation_effort / gear),
            controller=[kp, 0.0, kv, 0.0, 0.0, speed],
            ctrlspec=int(_TARGETS[motor.target]),
        )
    elif motor.target == "position":
        own.set_to_position(kp=kp, kv=kv)
        own.inheritrange, inherited = inherited, 0.0
    elif motor.target == "velocity":
        own.set_to_velocity(kv=kv)
    else:
        own.set_to_motor()
    if motor.effort_limit is not None:
        limited = motor.effort_limit < math.inf
        force = motor.effort_limit / gear if limited else 0.0
        own.forcerange, own.forcelimited = [-force, force], int(limited)
    own.nsample, own.interp = motor.max_lag, 0
    own.delay = delay_of(motor.max_lag, spec.option.timestep)
    return inherited


def delay_of(lag: int, timestep: float) -> float:
    """MuJoCo's delay (s) for a lag in physics steps.

    MuJoCo applies the last control before ``time - delay``. Half a step less than the lag is far
    from the times of the steps, which are sums with rounding errors: a delay of whole steps would
    often be one step too long.
    """
    return max(lag - 0.5, 0.0) * timestep


def _target(stiffness: float, damping: float) -> str:
    return "position" if stiffness else "velocity" if damping else "effort"


def check_motors(entities: Iterable[Entity], backend: SimBackend) -> None:
    """Refuse a backend without the motors of the configuration."""
    for entity in entities:
        for motor in motors_of(entity.name, entity.cfg.actuators, entity.joint_names):
            found = [a for a in backend.actuators if a.joint == motor.joint]
            if len(found) != 1 or not _is(found[0], motor, backend.timestep):
                raise ConfigError(
                    f"the backend must have the {motor} on joint {motor.joint!r}, got {found}: "
                    "make it from scene_model(cfg.scene)"
                )


def _is(actuator: ActuatorInfo, motor: Motor, timestep: float) -> bool:
    gear = abs(actuator.gear)
    limit = actuator.force_range[1] * gear
    pairs = (
        (actuator.stiffness * gear**2, motor.stiffness),
        (actuator.damping * gear**2, motor.damping),
        (actuator.saturation_effort * gear, motor.saturation_effort),
        (actuator.velocity_limit, motor.velocity_limit * gear),
        (min(limit, motor.effort_limit or limit), limit),  # the joint may have a limit, too
        (actuator.delay, delay_of(motor.max_lag, timestep)),
    )
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in pairs)


class ActuatorDelays:
    """Lags of motors, drawn for each environment when an episode begins."""

    def __init__(self, env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._groups: list[tuple[Tensor, Tensor]] = []
        """Ids of the actuators, and the delays that they may have."""
        for entity in env.scene.entities.values():
            for cfg in entity.cfg.actuators.values():
                if cfg.delay_min_lag < cfg.delay_max_lag:
                    ids = entity.find_actuators(None, entity.find_joints(cfg.joint_names_expr))
                    lags = range(cfg.delay_min_lag, cfg.delay_max_lag + 1)
                    delays = [delay_of(lag, env.backend.timestep) for lag in lags]
                    at = torch.tensor(ids, device=env.device)
                    self._groups.append((at, torch.tensor(delays, device=env.device)))
        if self._groups:
            if "actuator_delay" not in env.backend.get_tensor_capabilities().model_fields:
                raise CapabilityError(
                    "the backend must have a delay for each environment: without it delay_min_lag "
                    "must be delay_max_lag"
                )
            env.scene.declare_field("actuator_delay")

    def stage_reset(self, rows: Tensor) -> None:
        """Stage new delays for rows ``[n]``, one for all motors of a group."""
        env, n = self._env, rows.shape[0]
        for ids, delays in self._groups:
            draw = torch.rand(n, generator=env.generator, device=env.device)
            delay = delays[(draw * len(delays)).long()].unsqueeze(1)
            env.scene.write_field("actuator_delay", (ids,), delay.expand(n, len(ids)))
