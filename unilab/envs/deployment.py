"""Metadata for a robot's own program that runs a policy of a task."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.envs.entity import SceneEntityCfg, find_names
from unilab.envs.managers.action import JointPositionActionCfg

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


def deployment_metadata(env: ManagerBasedRlEnv) -> dict[str, Any]:
    """Observation layout, action mapping, joints and gains of a task, as JSON values.

    Joints are listed by name in the model's order, actions in the order of the policy's output; a
    driven joint's control is ``action_offset + action_scale * action``. Lengths are in m, angles
    in rad, gains in N m/rad and N m s/rad. A missing bound is None.
    """
    widths = env.observation_manager.term_widths["obs"]
    joints = [j for j in env.backend.joints if j.type in ("hinge", "slide")]
    manager = env.action_manager
    by_name = {actuator.name: actuator for actuator in env.backend.actuators}
    driven = [by_name[name] for name in manager.actuator_names]
    kinds = [  # in the order of the action's columns
        "position" if isinstance(term, JointPositionActionCfg) else "effort"
        for term in env.cfg.actions.values()
        for _ in find_names(term.actuator_names, list(by_name), "actuator")
    ]
    return {
        "control_period": env.step_dt,
        "observation_terms": [_term(env, name, width) for name, width in widths.items()],
        "joint_names": [joint.name for joint in joints],
        "default_joint_pos": [float(env.backend.default_qpos[j.qpos.start]) for j in joints],
        "action_names": list(manager.actuator_names),
        "action_joint_names": [actuator.joint for actuator in driven],
        "action_kinds": kinds,
        "action_low": _floats(env.action_spec.space.low[0]),
        "action_high": _floats(env.action_spec.space.high[0]),
        "action_scale": _floats(manager.scale),
        "action_offset": _floats(manager.offset),
        "control_limits": [_bounds(actuator.ctrl_range) for actuator in driven],
        "effort_limits": [_bounds(actuator.force_range) for actuator in driven],
        "stiffness": [actuator.stiffness for actuator in driven],
        "damping": [actuator.damping for actuator in driven],
    }


def _term(env: ManagerBasedRlEnv, name: str, width: int) -> dict[str, Any]:
    """A block of columns; the frames of a history follow each other, oldest first."""
    group = env.cfg.observations["obs"]
    cfg = group.terms[name]
    frames = group.frames(cfg)
    term = env.observation_manager.get_term("obs", name)
    joints = any(entity and field.startswith("joint_") for entity, field in term.reads)
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
        ids = entity.find_joints(value.joint_names)
        return {"entity": value.name, "joint_names": [entity.joint_names[i] for i in ids]}
    if isinstance(value, list | tuple):
        return [_parameter(env, inner, joints=joints) for inner in value]
    if isinstance(value, dict):
        return {str(k): _parameter(env, inner, joints=joints) for k, inner in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _floats(values: Tensor) -> list[float]:
    """float32 values in their shortest decimal form."""
    return [float(str(value)) for value in values.cpu().numpy()]


def _bounds(bounds: tuple[float, float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in bounds]
