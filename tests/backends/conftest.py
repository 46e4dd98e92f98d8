"""A small rig: a ball that falls on a floor, and an arm of three joints held by an equality."""

from pathlib import Path

import mujoco
import pytest

from unilab.backends import MujocoBackend

RIG = """
<mujoco model="rig">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.004"/>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 0.1"/>
    <body name="ball" pos="0 0 0.4">
      <freejoint name="ball"/>
      <geom name="ball" size="0.1" mass="1" friction="0.8 0.005 0.0001"/>
    </body>
    <body name="upper" pos="2 0 1">
      <joint name="shoulder" axis="0 1 0" range="-2 2" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="0.5" contype="0"/>
      <body name="lower" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.02" mass="0.3" contype="0"/>
        <body name="hand" pos="0.2 0 0">
          <joint name="wrist" axis="0 1 0" damping="0.1"/>
          <geom type="sphere" size="0.04" mass="0.1" contype="0"/>
          <site name="tip" pos="0.05 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <equality>
    <joint joint1="elbow" joint2="wrist"/>
  </equality>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="20" kv="1" ctrlrange="-2 2" forcerange="-9 9"/>
    <motor name="elbow" joint="elbow" gear="2"/>
  </actuator>
  <sensor>
    <framepos name="tip_pos" objtype="site" objname="tip"/>
    <framelinvel name="tip_vel" objtype="site" objname="tip"/>
    <jointpos name="shoulder_pos" joint="shoulder"/>
  </sensor>
  <keyframe>
    <key name="home" qpos="0 0 0.3 1 0 0 0 0.5 -0.2 -0.2" ctrl="0.5 0"/>
  </keyframe>
</mujoco>
"""


@pytest.fixture
def rig_path(tmp_path: Path) -> Path:
    path = tmp_path / "rig.xml"
    path.write_text(RIG)
    return path


@pytest.fixture
def rig_model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(RIG)


@pytest.fixture
def rig_spec() -> mujoco.MjSpec:
    """The rig's source, to be changed and compiled."""
    return mujoco.MjSpec.from_string(RIG)


@pytest.fixture
def backend(rig_model: mujoco.MjModel) -> MujocoBackend:
    return MujocoBackend(rig_model, 5, num_threads=2, keyframe="home")
