"""Names and figures that the backend publishes about its model."""

import math

import mujoco
import numpy as np
import pytest
import torch

from unilab.backends import MujocoBackend
from unilab.errors import CapabilityError, ConfigError


def test_joints_are_published_with_their_columns_and_limits(backend):
    ball, shoulder, elbow, wrist = backend.joints
    assert (ball.name, ball.type, ball.body) == ("ball", "free", "ball")
    assert (ball.qpos, ball.qvel) == (slice(0, 7), slice(0, 6))
    assert (shoulder.name, shoulder.type, shoulder.body) == ("shoulder", "hinge", "upper")
    assert (shoulder.qpos, shoulder.qvel, shoulder.range) == (slice(7, 8), slice(6, 7), (-2.0, 2.0))
    assert elbow.range == (-math.inf, math.inf)
    assert (wrist.qpos, wrist.qvel) == (slice(9, 10), slice(8, 9))


def test_actuators_are_published_with_their_gains_and_limits(backend):
    shoulder, elbow = backend.actuators
    assert (shoulder.name, shoulder.joint) == ("shoulder", "shoulder")
    assert (shoulder.stiffness, shoulder.damping) == (20.0, 1.0)
    assert (shoulder.ctrl_range, shoulder.force_range) == ((-2.0, 2.0), (-9.0, 9.0))
    assert (elbow.stiffness, elbow.damping) == (0.0, 0.0)
    assert elbow.ctrl_range == (-math.inf, math.inf)


def test_a_subtree_holds_a_body_and_all_below_it(backend):
    assert backend.subtree("lower") == {"lower", "hand"}
    assert backend.subtree("ball") == {"ball"}
    assert backend.subtree("world") == set(backend.bodies)


def test_the_home_pose_is_that_of_the_keyframe(backend):
    assert backend.default_qpos.tolist() == [0, 0, 0.3, 1, 0, 0, 0, 0.5, -0.2, -0.2]
    assert backend.default_ctrl.tolist() == [0.5, 0.0]
    assert torch.equal(backend.get_state_views()["qpos"], backend.default_qpos.expand(5, -1))
    assert torch.equal(backend.get_state_views()["ctrl"], backend.default_ctrl.expand(5, -1))


def test_without_a_keyframe_the_home_pose_is_the_models_own(rig_model):
    backend = MujocoBackend(rig_model, 2)
    assert backend.default_qpos.tolist() == rig_model.qpos0.tolist()
    assert backend.default_ctrl.tolist() == [0.0, 0.0]


def test_a_model_may_be_given_by_path(rig_path):
    backend = MujocoBackend(rig_path, 2, num_threads=1, keyframe="home")
    assert (backend.num_envs, backend.num_threads, backend.timestep) == (2, 1, 0.004)


TARGET = """
<mujoco>
  <worldbody>
    <body name="target" mocap="true" pos="1 2 3"/>
    <body name="arm"><joint name="joint" damping="1"/><geom size="0.1" pos="0 0 0.3"/></body>
  </worldbody>
  <actuator><general joint="joint" dyntype="filter" dynprm="0.1"/></actuator>
  <keyframe>
    <key name="home" time="2" qpos="0.3" act="0.6" ctrl="0.5" mpos="4 5 6" mquat="0 1 0 0"/>
    <key name="moving" qvel="0.7"/>
  </keyframe>
</mujoco>
"""


DC = '<dcmotor {} joint="joint" motorconst="2 2" resistance="4"/>'
LAWS = {
    '<pid joint="joint" kp="5" kv="2" input="pos"/>': (5, 5, 2, math.inf, math.inf),
    '<pid joint="joint" kp="0" kv="2" input="vel"/>': (2, 0, 2, math.inf, math.inf),
    '<pid joint="joint" kp="5" ki="1" input="pos"/>': (math.nan, 0, 0, math.inf, math.inf),
    DC.format('input="pos" controller="5 0 2 0 0 6"'): (5, 5, 2, 3, 3),
    DC.format('input="ff" controller="0 0 0 0 0 6"'): (1, 0, 0, 3, 3),
    DC.format(""): (math.nan, 0, 0, math.inf, math.inf),
}


@pytest.mark.parametrize("xml", LAWS)
def test_controllers_of_mujoco_are_published_as_force_laws(xml):
    arm = TARGET.replace('<general joint="joint" dyntype="filter" dynprm="0.1"/>', xml)
    backend = MujocoBackend(mujoco.MjModel.from_xml_string(arm.replace('act="0.6"', "")), 1)
    (a,) = backend.actuators
    law = (a.gain, a.stiffness, a.damping, a.saturation_effort, a.velocity_limit)
    assert law == pytest.approx(LAWS[xml], nan_ok=True)


def test_an_actuator_with_two_controls_is_refused():
    arm = "<body><joint name='j'/><geom size='1'/></body>"
    pid = "<actuator><pid name='both' joint='j'/></actuator>"
    xml = f"<mujoco><worldbody>{arm}</worldbody>{pid}</mujoco>"
    with pytest.raises(CapabilityError, match="both"):
        MujocoBackend(mujoco.MjModel.from_xml_string(xml), 1)


def test_parts_without_a_name_are_told_apart():
    arm = "<body name='{}'>{}{}</body>"
    link = "<body><joint axis='0 1 0'/><geom size='0.1' pos='0.2 0 0'/></body>"
    bodies = arm.format("one", link, link) + arm.format("two", link, "")
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    backend = MujocoBackend(model, 1)
    assert len(set(backend.bodies)) == 6
    for root, expected in (("one", [0, 1]), ("two", [2])):
        tree = backend.subtree(root)
        assert [i for i, joint in enumerate(backend.joints) if joint.body in tree] == expected
    assert len({joint.name for joint in backend.joints}) == 3


@pytest.mark.parametrize("expand", [False, True])
def test_episodes_begin_with_the_whole_keyframe(expand):
    backend = MujocoBackend(mujoco.MjModel.from_xml_string(TARGET), 3, keyframe="home")
    home = backend.get_replay_state().clone()
    data = mujoco.MjData(backend.mj_model)
    mujoco.mj_resetDataKeyframe(backend.mj_model, data, 0)
    if expand:  # a field that MuJoCo's own reset reads
        backend.expand("body_pos")
    for _ in range(2):
        for name in ("qpos", "act", "ctrl", "mocap_pos", "mocap_quat", "time"):
            expected = np.asarray(getattr(data, name))
            np.testing.assert_array_equal(backend._batch.bind(name)[2], expected, err_msg=name)
        backend.step_tensor(torch.ones(3, 1), 5)
        backend._batch.bind("mocap_pos")[:] = 0.0
        pose = backend.default_qpos.repeat(3, 1)
        backend.set_state_tensor(torch.arange(3), pose, torch.zeros(3, 1))
        assert torch.equal(backend.get_replay_state(), home)


def test_a_keyframe_in_motion_is_refused():
    with pytest.raises(ConfigError, match="qvel of keyframe 'moving'"):
        MujocoBackend(mujoco.MjModel.from_xml_string(TARGET), 1, keyframe="moving")
