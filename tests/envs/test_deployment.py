"""Deployment metadata agrees with the environment."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from envs import tables

import unilab
from unilab.envs import (
    EntityCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ObservationGroupCfg,
    ObservationTermCfg,
    SceneCfg,
    mdp,
)
from unilab.envs.rotations import gravity_direction
from unilab.errors import ConfigError
from unilab.tasks import TASKS

INF = math.inf

NOMINAL = {"num_threads": 1, "randomize": False}


@pytest.fixture
def go2():
    env = unilab.make("go2_velocity_flat", num_envs=3, seed=0, overrides=NOMINAL)
    yield env
    env.close()


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_describes_itself_in_json(task):
    env = unilab.make(task, num_envs=1, seed=0, overrides={"num_threads": 1})
    data = env.deployment_metadata()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert sum(term["width"] for term in data["observation_terms"]) == env.obs_groups_spec["obs"]
    actions = env.action_spec.shape[-1]
    per_action = {key for key in data if key.startswith("action_")}
    per_action |= {"control_limits", "effort_limits", "effort_units", "stiffness", "damping"}
    per_action |= {"time_constants", "gear"}
    assert {key: len(data[key]) for key in per_action} == dict.fromkeys(per_action, actions)
    assert data["control_period"] == env.step_dt
    env.close()


def test_observation_layout_gives_the_policys_observation():
    """Computed from the metadata and the robot's sensors only."""
    env = unilab.make("go2_velocity_flat", num_envs=3, seed=0, overrides=NOMINAL)
    data = env.deployment_metadata()
    step = env.rollout(4)[:, -1]
    state = env.backend.get_state_views()
    joint = {j.name: j for j in env.backend.joints}
    home = dict(zip(data["joint_names"], data["default_joint_pos"], strict=True))
    sensed = {
        "base_ang_vel": lambda p: state["qvel"][:, 3:6],
        "projected_gravity": lambda p: gravity_direction(state["qpos"][:, 3:7]),
        "generated_commands": lambda p: env.command_manager.get_command(p["command_name"]),
        "joint_pos_rel": lambda p: torch.stack(
            [
                state["qpos"][:, joint[name].qpos.start] - home[name]
                for name in p["asset_cfg"]["joint_names"]
            ],
            1,
        ),
        "joint_vel_rel": lambda p: torch.stack(
            [state["qvel"][:, joint[n].qvel.start] for n in p["asset_cfg"]["joint_names"]], 1
        ),
        "last_action": lambda p: step["action"],
    }
    columns = [
        sensed[term["function"]](term["params"]).float() * torch.tensor(term["scale"])
        for term in data["observation_terms"]
    ]
    torch.testing.assert_close(torch.cat(columns, 1), step["next", "obs"])
    env.close()


def test_action_mapping_gives_the_control(go2):
    data = go2.deployment_metadata()
    state = go2.rand_step(go2.reset())
    offset, scale = (torch.tensor(data[key]) for key in ("action_offset", "action_scale"))
    names = [a.name for a in go2.backend.actuators]
    columns = [names.index(name) for name in data["action_names"]]
    ctrl = go2.backend.get_state_views()["ctrl"][:, columns].float()
    torch.testing.assert_close(ctrl, offset + scale * state["action"])
    assert data["action_kinds"] == ["position"] * 12


def test_gains_and_limits_come_from_the_model(go2):
    data = go2.deployment_metadata()
    assert data["action_scale"] == [0.6] * 12  # not printed as float32
    assert data["observation_terms"][4]["scale"] == [0.05] * 12
    model = go2.backend.mj_model
    ids = [model.actuator(name).id for name in data["action_names"]]
    assert data["stiffness"] == [model.actuator_gainprm[i, 0] for i in ids]
    assert data["damping"] == [-model.actuator_biasprm[i, 2] for i in ids]
    assert data["control_limits"] == model.actuator_ctrlrange[ids].tolist()
    assert data["effort_limits"] == model.actuator_forcerange[ids].tolist()
    driven = [model.joint(model.actuator_trnid[i, 0]).name for i in ids]
    assert data["action_joint_names"] == driven


ACTUATORS = """
<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.002" gravity="0 0 0"/>
  <worldbody>
    <body name="base">
      <geom size="0.1"/>
      {bodies}
    </body>
  </worldbody>
  <actuator>
    <position name="geared" joint="j0" kp="3" kv="0.4" gear="2" ctrlrange="-0.8 2"/>
    <position name="reversed" joint="j1" kp="5" gear="-1" forcerange="-2 3"/>
    <general name="shifted" joint="j2" gainprm="8" biastype="affine" biasprm="0.5 -4 -0.2"/>
    <position name="limited" joint="j3" kp="9" gear="2"/>
    <motor name="force" joint="j4" gear="10" ctrlrange="-0.5 1"/>
    <motor name="torque" joint="j5" gear="-4" forcerange="-0.3 0.1"/>
  </actuator>
  <keyframe><key name="home" qpos="0.5 -1 0.3 0.2 0 0"/></keyframe>
</mujoco>"""


def actuated(folder, **changes):
    """Joints with actuators of every kind, each driven by a column of the action."""
    joint = {3: 'actuatorfrcrange="-1.5 0.7"', 4: 'type="slide"'}
    bodies = "".join(
        f'<body name="b{i}"><joint name="j{i}" axis="0 1 0" {joint.get(i, "")}/>'
        f'<geom size="0.1" contype="0"/></body>'
        for i in range(6)
    )
    (folder / "actuators.xml").write_text(ACTUATORS.format(bodies=bodies))
    served = ("geared", "reversed", "shifted", "limited")
    cfg = replace(
        tables.twins_cfg(folder),
        scene=SceneCfg(
            model=str(folder / "actuators.xml"), entities={"twins": EntityCfg(root_body="base")}
        ),
        decimation=1,
        episode_length_s=9.0,
        actions={
            "push": mdp.JointEffortActionCfg(actuator_names=("force", "torque"), scale=0.4),
            "pose": mdp.JointPositionActionCfg(actuator_names=served, scale=0.3),
        },
        events={},
    )
    return ManagerBasedRlEnv(replace(cfg, **changes), num_envs=2, seed=0)


def limits(pairs):
    """Lower and upper bounds; None is infinite."""
    bounds = [[-INF if low is None else low, INF if high is None else high] for low, high in pairs]
    return torch.tensor(bounds, dtype=torch.float64).T


def test_metadata_gives_the_torque_at_every_joint(tmp_path):
    """A controller at the joints, from the metadata alone, does what the model's actuators do."""
    env = actuated(tmp_path)
    data = env.deployment_metadata()
    offset, scale, stiffness, damping = (
        torch.tensor(data[key], dtype=torch.float64)
        for key in ("action_offset", "action_scale", "stiffness", "damping")
    )
    (low, high), bounds = (limits(data[key]) for key in ("control_limits", "effort_limits"))
    columns = [data["joint_names"].index(name) for name in data["action_joint_names"]]
    serves = torch.tensor([kind == "position" for kind in data["action_kinds"]])
    views, root = env.backend.get_state_views(), env.reset()
    for _ in range(200):
        pos, vel = (views[name][:, columns].clone() for name in ("qpos", "qvel"))
        root = env.rand_action(root)
        wanted = (offset + scale * root["action"]).clamp(low, high)
        torque = torch.where(serves, stiffness * (wanted - pos) - damping * vel, wanted)
        torque = torque.clamp(*bounds)
        _, root = env.step_and_maybe_reset(root)
        torch.testing.assert_close(views["qfrc_actuator"][:, columns], torque, rtol=1e-5, atol=1e-5)
    kinds = ["N", "N m", "rad", "rad", "rad", "rad"]
    assert data["action_units"] == kinds
    assert data["effort_units"] == ["N", "N m", *["N m"] * 4]
    assert data["joint_units"] == ["rad"] * 4 + ["m", "rad"]
    assert data["gear"] == [10.0, -4.0, 2.0, -1.0, 1.0, 2.0]


def test_action_0_holds_the_home_pose_whatever_the_gear(tmp_path):
    env = actuated(tmp_path)
    root = env.reset()
    for _ in range(50):
        root = env.step(tables.act(env, root))["next"]
    home = torch.tensor([0.5, -1.0, 0.3, 0.2])
    pos = env.backend.get_state_views()["qpos"][:, :4].float()
    torch.testing.assert_close(pos, home.expand(2, 4), rtol=0, atol=1e-6)


BIASED = EventTermCfg(
    func=mdp.randomize_encoder_bias,
    mode="startup",
    params={"bias_range": (0.1, 0.2), "asset_cfg": tables.TWINS},
)


def test_position_loop_and_policy_see_the_same_encoder(tmp_path):
    """A joint told to go where its encoder reads that it is stays there."""
    env = actuated(tmp_path, events={"bias": BIASED})
    entity = env.scene["twins"].data
    assert (entity.encoder_bias >= 0.1).all()
    root = env.reset()
    serves = slice(0, 4)
    action = entity.encoder_bias[:, serves] / 0.3  # the home pose, as the encoders read it
    for _ in range(50):
        zeros = torch.zeros(2, 2)
        root = env.step(root.set("action", torch.cat((zeros, action), 1)))["next"]
    pos = env.backend.get_state_views()["qpos"][:, serves].float()
    torch.testing.assert_close(pos, torch.tensor([[0.5, -1.0, 0.3, 0.2]] * 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("resets", [2, 3])
def test_saved_episodes_continue_with_their_encoders(tmp_path, resets):
    bias = EventTermCfg(
        func=mdp.randomize_encoder_bias,
        mode="reset",
        params={"bias_range": (-0.2, 0.2), "asset_cfg": tables.TWINS},
    )
    env, other = (actuated(tmp_path, events={"bias": bias}) for _ in range(2))
    for _ in range(resets - 1):
        env.step(tables.act(env, env.reset()))
    root = env.reset()
    other.import_episodes(env.export_episodes())
    expected, continued = (each.step(tables.act(each, root.clone())) for each in (env, other))
    assert torch.equal(expected["next", "obs"], continued["next", "obs"])


def test_position_actuators_without_a_position_action_see_the_encoder_too(tmp_path):
    """One whose control is an effort action, and one that no action drives."""
    push = mdp.JointEffortActionCfg(actuator_names=("geared",))
    env = actuated(tmp_path, events={"bias": BIASED}, actions={"push": push})
    env.step(tables.act(env, env.reset()))
    bias = env.scene["twins"].data.encoder_bias
    torques = torch.stack((-12 * (0.5 + bias[:, 0]), 0.5 - 4 * (0.3 + bias[:, 2])), 1)
    got = env.backend.get_state_views()["qfrc_actuator"][:, [0, 2]].float()
    torch.testing.assert_close(got, torques)


def test_effort_of_an_integrated_control_is_unknown(tmp_path):
    motor = '<motor name="first_motor" joint="first"/>'
    loop = '<intvelocity name="first_motor" joint="first" kp="20" actrange="-9 9"/>'
    xml = tables.TWINS_XML.replace(motor, loop).replace('ctrl="0.1 -0.1"', "")
    (tmp_path / "x.xml").write_text(xml)
    scene = SceneCfg(model=str(tmp_path / "x.xml"), entities={"twins": EntityCfg(root_body="base")})
    data = tables.twins(tmp_path, scene=scene).deployment_metadata()
    assert data["action_scale"] == [None, 0.5]


@pytest.mark.parametrize("kind", ["intvelocity", "velocity", "motor", "damper", "muscle"])
def test_actuator_whose_control_is_no_target_is_refused(tmp_path, kind):
    gains = {
        "intvelocity": 'kp="1" actrange="-9 9"',
        "velocity": 'kv="1"',
        "damper": 'kv="1" ctrlrange="0 1"',
        "muscle": 'lengthrange="0 1"',
    }
    gain = gains.get(kind, "")
    xml = tables.TWINS_XML.replace(
        '<motor name="first_motor"', f'<{kind} {gain} name="first_motor"'
    )
    xml = xml.replace('ctrl="0.1 -0.1"', "")
    (tmp_path / "x.xml").write_text(xml)
    scene = SceneCfg(model=str(tmp_path / "x.xml"), entities={"twins": EntityCfg(root_body="base")})
    with pytest.raises(ConfigError, match=r"'pose'.*first_motor"):
        tables.twins(
            tmp_path,
            scene=scene,
            actions={"pose": mdp.JointPositionActionCfg(actuator_names=("first_motor",))},
        )


def test_a_motor_has_no_gains_and_no_limit_is_none():
    env = unilab.make("pendulum_swingup", num_envs=1, seed=0, overrides={"num_threads": 1})
    data = env.deployment_metadata()
    env.close()
    assert data["action_kinds"] == ["effort"]
    assert (data["stiffness"], data["damping"]) == ([0.0], [0.0])
    assert data["effort_limits"] == [[None, None]]
    assert data["default_joint_pos"] == [pytest.approx(3.14159265)]


@pytest.mark.parametrize(
    ("ids", "names"),
    [([1], ["second"]), ((1, 0), ["second", "first"]), (slice(0, 1), ["first"])],
)
def test_joints_that_ids_select_are_named_in_the_order_of_the_columns(tmp_path, ids, names):
    chosen = {"asset_cfg": replace(tables.TWINS, joint_ids=ids)}
    pos = ObservationTermCfg(func=mdp.joint_pos_rel, params=chosen)
    env = tables.twins(tmp_path, observations={"obs": ObservationGroupCfg(terms={"pos": pos})})
    (term,) = env.deployment_metadata()["observation_terms"]
    assert (term["width"], term["params"]["asset_cfg"]["joint_names"]) == (len(names), names)
    env.close()


def test_history_clip_and_scale_of_each_term(tmp_path):
    pos = ObservationTermCfg(
        func=mdp.joint_pos_rel,
        params=tables.ON_TWINS,
        clip=(-1.0, float("inf")),
        scale=(2.0, 0.5),
        history_length=3,
    )
    env = tables.twins(tmp_path, observations={"obs": ObservationGroupCfg(terms={"pos": pos})})
    (term,) = env.deployment_metadata()["observation_terms"]
    assert (term["width"], term["history"]) == (6, 3)
    assert term["scale"] == [2.0, 0.5]
    assert term["clip"] == [-1.0, None]
    env.close()
