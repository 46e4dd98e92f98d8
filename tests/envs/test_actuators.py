"""Actuator models on the joints of a model: torques, delays, what they replace."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from envs.tables import act, drive, twins_cfg

from unilab import checks
from unilab.backends import MujocoBackend, assert_backend_conforms
from unilab.envs import (
    DCMotorCfg,
    EntityCfg,
    EventTermCfg,
    IdealPDActuatorCfg,
    ManagerBasedRlEnv,
    SceneCfg,
    SceneEntityCfg,
    mdp,
    scene_model,
)
from unilab.errors import ConfigError
from unilab.tasks.velocity.go2 import go2_velocity_flat

ARMS_XML = """
<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.005" integrator="implicitfast" gravity="0 0 0"/>
  <default><joint axis="0 1 0" armature="0.5"/><geom size="0.1" contype="0" mass="1"/></default>
  <worldbody>
    <body name="base">
      <geom/>
      <body><joint name="hip" range="-2 2"/><geom/></body>
      <body><joint name="knee" range="-2 1"/><geom/></body>
      <body><joint name="wheel"/><geom/></body>
      <body><joint name="rail" type="slide"/><geom/></body>
    </body>
  </worldbody>
  <actuator>
    <position name="hip_servo" joint="hip" gear="-2" kp="1" forcerange="-9 9" inheritrange="0.9"/>
    <motor name="wheel_motor" joint="wheel" gear="3" ctrlrange="-1 1" forcerange="-2 2"/>
  </actuator>
  <keyframe><key name="home" qpos="0.5 -0.4 0 0" ctrl="7 7"/></keyframe>
</mujoco>"""
JOINTS = ("hip", "knee", "wheel", "rail")
PD = IdealPDActuatorCfg(joint_names_expr="hip", stiffness=20.0, damping=0.5, effort_limit=6.0)
MOTOR = replace(PD, stiffness=0.0, damping=0.0, effort_limit=None)
DC = DCMotorCfg(
    joint_names_expr="hip|knee",
    stiffness={"hip": 20.0, "kn.*": 10.0},
    damping=0.5,
    effort_limit={"hip": 6.0, "knee": 50.0},
    saturation_effort=10.0,
    velocity_limit=15.0,
)


def scene(folder, **actuators):
    (folder / "arms.xml").write_text(ARMS_XML)
    robot = EntityCfg(root_body="base", actuators=actuators)
    return SceneCfg(model=str(folder / "arms.xml"), entities={"twins": robot})


def arms(folder, num_envs=4, actions=None, **actuators):
    """Joints without gravity, whose motors are ``actuators``, one physics step a control step."""
    cfg = replace(
        twins_cfg(folder),
        scene=scene(folder, **actuators),
        decimation=1,
        episode_length_s=100.0,
        actions=actions or {"effort": mdp.JointEffortActionCfg()},
        events={},
    )
    return ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=0)


def torques(env, pos, vel, ctrl):
    """Torque of each joint, ``[n, 4]``, at given states and controls at the joints."""
    backend = env.backend
    gears = torch.tensor([a.gear for a in backend.actuators])
    wheel = [a.joint == "wheel" for a in backend.actuators]
    gears = torch.where(torch.tensor(wheel), 1.0 / gears, gears)  # an effort
    at = [JOINTS.index(a.joint) for a in backend.actuators]
    rows = torch.arange(len(pos))
    backend.step_tensor(torch.tensor(ctrl[:, at]).float() * gears, 1)
    backend.set_state_tensor(rows, torch.tensor(pos), torch.tensor(vel), reset=False)
    return backend.get_state_views()["qfrc_actuator"].numpy()


def test_torques_are_those_of_the_formulas(tmp_path):
    """PD control within limits; the DC motor's curve in its four quadrants and at its corners."""
    wheel = replace(MOTOR, joint_names_expr="wheel", effort_limit=4.0)
    rail = replace(PD, joint_names_expr="rail", stiffness=0.0, effort_limit=math.inf)
    env = arms(tmp_path, 2000, dc=DC, wheel=wheel, rail=rail)
    draw = np.random.default_rng(0)
    pos, vel, ctrl = (draw.uniform(-s, s, (2000, 4)) for s in (1.0, 40.0, 0.9))
    corners = [0.0, 15.0, -15.0, 15.0 * 1.6, -15.0 * 1.6, 6.0, -6.0, 30.0]
    vel[:16, :2] = np.repeat(corners, 2)[:, None]
    pos[:16], ctrl[:16] = 0.0, np.tile([[0.9], [-0.9]], (8, 1))
    ctrl = ctrl.astype(np.float32).astype(float)
    found = torques(env, pos, vel, ctrl)

    kp, limit = np.array([20.0, 10.0]), np.array([6.0, 50.0])
    own = vel[:, :2]
    wanted = kp * (ctrl[:, :2] - pos[:, :2]) - 0.5 * own
    top, bottom = 10.0 * (1.0 - own / 15.0), 10.0 * (-1.0 - own / 15.0)
    wanted = np.minimum(np.maximum(wanted, bottom), top)
    np.testing.assert_allclose(found[:, :2], np.clip(wanted, -limit, limit), atol=1e-5)
    np.testing.assert_allclose(found[:, 2], np.clip(ctrl[:, 2], -4.0, 4.0), atol=1e-6)
    np.testing.assert_allclose(found[:, 3], 0.5 * (ctrl[:, 3] - vel[:, 3]), atol=1e-5)
    stalled, free, beyond = found[:2, 0], found[2:6, 0], found[6:10, 0]
    np.testing.assert_allclose(stalled, [6.0, -6.0])
    np.testing.assert_allclose(free, [0.0, -6.0, 6.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(beyond, [-6.0, -6.0, 6.0, 6.0])


def test_a_motor_keeps_the_name_and_range_of_what_it_replaces(tmp_path):
    wheel = replace(MOTOR, joint_names_expr="wheel")
    env = arms(tmp_path, dc=DC, wheel=wheel)
    hip, motor, knee = env.backend.actuators
    assert [a.name for a in (hip, motor, knee)] == ["hip_servo", "wheel_motor", "knee"]
    assert hip.ctrl_range == pytest.approx((-1.8, 1.8))
    assert motor.ctrl_range == (-1.0, 1.0)
    assert motor.force_range == (-2.0, 2.0)
    assert knee.ctrl_range == (-math.inf, math.inf)
    # The keyframe's controls hold its pose.
    assert env.backend.default_ctrl.tolist() == pytest.approx([-1.0, 0.0, -0.4])


def test_gains_of_the_model_file_change_nothing_bit_for_bit():
    base = go2_velocity_flat()
    same = replace(PD, joint_names_expr=".*", stiffness=35.0, effort_limit=None)
    robot = replace(base.scene.entities["robot"], actuators={"all": same})
    made = replace(base, scene=replace(base.scene, entities={"robot": robot}))
    runs = [
        drive(replace(c, num_threads=1).make(num_envs=2, device="cpu", seed=0), 10)
        for c in (base, made)
    ]
    assert torch.equal(runs[0]["next", "critic"], runs[1]["next", "critic"])


@pytest.mark.parametrize("expanded", ["body_pos", "body_mass"])  # other ways to reset
@pytest.mark.parametrize("lag", [0, 1, 7])
def test_the_keyframes_control_acts_until_the_first_one_arrives(tmp_path, lag, expanded):
    late = replace(PD, damping=0.0, delay_min_lag=lag, delay_max_lag=lag, effort_limit=math.inf)
    backend = arms(tmp_path, 1, late=late).backend
    backend.expand(expanded)
    views = backend.get_state_views()
    home, rest = backend.default_qpos.unsqueeze(0), torch.zeros(1, 4)
    for _ in range(2):
        backend.set_state_tensor(torch.tensor([0]), home, rest)
        for step in range(20):
            before = float(views["qpos"][0, 0])
            backend.step_tensor(torch.tensor([[0.01 * step, 0.0]]), 1)
            target = -2.0 * 0.5 if step < lag else 0.01 * (step - lag)
            wanted = 20.0 / 4.0 * (target - -2.0 * before)
            assert float(views["actuator_force"][0, 0]) == pytest.approx(wanted, abs=1e-6), step


def test_robots_draw_lags_of_whole_physics_steps_in_each_episode(tmp_path):
    """They stay for the episode, although sums of the time step are not its multiples."""
    late = replace(MOTOR, joint_names_expr="hip|rail", effort_limit=math.inf, delay_max_lag=7)
    env, drawn = arms(tmp_path, 64, late=late), []
    for steps in (2000, 20):
        env.reset()
        lags = torch.full((64, 2), -1)
        for step in range(steps):
            env.backend.step_tensor(torch.full((64, 3), step + 1.0), 1)
            force = env.backend.get_state_views()["actuator_force"][:, [0, 2]]
            if step == 10:
                lags = (step + 1 - force).long()
            elif step > 10:
                assert torch.equal(force, step + 1.0 - lags), step
        assert torch.equal(lags[:, 0], lags[:, 1])  # one for the group
        assert set(lags[:, 0].tolist()) == set(range(8))
        drawn.append(lags)
    assert not torch.equal(*drawn)


def test_gains_of_dc_motors_vary_between_robots(tmp_path):
    event = EventTermCfg(
        func=mdp.randomize_actuator_gains,
        mode="startup",
        params={
            "stiffness_distribution_params": (0.5, 1.5),
            "damping_distribution_params": (0.5, 1.5),
            "asset_cfg": SceneEntityCfg("twins", joint_names=("hip", "rail")),
        },
    )
    rail = replace(PD, joint_names_expr="rail")
    env = arms(tmp_path, 8, dc=DC, rail=rail)
    cfg = replace(env.cfg, events={"gains": event})
    env = ManagerBasedRlEnv(cfg, num_envs=8, seed=0)
    zero = np.zeros((8, 4))
    kp = torques(env, zero, zero, np.full((8, 4), 0.1))[:, [0, 3]] / 0.1
    kd = -torques(env, zero, np.ones((8, 4)), zero)[:, [0, 3]]
    for gain, nominal in ((kp, 20.0), (kd, 0.5)):
        assert (np.abs(gain / nominal - 1.0) <= 0.5).all()
        assert len(np.unique(gain.round(6))) == 16


ALL = {
    "hip": PD,
    "knee": replace(DC, joint_names_expr="knee", stiffness=10.0, effort_limit=8.0),
    "wheel": replace(MOTOR, joint_names_expr="wheel"),
    "rail": replace(PD, joint_names_expr="rail", stiffness=0.0, damping=2.0),
}
ACTIONS = {
    "rail": mdp.JointVelocityActionCfg(actuator_names=("rail",), scale=3.0, clip=(-1.0, 2.0)),
    "effort": mdp.JointEffortActionCfg(actuator_names="wheel", scale={"whe.*": 0.5}),
    "relative": mdp.RelativeJointPositionActionCfg(
        actuator_names=("kn.*",), scale=0.4, clip={"knee": (-0.1, 0.3)}
    ),
    "pose": mdp.JointPositionActionCfg(
        actuator_names="hip", scale={"hip": 0.5}, clip={"hip_servo": (0.2, math.inf)}
    ),
}


def test_metadata_gives_the_torque_of_every_kind_of_action(tmp_path):
    """A controller at the joints, from the metadata alone, does what physics does."""
    env = arms(tmp_path, 4, ACTIONS, **ALL)
    data = env.deployment_metadata()
    assert data["action_kinds"] == ["velocity", "effort", "relative_position", "position"]
    assert data["action_units"] == ["m/s", "N m", "rad", "rad"]
    assert data["action_joint_names"] == ["rail", "wheel", "knee", "hip"]
    assert data["action_clip"][0] == [-1.0, 2.0]
    assert data["action_clip"][3] == [pytest.approx(0.2), None]
    scale, offset, kp, kd = (
        np.array(data[k]) for k in ("action_scale", "action_offset", "stiffness", "damping")
    )
    limits = [
        np.array(
            [[-math.inf if a is None else a, math.inf if b is None else b] for a, b in data[k]]
        )
        for k in ("action_clip", "control_limits", "effort_limits")
    ]
    np.testing.assert_allclose(kp, [0.0, 0.0, 10.0, 20.0])
    np.testing.assert_allclose(kd, [2.0, 0.0, 0.5, 0.5])
    at, views, root = [3, 2, 1, 0], env.backend.get_state_views(), env.reset()
    for _ in range(100):
        pos, vel = (views[name].numpy()[:, at].copy() for name in ("qpos", "qvel"))
        root = env.rand_action(root)
        value = np.clip(offset + scale * root["action"].numpy(), *limits[0].T)
        value[:, 2] += pos[:, 2]
        value = np.clip(value, *limits[1].T)
        torque = kp * (value - pos) - kd * vel
        torque[:, 0], torque[:, 1] = kd[0] * (value[:, 0] - vel[:, 0]), value[:, 1]
        _, root = env.step_and_maybe_reset(root)
        found = views["qfrc_actuator"].numpy()[:, at]
        np.testing.assert_allclose(found, np.clip(torque, *limits[2].T), atol=1e-5)


def test_a_relative_target_stays_for_the_control_step_whatever_the_encoder_bias(tmp_path):
    bias = EventTermCfg(
        func=mdp.randomize_encoder_bias,
        mode="startup",
        params={"bias_range": (0.1, 0.2), "asset_cfg": SceneEntityCfg("twins")},
    )
    cfg = arms(tmp_path, 4, {"relative": ACTIONS["relative"]}, **ALL).cfg
    env = ManagerBasedRlEnv(replace(cfg, decimation=5, events={"bias": bias}), num_envs=4, seed=0)
    views, root = env.backend.get_state_views(), env.reset()
    for _ in range(3):
        start = views["qpos"][:, 1].clone()
        root = env.step(act(env, root, 0.5))["next"]
        np.testing.assert_allclose(views["ctrl"][:, 2], start + 0.2, atol=1e-6)


@pytest.mark.parametrize("lag", [0, 3])
def test_physics_with_motors_and_delays_conforms(tmp_path, lag):
    motors = replace(DC, delay_max_lag=lag), replace(PD, joint_names_expr="rail")
    model = scene_model(scene(tmp_path, dc=motors[0], rail=motors[1]))
    assert_backend_conforms(lambda n: MujocoBackend(model, n, num_threads=2, keyframe="home"))


BAD_FIELDS = {
    "stiffness": {"stiffness": -1.0},
    "damping": {"damping": {"hip": -0.1}},
    "effort_limit": {"effort_limit": 0.0},
    "velocity_limit": {"velocity_limit": -3.0},
    "saturation_effort": {"saturation_effort": math.inf},
    "delay_min_lag": {"delay_min_lag": 3, "delay_max_lag": 2},
    "delay_max_lag": {"delay_min_lag": -1},
    "delay_max_lag.*1000000000000": {"delay_max_lag": 10**12},
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_number_out_of_range_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=name):
        replace(DC, **BAD_FIELDS[name])


def test_fields_of_actuators_are_overridden_by_their_paths():
    base = go2_velocity_flat()
    robot = replace(base.scene.entities["robot"], actuators={"legs": replace(DC, delay_max_lag=2)})
    cfg = replace(base, scene=replace(base.scene, entities={"robot": robot}))
    legs = "scene.entities.robot.actuators.legs"
    changed = checks.replace(cfg, {f"{legs}.velocity_limit": 9.0, "randomize": False})
    motors = changed.scene.entities["robot"].actuators["legs"]
    assert (motors.velocity_limit, motors.delay_max_lag) == (9.0, 0)
    with pytest.raises(ConfigError, match=rf"{legs}.*damping"):
        checks.replace(cfg, {f"{legs}.damping": -1.0})


BAD_GROUPS = {
    "'hi'.*'twins'.*'legs'": {"legs": replace(PD, joint_names_expr="hi")},
    r"'\('.*'legs' of 'twins'": {"legs": replace(PD, joint_names_expr="(")},
    "'hip'.*'legs' and 'knees'": {"legs": PD, "knees": replace(DC, joint_names_expr="hip|knee")},
    "stiffness of.*'legs'.*knee": {"legs": replace(DC, stiffness={"hip": 1.0})},
    "damping of.*'hip'.*'hi.*'": {"legs": replace(PD, damping={"hip": 1.0, "hi.*": 1.0})},
    "effort_limit|'rail'": {"legs": replace(PD, effort_limit={"rail": 1.0})},
}


BAD_ACTIONS = {
    "'relative'.*'wheel_motor'.*position": mdp.RelativeJointPositionActionCfg(),
    "'relative'.*'hip_servo'.*velocity": mdp.JointVelocityActionCfg(),
    "clip.*'relative'.*low": mdp.JointEffortActionCfg(clip=(0.2, 0.1)),
    "clip.*'relative'.*'knee'.*'kn.*'": mdp.JointEffortActionCfg(
        clip={"knee": (0.0, 1.0), "kn.*": (0.0, 1.0)}
    ),
    "scale.*'relative'.*'hip_servo'.*'hip'": mdp.JointEffortActionCfg(
        scale={".*": 1.0, "hip": 2.0}
    ),
    "'ankle'.*'relative'": mdp.JointEffortActionCfg(scale={".*": 1.0, "ankle": 2.0}),
}


@pytest.mark.parametrize("named", BAD_ACTIONS)
def test_actions_that_do_not_fit_the_motors_are_refused(tmp_path, named):
    with pytest.raises(ConfigError, match=named):
        arms(tmp_path, 1, {"relative": BAD_ACTIONS[named]}, **ALL)


@pytest.mark.parametrize("named", BAD_GROUPS)
def test_actuators_that_do_not_fit_the_entity_are_refused(tmp_path, named):
    with pytest.raises(ConfigError, match=named):
        arms(tmp_path, **BAD_GROUPS[named])


def test_two_actuators_of_the_model_file_on_one_joint_are_not_replaced(tmp_path):
    cfg = scene(tmp_path, legs=PD)
    xml = ARMS_XML.replace("<motor", '<velocity name="twin" joint="hip" kv="1"/><motor')
    (tmp_path / "arms.xml").write_text(xml)
    with pytest.raises(ConfigError, match=r"'hip'.*hip_servo.*twin"):
        scene_model(cfg)


def test_a_motor_in_place_of_an_actuator_without_gear_is_refused(tmp_path):
    cfg = scene(tmp_path, legs=PD)
    path = tmp_path / "arms.xml"
    path.write_text(ARMS_XML.replace('gear="-2"', 'gear="0"'))
    with pytest.raises(ConfigError, match=r"gear.*'hip_servo'"):
        scene_model(cfg)


def test_one_joint_of_two_entities_cannot_have_two_motors(tmp_path):
    cfg = scene(tmp_path, legs=PD)
    cfg.entities["more"] = cfg.entities["twins"]
    with pytest.raises(ConfigError, match=r"'hip'.*'twins' and 'more'"):
        scene_model(cfg)


def test_a_backend_without_the_configured_motors_is_refused(tmp_path):
    cfg = arms(tmp_path, 2, dc=DC).cfg
    other = scene_model(scene(tmp_path, dc=replace(DC, saturation_effort=11.0)))
    for model in (cfg.scene.model, other):
        backend = MujocoBackend(model, 2, num_threads=1, keyframe="home")
        with pytest.raises(ConfigError, match=r"'hip'.*scene_model"):
            ManagerBasedRlEnv(cfg, num_envs=2, backend=backend)
