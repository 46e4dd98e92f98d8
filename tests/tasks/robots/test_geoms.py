"""What the robot models are made of and how they touch the floor."""

from __future__ import annotations

from collections import defaultdict

import mujoco
import numpy as np
import pytest
from numpy.testing import assert_allclose
from tasks.robots import figures

from unilab.tasks.robots import model_path

PRIMITIVES = {"plane", "sphere", "capsule", "cylinder", "box"}
FEET = {
    "go2": {"FL": "FL_foot", "FR": "FR_foot", "RL": "RL_foot", "RR": "RR_foot"},
    "g1": {
        f"{side}_foot{i}_collision": f"{side}_ankle_roll_link"
        for side in ("left", "right")
        for i in (1, 2, 3)
    },
}


def _load(robot: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(model_path(robot)))


def _type(model: mujoco.MjModel, geom: int) -> str:
    return mujoco.mjtGeom(model.geom_type[geom]).name.removeprefix("mjGEOM_").lower()


def _robot_geoms(model: mujoco.MjModel) -> list[int]:
    return [i for i in range(model.ngeom) if model.geom_bodyid[i] != 0]


def _colliding(model: mujoco.MjModel) -> list[int]:
    return [i for i in _robot_geoms(model) if model.geom_conaffinity[i]]


def _shape(kind: str, size: np.ndarray, pos: np.ndarray, quat: np.ndarray) -> tuple:
    """A form under which two geoms are equal when they fill the same space."""
    used = {"sphere": 1, "capsule": 2, "box": 3}[kind]
    rot = figures.rotation(quat)
    # A sphere has no axes, a capsule one without a direction, a box three.
    axes = {"sphere": rot[:, :0], "capsule": rot[:, 2:], "box": rot}[kind]
    outer = np.concatenate([np.outer(a, a).ravel() for a in axes.T]) if axes.size else []
    return kind, (*np.round(size[:used], 6), *np.round(pos, 6), *(np.round(outer, 5) + 0.0))


@pytest.mark.parametrize("robot", ["cartpole", "g1", "go2", "pendulum"])
def test_model_is_primitives_only(robot: str) -> None:
    model = _load(robot)

    assert model.nmesh == model.nhfield == model.nskin == 0
    assert {_type(model, i) for i in range(model.ngeom)} <= PRIMITIVES


@pytest.mark.parametrize("robot", ["go2", "g1"])
def test_collision_geoms_but_g1_feet_are_those_of_the_figures(robot: str) -> None:
    model = _load(robot)
    here, given = defaultdict(set), defaultdict(set)
    for i in _colliding(model):
        shape = _shape(_type(model, i), model.geom_size[i], model.geom_pos[i], model.geom_quat[i])
        here[model.body(model.geom_bodyid[i]).name].add(shape)
    for geom in figures.load(robot)["collision_geoms"]:
        if geom["contype"]:
            shape = _shape(geom["type"], np.array(geom["size"]), geom["pos"], geom["quat"])
            given[geom["body"]].add(shape)
    if robot == "g1":
        for foot in ("left_ankle_roll_link", "right_ankle_roll_link"):
            del here[foot], given[foot]

    assert here == given


@pytest.mark.parametrize("side", ["left", "right"])
def test_g1_sole_falls_at_most_7_mm_short_of_the_figures_and_never_exceeds_them(
    side: str,
) -> None:
    model = _load("g1")
    body = f"{side}_ankle_roll_link"
    here = [
        _ends(model.geom_pos[i], model.geom_quat[i], model.geom_size[i])
        for i in _colliding(model)
        if model.body(model.geom_bodyid[i]).name == body
    ]
    given = [
        _ends(g["pos"], g["quat"], g["size"])
        for g in figures.load("g1")["collision_geoms"]
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


def _ends(pos: np.ndarray, quat: np.ndarray, size: np.ndarray) -> np.ndarray:
    """``[2, 3]`` ends of a capsule's axis."""
    half = figures.rotation(quat)[:, 2] * size[1]
    return np.stack([np.asarray(pos) - half, np.asarray(pos) + half])


@pytest.mark.parametrize("robot", ["go2", "g1"])
def test_feet_are_rubber_on_the_right_links_with_the_figures_friction(robot: str) -> None:
    model = _load(robot)
    friction = figures.load(robot)["collision_geoms"][0]["friction"]
    for geom, body in FEET[robot].items():
        here = model.geom(geom)
        assert model.body(here.bodyid[0]).name == body
        assert model.mat(here.matid[0]).name == "rubber"
        assert_allclose(here.friction, friction)


@pytest.mark.parametrize("robot", ["go2", "g1"])
def test_contact_friction_is_the_robots_own_not_the_floors(robot: str) -> None:
    model = _load(robot)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    data.qpos[2] -= _lowest(model, data) + 0.001
    mujoco.mj_forward(model, data)

    assert data.ncon > 0
    for contact in data.contact[: data.ncon]:
        foot = max(contact.geom1, contact.geom2)
        assert_allclose(contact.friction[:2], model.geom_friction[foot, 0])


@pytest.mark.parametrize("robot", ["go2", "g1"])
def test_robot_geoms_meet_the_floor_and_never_each_other(robot: str) -> None:
    model = _load(robot)
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


@pytest.mark.parametrize("robot", ["go2", "g1"])
def test_home_pose_touches_nothing_and_hangs_less_than_6_cm_over_the_floor(robot: str) -> None:
    model = _load(robot)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)

    assert data.ncon == 0
    assert 0.0 < _lowest(model, data) < 0.06


def _lowest(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Clearance of the lowest colliding geom over the floor."""
    mujoco.mj_forward(model, data)
    floor = model.geom("floor").id
    return min(
        mujoco.mj_geomDistance(model, data, floor, i, 1.0, np.zeros(6)) for i in _colliding(model)
    )


@pytest.mark.parametrize("robot", ["go2", "g1"])
def test_shells_are_for_the_eye_only(robot: str) -> None:
    model = _load(robot)
    shells = [i for i in _robot_geoms(model) if not model.geom_conaffinity[i]]

    assert shells
    assert not model.geom_contype[shells].any()
    # Inertias are given by the links: a geom's own mass would double them.
    assert (model.body_mass[model.geom_bodyid[shells]] > 0).all()
