"""The packaged robot models against the published figures (see NOTICE), and at rest."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from numpy.testing import assert_allclose

from unilab.tasks.robots import model_path

FIGURES = {
    robot: json.loads((Path(__file__).parent / "robots" / f"{robot}.json").read_text())
    for robot in ("go2", "g1")
}
MODELS = {
    robot: mujoco.MjModel.from_xml_path(str(model_path(robot)))
    for robot in ("arm", "cartpole", "g1", "go2", "pendulum")
}
FEET = {
    "go2": {"FL": "FL_foot", "FR": "FR_foot", "RL": "RL_foot", "RR": "RR_foot"},
    "g1": {
        f"{side}_foot{i}_collision": f"{side}_ankle_roll_link"
        for side in ("left", "right")
        for i in (1, 2, 3)
    },
}
# The figures carry nine digits.
CLOSE = {"rtol": 1e-6, "atol": 1e-9}

both = pytest.mark.parametrize("robot", ["go2", "g1"])


def _rotation(quat: Any) -> np.ndarray:
    """``[3, 3]`` rotation of a quaternion (w, x, y, z) of any length."""
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, np.asarray(quat) / np.linalg.norm(quat))
    return matrix.reshape(3, 3)


def _hinges(robot: str) -> list[dict]:
    return [j for j in FIGURES[robot]["joints"] if j["type"] == "hinge"]


def _first_match(patterns: dict[str, Any], name: str, default: Any = None) -> Any:
    return next((v for p, v in patterns.items() if re.fullmatch(p, name)), default)


def _drive(robot: str, joint: str) -> tuple[dict, float, float]:
    """Published position control of a joint: its motor's figures, effort limit and dry friction."""
    given = FIGURES[robot]["actuator_figures"]
    if "groups" in given:
        group = _first_match(given["groups"], joint)
        return group, group["effort_limit"], 0.0
    limits = {f".*_{part}_joint": limit for part, limit in given["effort_limit"].items()}
    return given, _first_match(limits, joint), given["frictionloss"]


@both
def test_links_agree(robot: str) -> None:
    model, given = MODELS[robot], FIGURES[robot]
    here = [model.body(i) for i in range(1, model.nbody)]

    assert_allclose(model.body_mass.sum(), given["totals"]["mass_kg"], **CLOSE)
    assert [b.name for b in here] == [b["name"] for b in given["bodies"]]
    for link, body in zip(here, given["bodies"], strict=True):
        name = body["name"]
        assert model.body(model.body_parentid[link.id]).name == body["parent"], name
        assert_allclose(link.pos, body["pos"], err_msg=name, **CLOSE)
        assert_allclose(
            _rotation(link.quat), _rotation(body["quat"]), err_msg=name, rtol=0, atol=1e-7
        )
        assert_allclose(link.mass, body["mass"], err_msg=name, **CLOSE)
        if body["mass"]:
            assert_allclose(link.ipos, body["ipos"], err_msg=name, **CLOSE)
        assert_allclose(
            _inertia(link.iquat, link.inertia),
            _inertia(body["iquat"], body["diaginertia"]),
            err_msg=name,
            rtol=0,
            atol=1e-6 * max(body["diaginertia"]),
        )


def _inertia(quat: Any, principal: Any) -> np.ndarray:
    axes = _rotation(quat)
    return axes @ np.diag(principal) @ axes.T


@both
def test_joints_agree_and_damping_is_left_to_the_actuator(robot: str) -> None:
    model, hinges = MODELS[robot], _hinges(robot)

    assert [model.joint(i).name for i in range(1, model.njnt)] == [j["name"] for j in hinges]
    for joint in hinges:
        here, name = model.joint(joint["name"]), joint["name"]
        motor, _, friction = _drive(robot, name)
        assert model.body(model.jnt_bodyid[here.id]).name == joint["body"]
        assert_allclose(here.axis, joint["axis"], err_msg=name)
        assert_allclose(here.pos, 0.0, err_msg=name)
        assert_allclose(here.range, joint["range"], err_msg=name)
        assert_allclose(here.armature, motor["armature"], err_msg=name, **CLOSE)
        assert_allclose(here.frictionloss, friction, err_msg=name)
        assert here.damping[0] == 0.0, name
        assert model.jnt_limited[here.id], name


@both
def test_actuators_agree_and_span_the_joint_limits(robot: str) -> None:
    model, hinges = MODELS[robot], _hinges(robot)

    assert [model.joint(j).name for j in model.actuator_trnid[:, 0]] == [j["name"] for j in hinges]
    for i, joint in enumerate(hinges):
        name = joint["name"]
        motor, effort, _ = _drive(robot, name)
        gains = [0.0, -motor["stiffness"], -motor["damping"]]
        assert_allclose(model.actuator_gainprm[i, 0], motor["stiffness"], err_msg=name, **CLOSE)
        assert_allclose(model.actuator_biasprm[i, :3], gains, err_msg=name, **CLOSE)
        assert_allclose(model.actuator_forcerange[i], [-effort, effort], err_msg=name)
        assert model.actuator_forcelimited[i], name
        assert_allclose(model.actuator_ctrlrange[i], joint["range"], err_msg=name, **CLOSE)


@both
def test_home_pose_and_sites_agree(robot: str) -> None:
    model, given = MODELS[robot], FIGURES[robot]
    pose, key = given["default_pose"], model.key("home")
    home = [_first_match(pose["joint_pos"], j["name"], 0.0) for j in _hinges(robot)]

    assert_allclose(key.qpos, [*pose["root_pos"], 1.0, 0.0, 0.0, 0.0, *home])
    assert_allclose(key.ctrl, home)
    for site in given["sites"]:
        here = model.site(site["name"])
        assert model.body(here.bodyid[0]).name == site["body"]
        assert_allclose(here.pos, site["pos"], err_msg=site["name"])
        assert_allclose(here.quat, site["quat"], err_msg=site["name"])


def _colliding(model: mujoco.MjModel) -> list[int]:
    return [
        i for i in range(model.ngeom) if model.geom_bodyid[i] != 0 and model.geom_conaffinity[i]
    ]


def _type(model: mujoco.MjModel, geom: int) -> str:
    return mujoco.mjtGeom(model.geom_type[geom]).name.removeprefix("mjGEOM_").lower()


def _shape(kind: str, size: Any, pos: Any, quat: Any) -> tuple:
    """A form under which two geoms are equal when they fill the same space."""
    used = {"sphere": 1, "capsule": 2, "box": 3}[kind]
    rot = _rotation(quat)
    # A sphere has no axes, a capsule one without a direction, a box three.
    axes = {"sphere": rot[:, :0], "capsule": rot[:, 2:], "box": rot}[kind]
    outer = np.concatenate([np.outer(a, a).ravel() for a in axes.T]) if axes.size else []
    return kind, (*np.round(size[:used], 6), *np.round(pos, 6), *(np.round(outer, 5) + 0.0))


@pytest.mark.parametrize("robot", sorted(MODELS))
def test_model_needs_no_mesh(robot: str) -> None:
    assert MODELS[robot].nmesh == MODELS[robot].nhfield == MODELS[robot].nskin == 0


@both
def test_collision_geoms_but_g1_feet_are_those_of_the_figures(robot: str) -> None:
    model = MODELS[robot]
    here, given = defaultdict(set), defaultdict(set)
    for i in _colliding(model):
        shape = _shape(_type(model, i), model.geom_size[i], model.geom_pos[i], model.geom_quat[i])
        here[model.body(model.geom_bodyid[i]).name].add(shape)
    for geom in FIGURES[robot]["collision_geoms"]:
        if geom["contype"]:
            shape = _shape(geom["type"], geom["size"], geom["pos"], geom["quat"])
            given[geom["body"]].add(shape)
    if robot == "g1":
        for foot in ("left_ankle_roll_link", "right_ankle_roll_link"):
            del here[foot], given[foot]

    assert here == given


@pytest.mark.parametrize("side", ["left", "right"])
def test_g1_sole_falls_at_most_7_mm_short_of_the_figures_and_never_exceeds_them(side: str) -> None:
    model, body = MODELS["g1"], f"{side}_ankle_roll_link"
    here = [
        _ends(model.geom_pos[i], model.geom_quat[i], model.geom_size[i])
        for i in _colliding(model)
        if model.body(model.geom_bodyid[i]).name == body
    ]
    given = [
        _ends(g["pos"], g["quat"], g["size"])
        for g in FIGURES["g1"]["collision_geoms"]
        if g["body"] == body
    ]
    angles = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)])
    reach_here, reach_given = (
        (np.concatenate(ends)[:, :2] @ directions).max(0) for ends in (here, given)
    )

    assert_allclose(np.concatenate(here)[:, 2], -0.025, atol=1e-6)
    assert (reach_here <= reach_given + 1e-6).all()
    assert (reach_given - reach_here).max() < 0.007


def _ends(pos: Any, quat: Any, size: Any) -> np.ndarray:
    """``[2, 3]`` ends of a capsule's axis."""
    half = _rotation(quat)[:, 2] * size[1]
    return np.stack([np.asarray(pos) - half, np.asarray(pos) + half])


@both
def test_robot_geoms_meet_the_floor_and_never_each_other(robot: str) -> None:
    model = MODELS[robot]
    floor = model.geom("floor").id
    meets = [
        (a, b)
        for a in range(model.ngeom)
        for b in range(a + 1, model.ngeom)
        if model.geom_contype[a] & model.geom_conaffinity[b]
        or model.geom_contype[b] & model.geom_conaffinity[a]
    ]

    assert {pair for pair in meets if floor not in pair} == set()
    assert {i for pair in meets for i in pair} == {floor, *_colliding(model)}


@both
def test_contact_friction_is_the_feets_published_one_not_the_floors(robot: str) -> None:
    model, data = _at_home(robot)
    friction = FIGURES[robot]["collision_geoms"][0]["friction"]
    for geom, body in FEET[robot].items():
        assert model.body(model.geom(geom).bodyid[0]).name == body
        assert_allclose(model.geom(geom).friction, friction)
    data.qpos[2] -= _clearance(model, data) + 0.001
    mujoco.mj_forward(model, data)

    assert data.ncon > 0
    for contact in data.contact[: data.ncon]:
        assert_allclose(contact.friction[:2], friction[0])


@both
def test_home_pose_hangs_less_than_6_cm_over_the_floor(robot: str) -> None:
    assert 0.0 < _clearance(*_at_home(robot)) < 0.06


def _clearance(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Distance of the lowest colliding geom from the floor, m."""
    mujoco.mj_forward(model, data)
    floor = model.geom("floor").id
    return min(
        mujoco.mj_geomDistance(model, data, floor, i, 1.0, np.zeros(6)) for i in _colliding(model)
    )


def _at_home(robot: str) -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = MODELS[robot]
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    return model, data


def test_go2_stands_five_seconds_on_its_feet_alone() -> None:
    model, data = _at_home("go2")
    for _ in range(round(5.0 / model.opt.timestep)):
        mujoco.mj_step(model, data)

    touching = {model.geom(max(c.geom1, c.geom2)).name for c in data.contact[: data.ncon]}
    assert touching == set(FEET["go2"])
    assert data.qpos[2] > 0.2
    assert np.abs(data.qvel).max() < 0.05
