"""The packaged robot models agree with the figures that NOTICE credits."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from numpy.testing import assert_allclose
from tasks.robots import figures

from unilab.tasks.robots import model_path

# The figures carry nine digits.
CLOSE = {"rtol": 1e-6, "atol": 1e-9}


@pytest.fixture(params=figures.ROBOTS)
def robot(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def given(robot: str) -> dict:
    return figures.load(robot)


@pytest.fixture
def model(robot: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(model_path(robot)))


@pytest.fixture
def hinges(given: dict) -> list[dict]:
    return [j for j in given["joints"] if j["type"] == "hinge"]


def _inertia(quat: np.ndarray, principal: np.ndarray) -> np.ndarray:
    axes = figures.rotation(quat)
    return axes @ np.diag(principal) @ axes.T


def test_total_mass_agrees(given: dict, model: mujoco.MjModel) -> None:
    assert_allclose(model.body_mass.sum(), given["totals"]["mass_kg"], **CLOSE)


def test_bodies_are_those_of_the_figures_in_their_order(given: dict, model: mujoco.MjModel) -> None:
    names = [model.body(i).name for i in range(1, model.nbody)]
    parents = [model.body(model.body_parentid[i]).name for i in range(1, model.nbody)]
    assert names == [b["name"] for b in given["bodies"]]
    assert parents == [b["parent"] for b in given["bodies"]]


def test_frames_agree(given: dict, model: mujoco.MjModel) -> None:
    for body in given["bodies"]:
        here = model.body(body["name"])
        assert_allclose(here.pos, body["pos"], err_msg=body["name"], **CLOSE)
        assert_allclose(
            figures.rotation(here.quat),
            figures.rotation(body["quat"]),
            err_msg=body["name"],
            rtol=0,
            atol=1e-7,
        )


def test_link_masses_centres_and_inertias_agree(given: dict, model: mujoco.MjModel) -> None:
    for body in given["bodies"]:
        here, name = model.body(body["name"]), body["name"]
        assert_allclose(here.mass, body["mass"], err_msg=name, **CLOSE)
        if body["mass"]:
            assert_allclose(here.ipos, body["ipos"], err_msg=name, **CLOSE)
        assert_allclose(
            _inertia(here.iquat, here.inertia),
            _inertia(body["iquat"], body["diaginertia"]),
            err_msg=name,
            rtol=0,
            atol=1e-6 * max(body["diaginertia"]),
        )


def test_joints_agree_in_order_axis_place_and_limits(
    hinges: list[dict], model: mujoco.MjModel
) -> None:
    assert [model.joint(i).name for i in range(1, model.njnt)] == [j["name"] for j in hinges]
    for joint in hinges:
        here, name = model.joint(joint["name"]), joint["name"]
        assert model.body(model.jnt_bodyid[here.id]).name == joint["body"]
        assert_allclose(here.axis, joint["axis"], err_msg=name)
        assert_allclose(here.pos, 0.0, err_msg=name)
        assert_allclose(here.range, joint["range"], err_msg=name)
        assert model.jnt_limited[here.id], name


def test_joint_armature_and_friction_agree_and_damping_is_left_to_the_actuator(
    given: dict, model: mujoco.MjModel
) -> None:
    for name, drive in figures.drives(given).items():
        joint = model.joint(name)
        assert_allclose(joint.armature, drive.armature, err_msg=name, **CLOSE)
        assert_allclose(joint.frictionloss, drive.frictionloss, err_msg=name)
        assert joint.damping[0] == 0.0, name


def test_actuators_agree_in_gains_and_effort_and_span_the_joint_limits(
    given: dict, hinges: list[dict], model: mujoco.MjModel
) -> None:
    driven = figures.drives(given)
    assert model.nu == len(hinges)
    for i, joint in enumerate(hinges):
        name, drive = joint["name"], driven[joint["name"]]
        assert model.joint(model.actuator_trnid[i, 0]).name == name
        assert_allclose(model.actuator_gainprm[i, 0], drive.stiffness, err_msg=name, **CLOSE)
        assert_allclose(
            model.actuator_biasprm[i, :3],
            [0.0, -drive.stiffness, -drive.damping],
            err_msg=name,
            **CLOSE,
        )
        assert_allclose(
            model.actuator_forcerange[i],
            [-drive.effort_limit, drive.effort_limit],
            err_msg=name,
        )
        assert model.actuator_forcelimited[i], name
        assert_allclose(model.actuator_ctrlrange[i], joint["range"], err_msg=name, **CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_mass_matrix_at_random_poses_agrees(
    given: dict, hinges: list[dict], model: mujoco.MjModel, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    low, high = np.array([j["range"] for j in hinges]).T
    quat = rng.normal(size=4)
    data = mujoco.MjData(model)
    data.qpos[:] = np.concatenate(
        [rng.normal(size=3), quat / np.linalg.norm(quat), rng.uniform(low, high)]
    )
    mujoco.mj_forward(model, data)
    here = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, here)

    assert_allclose(here, figures.mass_matrix(given, data.qpos), rtol=1e-6, atol=1e-6)


def test_home_pose_agrees_and_its_controls_hold_it(given: dict, model: mujoco.MjModel) -> None:
    key = model.key("home")
    assert_allclose(key.qpos, figures.home(given))
    assert_allclose(key.ctrl, figures.home(given)[7:])


def test_sites_agree(given: dict, model: mujoco.MjModel) -> None:
    for site in given["sites"]:
        here = model.site(site["name"])
        assert model.body(here.bodyid[0]).name == site["body"]
        assert_allclose(here.pos, site["pos"], err_msg=site["name"])
        assert_allclose(here.quat, site["quat"], err_msg=site["name"])
