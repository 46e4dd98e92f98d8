"""The MuJoCo model of a scene: the model file with what the configuration changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np

from unilab.backends import put_on_height_field
from unilab.envs.actuators import ON_JOINT, Motor, add_motor, motors_of
from unilab.envs.scene import SceneCfg
from unilab.envs.terrains import Terrain
from unilab.errors import ConfigError

_ONE_AXIS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)


def scene_model(cfg: SceneCfg, terrain: Terrain | None = None) -> mujoco.MjModel | Path:
    """The model of a scene on its terrain, with the actuators of its entities.

    Without any of these it is the file.
    """
    path = Path(cfg.model).expanduser()
    if terrain is None and not any(entity.actuators for entity in cfg.entities.values()):
        return path
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        if terrain is not None:
            put_on_height_field(spec, terrain.generated.heights, terrain.generated.cell)
        motors = {motor: add_motor(spec, motor) for motor in _motors(cfg, spec)}
        model = spec.compile()
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"MuJoCo cannot compile {path}: {error}") from error
    for motor, inherited in motors.items():
        _set_controls(model, motor, inherited)
    return model


def _motors(cfg: SceneCfg, spec: mujoco.MjSpec) -> list[Motor]:
    motors: list[Motor] = []
    for name, entity in cfg.entities.items():
        body = spec.body(entity.root_body)
        if body is not None:  # or the scene refuses it
            joints = [j for j in body.find_all(mujoco.mjtObj.mjOBJ_JOINT) if j.type in _ONE_AXIS]
            motors += motors_of(name, entity.actuators, [j.name for j in joints if j.name])
    return motors


def _set_controls(model: mujoco.MjModel, motor: Motor, inherited: float) -> None:
    """Set the controls of the keyframes, which hold their poses, and an inherited range."""
    joint = model.joint(motor.joint)
    on_joint = np.isin(model.actuator_trntype, ON_JOINT) & (model.actuator_trnid[:, 0] == joint.id)
    (i,) = on_joint.nonzero()[0]
    model.key_ctrl[:, i] = 0.0
    if motor.target == "position":
        model.key_ctrl[:, i] = model.actuator_gear[i, 0] * model.key_qpos[:, joint.qposadr[0]]
    if inherited and model.jnt_limited[joint.id]:
        low, high = model.jnt_range[joint.id]
        middle, reach = 0.5 * (high + low), 0.5 * (high - low) * inherited
        model.actuator_ctrlrange[i] = middle - reach, middle + reach
        model.actuator_ctrllimited[i] = True


def with_constant_lags(cfg: SceneCfg, lag: int | None = None) -> SceneCfg:
    """The scene with one lag for all its motors; None: the largest of each group."""
    entities = {}
    for name, entity in cfg.entities.items():
        groups = {}
        for group, own in entity.actuators.items():
            most = own.delay_max_lag if lag is None else lag
            groups[group] = replace(own, delay_min_lag=most, delay_max_lag=most)
        entities[name] = replace(entity, actuators=groups)
    return replace(cfg, entities=entities)
