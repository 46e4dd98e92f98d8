"""The MuJoCo model of a scene: the model file with what the configuration changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np

from unilab.backends import put_on_height_field
from unilab.envs.actuators import ON_JOINT, Motor, add_motor, motors_of
from unilab.envs.scene import SceneCfg
from unilab.envs.sensors import add_contact_sensors
from unilab.envs.terrains import GeneratedTerrain
from unilab.errors import ConfigError

_ONE_AXIS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)


def scene_model(cfg: SceneCfg, ground: GeneratedTerrain | None = None) -> mujoco.MjModel | Path:
    """The model of a scene on its terrain, with its sensors and what its entities change.

    Without any of these it is the file.

    Args:
        ground: what ``cfg.terrain.generate()`` returned; None: it is called here.
    """
    if ground is None and cfg.terrain is not None:
        ground = cfg.terrain.generate()
    path = Path(cfg.model).expanduser()
    entities = cfg.entities.values()
    changed = any(entity.actuators or entity.self_collisions for entity in entities)
    if ground is None and not changed and not cfg.sensors:
        return path
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        if ground is not None:
            put_on_height_field(spec, ground.heights, ground.cell)
        for entity in entities:
            if entity.self_collisions and (top := spec.body(entity.root_body)) is not None:
                _collide_with_itself(spec, top, cfg.keyframe)
        add_contact_sensors(spec, cfg.sensors, cfg.entities)
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
    owner: dict[str, str] = {}
    for name, entity in cfg.entities.items():
        body = spec.body(entity.root_body)
        if body is not None:  # or the scene refuses it
            joints = [j for j in body.find_all(mujoco.mjtObj.mjOBJ_JOINT) if j.type in _ONE_AXIS]
            for motor in motors_of(name, entity.actuators, [j.name for j in joints if j.name]):
                other = owner.setdefault(motor.joint, name)
                if other != name:
                    raise ConfigError(
                        f"joint {motor.joint!r} must have one motor, got two, of entities "
                        f"{other!r} and {name!r}"
                    )
                motors.append(motor)
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


def _collide_with_itself(spec: mujoco.MjSpec, top: mujoco.MjsBody, keyframe: str | None) -> None:
    """Let the geoms of a tree meet each other, by a bit that no other geom has.

    Bodies that overlap in the keyframe do so by their shapes' simplification: they stay apart.
    """
    used = 0
    for geom in spec.geoms:
        used |= geom.contype | geom.conaffinity
    bit = next((1 << i for i in range(31) if not used & 1 << i), None)
    if bit is None:
        raise ConfigError("self_collisions needs a free bit in contype and conaffinity")
    for geom in top.find_all(mujoco.mjtObj.mjOBJ_GEOM):
        if geom.contype or geom.conaffinity:
            geom.contype |= bit
            geom.conaffinity |= bit
    model = spec.compile()
    data = mujoco.MjData(model)
    if keyframe in {model.key(i).name for i in range(model.nkey)}:  # or the backend refuses it
        mujoco.mj_resetDataKeyframe(model, data, model.key(keyframe).id)
    mujoco.mj_forward(model, data)
    own = {b.name for b in (top, *top.find_all(mujoco.mjtObj.mjOBJ_BODY))}
    pairs = model.geom_bodyid[data.contact.geom]
    for pair in sorted({tuple(sorted(model.body(i).name for i in each)) for each in pairs}):
        if own.issuperset(pair):
            spec.add_exclude(bodyname1=pair[0], bodyname2=pair[1])


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
