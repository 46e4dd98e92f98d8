"""Metadata for a robot's own program that runs a policy of a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.envs.entity import JOINT_FIELDS, SceneEntityCfg

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_UNITS = {
    ("position", "hinge"): "rad",
    ("position", "slide"): "m",
    ("relative_position", "hinge"): "rad",
    ("relative_position", "slide"): "m",
    ("velocity", "hinge"): "rad/s",
    ("velocity", "slide"): "m/s",
    ("effort", "hinge"): "N m",
    ("effort", "slide"): "N",
}


def deployment_metadata(env: ManagerBasedRlEnv) -> dict[str, Any]:
    """Observation layout, action mapping, joints and gains of a task, as JSON values.

    Joints are listed by name in the model's order, actions in the order of the policy's output.
    Everything about an action is at its joint, in the ``units`` of the joint: ``action_offset +
    action_scale * action``, within ``action_clip``, is the joint's target or effort; a relative
    target is added to the joint's position. A missing bound is None, and so is what
    the model computes from its state.
    """
    widths = env.observation_manager.term_widths["obs"]
    joints = {j.name: j for j in env.backend.joints if j.type in ("hinge", "slide")}
    columns = env.action_manager.columns
    driven = [column.actuator for column in columns]
    kinds = [joints[a.joint].type if a.joint in joints else None for a in driven]
    units = [
        _UNITS[column.kind, kind] if kind else None
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return {
        "control_period": env.step_dt,
        "observation_terms": [_term(env, name, width) for name, width in widths.items()],
        "commands": {n: t.deployment_metadata() for n, t in env.command_manager.terms.items()},
        "joint_names": list(joints),
        "joint_units": [_UNITS["position", joint.type] for joint in joints.values()],
        "default_joint_pos": [
            float(env.backend.default_qpos[j.qpos.start]) for j in joints.values()
        ],
        "action_names": [actuator.name for actuator in driven],
        "action_joint_names": [actuator.joint for actuator in driven],
        "action_kinds": [column.kind for column in columns],
        "action_units": units,
        "action_low": _floats(env.action_spec.space.low[0]),
        "action_high": _floats(env.action_spec.space.high[0]),
        "action_scale": [_finite(c.joint_gain * c.scale) for c in columns],
        "action_offset": [_finite(c.joint_bias + c.joint_gain * c.offset) for c in columns],
        "action_clip": [_at_joint(c.clip, c.joint_gain, c.joint_bias) for c in columns],
        "control_limits": [
            _at_joint(c.actuator.ctrl_range, c.joint_gain, c.joint_bias) for c in columns
        ],
        "effort_limits": [_at_joint(a.force_range, a.gear) for a in driven],
        "effort_units": [_UNITS["effort", kind] if kind else None for kind in kinds],
        "stiffness": [actuator.stiffness * actuator.gear**2 for actuator in driven],
        "damping": [actuator.damping * actuator.gear**2 for actuator in driven],
        "time_constants": [actuator.time_constant for actuator in driven],
        "gear": [actuator.gear for actuator in driven],
    }


def _term(env: ManagerBasedRlEnv, name: str, width: int) -> dict[str, Any]:
    """A block of columns; the frames of a history follow each other, oldest first."""
    group = env.cfg.observations["obs"]
    cfg = group.terms[name]
    frames = group.frames(cfg)
    term = env.observation_manager.get_term("obs", name)
    joints = any(entity and field in JOINT_FIELDS for entity, field in term.reads)
    return {
        "name": name,
        "width": width,
        "history": frames,
        "function": cfg.func.__name__,
        "params": {k: _parameter(env, v, joints=joints) for k, v in term.params.items()},
        "clip": None if cfg.clip is None else _bounds(cfg.clip),
        "scale": torch.as_tensor(cfg.scale, dtype=torch.float64).expand(width // frames).tolist(),
    }


def _parameter(env: ManagerBasedRlEnv, value: Any, *, joints: bool) -> Any:
    """A term's parameter as a JSON value; an entity with the joints that the term reads."""
    if isinstance(value, SceneEntityCfg):
        entity = env.scene[value.name]
        if not joints:
            return {"entity": value.name}
        columns = value.joints_of(torch.arange(len(entity.joints), device=env.device)[None])[0]
        return {"entity": value.name, "joint_names": [entity.joint_names[i] for i in columns]}
    if isinstance(value, list | tuple):
        return [_parameter(env, inner, joints=joints) for inner in value]
    if isinstance(value, dict):
        return {str(k): _parameter(env, inner, joints=joints) for k, inner in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _floats(values: Tensor) -> list[float]:
    """float32 values in their shortest decimal form."""
    return [float(str(value)) for value in values.cpu().numpy()]


def _bounds(bounds: Sequence[float]) -> list[float | None]:
    return [_finite(value) for value in bounds]


def _at_joint(bounds: tuple[float, float], gain: float, bias: float = 0.0) -> list[float | None]:
    return _bounds(sorted(bias + gain * value for value in bounds))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
