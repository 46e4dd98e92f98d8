"""The robots under the controls of their home pose, and the sensors that tasks read."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from unilab.errors import ConfigError
from unilab.tasks.robots import model_path

SENSORS = {
    "go2": {
        "imu_gyro": 3,
        "imu_lin_vel": 3,
        "imu_quat": 4,
        **{f"{leg}_foot_pos": 3 for leg in ("FL", "FR", "RL", "RR")},
        **{f"{leg}_foot_vel": 3 for leg in ("FL", "FR", "RL", "RR")},
    },
    "g1": {
        "imu_gyro": 3,
        "imu_lin_vel": 3,
        "imu_quat": 4,
        "torso_gyro": 3,
        "torso_quat": 4,
        **{f"{side}_foot_pos": 3 for side in ("left", "right")},
        **{f"{side}_foot_vel": 3 for side in ("left", "right")},
    },
}


def _at_home(robot: str) -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_path(str(model_path(robot)))
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    return model, data


def _step(model: mujoco.MjModel, data: mujoco.MjData, seconds: float) -> None:
    for _ in range(round(seconds / model.opt.timestep)):
        mujoco.mj_step(model, data)


def _upright(data: mujoco.MjData) -> float:
    """Cosine of the root's tilt."""
    return 1 - 2 * (data.qpos[4] ** 2 + data.qpos[5] ** 2)


def test_go2_stands_five_seconds_on_its_feet_alone() -> None:
    model, data = _at_home("go2")
    _step(model, data, 5.0)

    feet = {model.geom(name).id for name in ("FL", "FR", "RL", "RR")}
    touching = {max(c.geom1, c.geom2) for c in data.contact[: data.ncon]}
    assert touching == feet
    assert data.qpos[2] > 0.2
    assert _upright(data) > np.cos(np.radians(15))
    assert np.abs(data.qvel).max() < 0.05
    assert not any(w.number for w in data.warning)


def test_g1_left_to_itself_stays_finite_and_never_bursts() -> None:
    model, data = _at_home("g1")
    fastest = 0.0
    for _ in range(50):
        _step(model, data, 0.1)
        fastest = max(fastest, np.abs(data.qvel).max())

    assert np.isfinite(data.qpos).all()
    # It topples (a humanoid needs a policy) and lies still; nothing shoots off.
    assert fastest < 20.0
    assert np.abs(data.qvel).max() < 0.5
    assert not any(w.number for w in data.warning)


def test_g1_keeps_upright_for_the_first_half_second() -> None:
    model, data = _at_home("g1")
    _step(model, data, 0.5)

    assert _upright(data) > np.cos(np.radians(15))
    assert data.qpos[2] > 0.65


@pytest.mark.parametrize("robot", ["go2", "g1"])
def test_full_range_random_controls_stay_finite(robot: str) -> None:
    model, data = _at_home(robot)
    rng = np.random.default_rng(0)
    low, high = model.actuator_ctrlrange.T
    for _ in range(100):
        data.ctrl[:] = rng.uniform(low, high)
        _step(model, data, 4 * model.opt.timestep)

    assert np.isfinite(data.qpos).all()
    assert not any(w.number for w in data.warning)


@pytest.mark.parametrize("robot", ["go2", "g1"])
def test_sensors_are_named_and_need_no_accelerations(robot: str) -> None:
    model, _ = _at_home(robot)
    sensors = [model.sensor(i) for i in range(model.nsensor)]

    assert {s.name: int(s.dim[0]) for s in sensors} == SENSORS[robot]
    assert (model.sensor_needstage <= int(mujoco.mjtStage.mjSTAGE_VEL)).all()


def test_missing_model_names_what_is_packaged() -> None:
    with pytest.raises(ConfigError, match=r"'go3' \(did you mean 'go2'\?\).*cartpole, g1, go2"):
        model_path("go3")
