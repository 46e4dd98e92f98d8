"""Actions become controls; commands and events happen when they are due."""

import math
from dataclasses import replace
from itertools import pairwise

import mujoco
import numpy as np
import pytest
import torch
from envs.tables import ON_TWINS, TWINS_XML, act, go2, physics_state, twins, twins_cfg

from unilab.envs import (
    CurriculumTermCfg,
    EntityCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    MetricsTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
)
from unilab.errors import CapabilityError, ConfigError
from unilab.tasks.velocity.go2 import go2_velocity_flat

ENDLESS = {"time_out": TerminationTermCfg(func=mdp.time_out, time_out=True)}


def command(**changes):
    return replace(go2_velocity_flat().commands["base_velocity"], **changes)


def ranges(**changes):
    return replace(command().ranges, **changes)


def test_position_actions_are_scaled_about_the_home_pose():
    env = go2()
    home = env.backend.default_ctrl
    env.step(act(env, env.reset(), 0.5))
    ctrl = env.backend.get_state_views()["ctrl"]
    torch.testing.assert_close(ctrl, (home + 0.6 * 0.5).expand(4, -1), rtol=0, atol=1e-6)


def test_actuators_that_no_term_drives_keep_their_home_control(tmp_path):
    env = twins(tmp_path, actions={"e": mdp.JointEffortActionCfg(actuator_names=("second.*",))})
    assert env.action_spec.shape == (4, 1)
    env.step(act(env, env.reset(), 0.7))
    torch.testing.assert_close(
        env.backend.get_state_views()["ctrl"].float(), torch.tensor([[0.1, 0.7]] * 4)
    )


def test_action_columns_follow_the_order_of_terms(tmp_path):
    env = twins(
        tmp_path,
        actions={
            "b": mdp.JointEffortActionCfg(actuator_names=("second_motor",), scale={"sec.*": 2.0}),
            "a": mdp.JointEffortActionCfg(actuator_names=("first_motor",), scale=3.0),
        },
    )
    env.step(env.reset().set("action", torch.tensor([[0.1, 0.2]] * 4)))
    torch.testing.assert_close(
        env.backend.get_state_views()["ctrl"].float(), torch.tensor([[0.6, 0.2]] * 4)
    )
    assert env.action_manager.actuator_names == ["second_motor", "first_motor"]


def test_last_two_actions_are_kept_until_a_reset(tmp_path):
    env = twins(tmp_path)
    root = env.reset()
    for value in (0.1, 0.2):
        env.step(act(env, root, value))
    assert env.action_manager.action[0].tolist() == pytest.approx([0.2, 0.2])
    assert env.action_manager.prev_action[0].tolist() == pytest.approx([0.1, 0.1])
    env.reset()
    assert not env.action_manager.action.any()
    assert not env.action_manager.prev_action.any()


MOTOR = mdp.JointEffortActionCfg()
BAD_ACTIONS = {
    "actions": {},
    "first_moto.*first_motor": {"e": replace(MOTOR, actuator_names=("first_moto",))},
    "'f'.*first_motor": {"e": MOTOR, "f": replace(MOTOR, actuator_names=("fir.*",))},
    "'e'.*scale": {"e": replace(MOTOR, scale=float("nan"))},
    "scale.*'e'.*second_motor": {"e": replace(MOTOR, scale={"first.*": 1.0})},
    "clip.*'e'.*inf": {"e": replace(MOTOR, clip=(math.inf, math.inf))},
    "clip.*'e'.*1e": {"e": replace(MOTOR, clip=(1e11, 2e11))},
    "'e'.*delay_max_lag": {"e": replace(MOTOR, delay_max_lag=10**12)},
    "'pose'.*first_motor": {"pose": mdp.JointPositionActionCfg()},
}


@pytest.mark.parametrize("named", BAD_ACTIONS)
def test_actions_that_do_not_fit_are_refused(tmp_path, named):
    with pytest.raises(ConfigError, match=named):
        twins(tmp_path, actions=BAD_ACTIONS[named])


def test_commands_lie_in_their_ranges_and_some_stand_still():
    env = go2(400, commands={"base_velocity": command(rel_standing_envs=0.25)})
    env.reset()
    drawn = env.command_manager.get_command("base_velocity")
    low, high = torch.tensor([[-0.6, -0.4, -0.8], [1.0, 0.4, 0.8]])
    assert ((low <= drawn) & (drawn <= high)).all()
    standing = (drawn == 0).all(1)
    assert 0.15 < standing.float().mean() < 0.35
    moving = drawn[~standing]
    assert (moving.amin(0) < low + 0.1 * (high - low)).all()
    assert (moving.amax(0) > high - 0.1 * (high - low)).all()


HEADING = {
    "heading_command": True,
    "heading_control_stiffness": 0.5,
    "ranges": ranges(heading=(-math.pi, math.pi)),
}


def test_a_heading_command_turns_the_robot_towards_its_direction():
    """The yaw rate is proportional to the angle left to turn, within its range."""
    turned = EventTermCfg(
        func=mdp.reset_root_state_uniform,
        mode="reset",
        params={"pose_range": {"yaw": (-3.1, 3.1)}, "velocity_range": {"yaw": (-2.0, 2.0)}},
    )
    facing = command(**HEADING, rel_standing_envs=0.0)
    env = go2(64, commands={"base_velocity": facing}, events={"turned": turned})
    root, term = env.reset(), env.command_manager.get_term("base_velocity")
    for _ in range(4):
        quat = env.backend.get_state_views()["qpos"][:, 3:7].numpy()
        w, x, y, z = quat.T
        yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        left = term._heading.numpy() - yaw
        left = np.arctan2(np.sin(left), np.cos(left))
        expected = np.clip(0.5 * left, -0.8, 0.8)
        np.testing.assert_allclose(term.command[:, 2], expected, atol=1e-5)
        np.testing.assert_allclose(root["critic"][:, 8], expected, atol=1e-5)
        _, root = env.step_and_maybe_reset(act(env, root))
    assert 0.1 < (np.abs(expected) < 0.8).mean() < 0.9


def test_heading_and_standing_shares_are_drawn_by_row():
    shares = {"rel_heading_envs": 0.5, "rel_standing_envs": 0.25}
    env = go2(400, commands={"base_velocity": command(**HEADING, **shares)})
    root, term = env.reset(), env.command_manager.get_term("base_velocity")
    before = term.command.clone()
    env.backend.get_state_views()["qpos"][:, 3:7] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    env.step(act(env, root))
    standing, turns = (before == 0.0).all(1), before[:, 2] != term.command[:, 2]

    assert 0.15 < standing.float().mean() < 0.35
    assert 0.25 < turns.float().mean() < 0.45
    assert not (standing & turns).any()


def test_a_reset_places_the_root_within_its_ranges():
    ranges = {"x": (1.0, 2.0), "z": (0.1, 0.2), "yaw": (-0.5, 0.5)}
    speeds = {"y": (-0.3, -0.1), "roll": (0.5, 0.7)}
    place = EventTermCfg(
        func=mdp.reset_root_state_uniform,
        mode="reset",
        params={"pose_range": ranges, "velocity_range": speeds},
    )
    env = go2(200, events={"place": place})
    env.reset()
    views = env.backend.get_state_views()
    qpos, qvel = views["qpos"], views["qvel"]
    for value, low, high in (
        (qpos[:, 0], 1.0, 2.0),
        (qpos[:, 2], 0.42, 0.52),
        (2 * torch.atan2(qpos[:, 6], qpos[:, 3]), -0.5, 0.5),
        (qvel[:, 1], -0.3, -0.1),
        (qvel[:, 3], 0.5, 0.7),
    ):
        margin = 0.05 * (high - low)
        assert low - 1e-6 <= value.min() < low + margin
        assert high - margin < value.max() <= high + 1e-6
    assert not qpos[:, [1, 4, 5]].any()
    assert not qvel[:, [0, 2, 4, 5]].any()


def push(env, env_ids, log):
    log.append((int(env.episode_length.max()), env_ids.tolist()))
    velocity = torch.ones(env_ids.shape[0], 3)
    env.scene["robot"].write_root_velocity(velocity, 2.0 * velocity)


def test_interval_event_runs_when_due_and_only_on_its_rows():
    log: list[tuple[int, list[int]]] = []
    every = EventTermCfg(
        func=push, mode="interval", interval_range_s=(0.05, 0.2), params={"log": log}
    )
    env = go2(4, events={"push": every}, terminations=ENDLESS)
    root = act(env, env.reset())
    log.clear()
    views = env.backend.get_state_views()
    for _ in range(30):
        before = len(log)
        data = env.step(root)["next"]
        hit = log[-1][1] if len(log) > before else []
        pushed = (views["qvel"][:, :6] == torch.tensor([1.0, 1, 1, 2, 2, 2])).all(1)
        assert pushed.nonzero().flatten().tolist() == hit
        # What the policy sees next is the state after the push.
        torch.testing.assert_close(data["critic"][:, :3], views["qvel"][:, 3:6].float() * 0.25)
    for row in range(4):
        steps = [step for step, rows in log if row in rows]
        gaps = [b - a for a, b in pairwise([0, *steps])]
        assert len(steps) >= 2
        assert all(2 <= gap <= 11 for gap in gaps), gaps


def test_the_packaged_push_adds_to_the_velocity():
    shove = EventTermCfg(
        func=mdp.push_by_setting_velocity,
        mode="interval",
        interval_range_s=(0.02, 0.02),
        params={"velocity_range": {"x": (3.0, 3.5), "yaw": (1.0, 1.5)}},
    )
    speeds = []
    for events in ({}, {"shove": shove}):
        env = go2(4, events=events)
        root = act(env, env.reset())
        env.backend.get_state_views()["qvel"][:, :6] = 0.5
        env.step(root)
        speeds.append(env.backend.get_state_views()["qvel"][:, :6].clone())
    added = speeds[1] - speeds[0]
    assert ((added[:, 0] >= 3.0) & (added[:, 0] <= 3.5)).all()
    assert ((added[:, 5] >= 1.0) & (added[:, 5] <= 1.5)).all()
    assert not added[:, 1:5].any()


def test_reset_of_some_joints_does_not_change_the_others(tmp_path):
    spans = {"first": (0.1, 0.2), "second": (-0.6, -0.5)}
    events = {
        name: EventTermCfg(
            func=mdp.reset_joints_by_offset,
            mode="reset",
            params={
                "position_range": span,
                "velocity_range": span,
                "asset_cfg": SceneEntityCfg("twins", joint_names=name),
            },
        )
        for name, span in spans.items()
    }
    env = twins(tmp_path, 50, events=events)
    env.reset()
    views = env.backend.get_state_views()
    for value in (views["qpos"] - env.backend.default_qpos, views["qvel"]):
        for column, (low, high) in zip(value.T, spans.values(), strict=True):
            assert low - 1e-6 <= column.min() < column.max() <= high + 1e-6


def test_a_reset_keeps_joints_within_their_limits(tmp_path):
    far = EventTermCfg(
        func=mdp.reset_joints_by_offset,
        mode="reset",
        params={"position_range": (5.0, 6.0), "velocity_range": (0.0, 0.0), **ON_TWINS},
    )
    env = twins(tmp_path, events={"far": far})
    env.reset()
    first, second = env.backend.get_state_views()["qpos"].T
    assert first.tolist() == [3.0] * 4
    assert (second > 5.0).all()  # has no limits


def shift(env, env_ids, log, asset_cfg):
    """Half a radian further than now."""
    joint_pos = env.scene[asset_cfg.name].data.joint_pos
    log.append(joint_pos.clone())
    env.scene[asset_cfg.name].write_joint_state(joint_pos + 0.5, torch.zeros_like(joint_pos))


def test_startup_event_runs_once_and_reads_and_writes_state(tmp_path):
    log: list[torch.Tensor] = []
    event = EventTermCfg(func=shift, mode="startup", params={"log": log, **ON_TWINS})
    env = twins(tmp_path, events={"shift": event})
    home = env.backend.default_qpos.float().expand(4, -1)
    assert torch.equal(log[0], home)
    torch.testing.assert_close(env.scene["twins"].data.joint_pos, home + 0.5)
    env.reset()
    assert len(log) == 1


SPAN = (0.0, 1.0)
BAD_EVENTS = {
    "twins.*fixed": (mdp.push_by_setting_velocity, {"velocity_range": {"x": SPAN}}),
    "'twins' is fixed": (
        mdp.reset_root_state_uniform,
        {"pose_range": {}, "velocity_range": {}},
    ),
    "yav.*yaw": (mdp.push_by_setting_velocity, {"velocity_range": {"yav": SPAN}}),
    "'x'": (mdp.push_by_setting_velocity, {"velocity_range": {"x": (1.0, 0.0)}}),
    "position_range": (
        mdp.reset_joints_by_offset,
        {"position_range": (0.1, -0.1), "velocity_range": SPAN},
    ),
}


@pytest.mark.parametrize("named", BAD_EVENTS)
def test_event_that_does_not_fit_is_refused(tmp_path, named):
    func, params = BAD_EVENTS[named]
    bad = EventTermCfg(func=func, mode="reset", params={**params, **ON_TWINS})
    with pytest.raises((ConfigError, CapabilityError), match=f"'bad'.*{named}"):
        twins(tmp_path, events={"bad": bad})


def test_entity_without_its_body_names_the_nearest(tmp_path):
    cfg = twins_cfg(tmp_path)
    scene = replace(cfg.scene, entities={"twins": EntityCfg(root_body="bass")})
    with pytest.raises(ConfigError, match=r"'twins'.*bass.*base"):
        ManagerBasedRlEnv(replace(cfg, scene=scene), num_envs=1)


HINGED = "<body name='{}'><joint name='{}' type='hinge'/><geom size='.1'/>{}</body>"
BALL = "<body name='b'><joint name='b' type='ball'/><geom size='.1'/></body>"
BOX = "<body name='b'><freejoint name='b'/><geom size='.1'/></body>"


@pytest.mark.parametrize(
    ("bodies", "found"),
    [
        (HINGED.format("a", "h", BALL), "'ball'"),
        # The columns of one arm's and the other arm's joints are not one block.
        (HINGED.format("a", "h", "") + BOX + HINGED.format("c", "i", ""), "'free'.*'i'"),
    ],
)
def test_entity_whose_joints_are_no_block_of_hinges_is_refused(tmp_path, bodies, found):
    path = tmp_path / "model.xml"
    path.write_text(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    entities = {"twins": EntityCfg(root_body="world")}
    scene = SceneCfg(model=str(path), entities=entities, keyframe=None)
    with pytest.raises(CapabilityError, match=rf"'twins'.*{found}"):
        ManagerBasedRlEnv(twins_cfg(tmp_path, scene=scene), num_envs=1)


def ball_scene(folder, quat="1 0 0 0"):
    """The twins, and a ball with this home orientation."""
    ball = '<body name="ball" pos="0 9 1"><freejoint/><geom size="0.1" mass="1"/></body>'
    path = folder / "ball.xml"
    xml = TWINS_XML.replace("</worldbody>", f"{ball}</worldbody>")
    path.write_text(xml.replace('qpos="0.3 0.2"', f'qpos="0.3 0.2 0 9 1 {quat}"'))
    scene = twins_cfg(folder).scene
    entities = {**scene.entities, "ball": EntityCfg(root_body="ball")}
    return replace(scene, model=str(path), entities=entities)


def test_a_turned_root_turns_about_the_axes_of_its_home_pose(tmp_path):
    """As in mjlab and Isaac Lab: home first, then the offset."""
    turned = {"pose_range": {"yaw": (0.5, 0.5)}, "velocity_range": {}}
    params = {**turned, "asset_cfg": SceneEntityCfg("ball")}
    event = EventTermCfg(func=mdp.reset_root_state_uniform, mode="reset", params=params)
    scene = ball_scene(tmp_path, quat="0.6 0.8 0 0")
    env = twins(tmp_path, scene=scene, events={"turned": event})
    env.reset()
    expected = np.zeros(4)
    yaw = np.array([math.cos(0.25), 0.0, 0.0, math.sin(0.25)])
    mujoco.mju_mulQuat(expected, np.array([0.6, 0.8, 0.0, 0.0]), yaw)
    quat = env.backend.get_state_views()["qpos"][0, 5:]
    np.testing.assert_allclose(quat, expected, atol=1e-6)


def test_joints_of_an_entity_without_joints_cannot_be_reset(tmp_path):
    params = {"position_range": SPAN, "velocity_range": SPAN, "asset_cfg": SceneEntityCfg("ball")}
    event = EventTermCfg(func=mdp.reset_joints_by_offset, mode="reset", params=params)
    with pytest.raises(CapabilityError, match=r"'bad'.*'ball'"):
        twins(tmp_path, scene=ball_scene(tmp_path), events={"bad": event})


def test_interval_longer_than_an_episode_is_warned_of(tmp_path):
    event = EventTermCfg(func=kick, mode="interval", interval_range_s=(0.2, 0.3))
    with pytest.warns(UserWarning, match="'late'.*interval_range_s"):
        twins(tmp_path, events={"late": event})


def kick(env, env_ids):
    pos = env.scene["twins"].data.joint_pos[env_ids]
    env.scene["twins"].write_joint_state(pos, torch.full_like(pos, 0.25))


def test_step_event_runs_in_every_step_for_all(tmp_path):
    env = twins(tmp_path, events={"kick": EventTermCfg(func=kick, mode="step")})
    root = env.reset()
    for _ in range(3):
        root = env.step(act(env, root))["next"]
        assert (root["obs"][:, 2:] == 0.25).all()


def test_reset_events_see_what_the_curriculum_changed(tmp_path):
    """As in mjlab and Isaac Lab: the curriculum runs first."""
    level = torch.zeros(())

    def harder(env, env_ids):
        level.add_(1.0)

    def place(env, env_ids):
        pos = level.expand(len(env_ids), 2)
        env.scene["twins"].write_joint_state(pos, torch.zeros_like(pos))

    env = twins(
        tmp_path,
        events={"place": EventTermCfg(func=place, mode="reset")},
        curriculum={"harder": CurriculumTermCfg(func=harder)},
    )
    level.zero_()
    env.reset()
    assert (env.backend.get_state_views()["qpos"] == 1.0).all()


def test_entity_without_joints_has_a_root_and_bodies(tmp_path):
    on_ball = {"asset_cfg": SceneEntityCfg("ball", body_names="ball")}
    thrown = {"pose_range": {"z": (1.0, 2.0)}, "velocity_range": {}, **on_ball}
    heavy = {"mass_distribution_params": (2.0, 3.0), "operation": "scale", **on_ball}
    events = {
        "thrown": EventTermCfg(func=mdp.reset_root_state_uniform, mode="reset", params=thrown),
        "heavy": EventTermCfg(func=mdp.randomize_rigid_body_mass, mode="reset", params=heavy),
    }
    scene = ball_scene(tmp_path)

    def with_observation(func):
        term = ObservationTermCfg(func=func, params=on_ball)
        groups = {"obs": ObservationGroupCfg(terms={"bad": term})}
        return twins(tmp_path, scene=scene, events=events, observations=groups)

    env = with_observation(mdp.base_pos_z)
    heights = env.reset()["obs"][:, 0]
    assert ((heights >= 2.0) & (heights <= 3.0)).all()
    assert (env.backend.expand("body_mass")[:, -1] >= 2.0).all()
    with pytest.raises(CapabilityError, match=r"'ball'.*joint_pos"):
        with_observation(mdp.joint_pos_rel)


def test_description_lists_every_table():
    speed = {"command_name": "base_velocity", "velocity_stages": []}
    env = go2(
        metrics={"torque": MetricsTermCfg(func=mdp.joint_torques_l2)},
        curriculum={"speed": CurriculumTermCfg(func=mdp.commands_vel, params=speed)},
    )
    text = " ".join(env.describe().split())
    for words in ("observations 'obs' [45]", "base_lin_vel", "actions [12]", "FL_hip +0.000",
                  "base_velocity (3,), measures error_vel_xy, error_vel_yaw",
                  "rewards (weight per second)", "track_lin_vel_xy +1.5", "time_out truncates",
                  "curriculum speed lin_vel_x_max 1,", "metrics torque"):  # fmt: skip
        assert words in text, words


BASE = SceneEntityCfg("robot", body_names="base")


def flying(event, **changes):
    """Go2s in the air, with an event; the last step's change of their mean velocity, by time."""
    drop = EventTermCfg(
        func=mdp.reset_root_state_uniform,
        mode="reset",
        params={"pose_range": {"z": (50.0, 50.0)}, "velocity_range": {}},
    )
    env = go2(3, events={"drop": drop, "wrench": event}, terminations={}, rewards={}, **changes)
    model, base = env.backend.mj_model, env.backend.mj_model.body("base").id

    def velocity():
        out = []
        for row in range(env.num_envs):
            data = env.backend._batch.get_data(row)
            mujoco.mj_forward(model, data)
            mujoco.mj_subtreeVel(model, data)
            out.append(data.subtree_linvel[base].copy())
        return torch.tensor(np.array(out))

    weight = torch.tensor([0.0, 0.0, -9.81])
    mass = float(model.body_mass.sum())

    def force_of_a_step(root):
        before = velocity()
        root = env.step(act(env, root))["next"]
        return (velocity() - before) / env.step_dt * mass - weight * mass, root

    return env, force_of_a_step


def wrench(mode, **params):
    spans = {"force_range": (20.0, 40.0), "torque_range": (0.0, 0.0), "asset_cfg": BASE}
    every = {"interval_range_s": (0.1, 0.1)} if mode == "interval" else {}
    return EventTermCfg(
        func=mdp.apply_external_force_torque, mode=mode, params={**spans, **params}, **every
    )


def test_a_wrench_of_a_reset_acts_until_the_episode_ends():
    env, force_of_a_step = flying(wrench("reset", force_range={"x": (20.0, 40.0)}))
    first, root = force_of_a_step(env.reset())
    assert ((first[:, 0] >= 20.0) & (first[:, 0] <= 40.0)).all()
    assert (first[:, 1:].abs() < 0.5).all()
    for _ in range(5):
        later, root = force_of_a_step(root)
        torch.testing.assert_close(later, first, atol=0.5, rtol=0.0)
    env.reset(env_ids=torch.tensor([1]))
    later, root = force_of_a_step(root)
    same = (later - first).abs().amax(1) < 0.5
    assert same.tolist() == [True, False, True]


def test_a_push_by_force_lasts_its_duration_and_comes_back():
    env, force_of_a_step = flying(wrench("interval", duration_s=(0.05, 0.05)))
    root, seen = env.reset(), []
    for _ in range(14):
        force, root = force_of_a_step(root)
        seen.append(force)
    acts = [bool((force > 15.0).all()) for force in seen]
    still = [bool((force.abs() < 0.5).all()) for force in seen]
    # An interval of 5 steps; an event acts from the step after it, for 2.5 steps rounded up.
    assert acts == [False] * 5 + [True] * 3 + [False] * 2 + [True] * 3 + [False]
    assert still == [not pushed for pushed in acts]
    torch.testing.assert_close(seen[5], seen[7], atol=0.5, rtol=0.0)
    assert not torch.allclose(seen[5], seen[10], atol=0.5)


def test_an_event_that_only_pushes_leaves_the_state_as_it_is():
    """Neither does one that writes nothing."""
    idle = EventTermCfg(func=lambda env, env_ids: None, mode="step")
    envs = [go2(2, events={}), go2(2, events={"wrench": wrench("step"), "idle": idle})]
    states = []
    for env in envs:
        env.reset()
        written = env.backend.set_state_tensor
        env.backend.set_state_tensor = lambda *args, **kwargs: pytest.fail("the state was written")
        env.step(act(env, env.fake_tensordict()))
        env.backend.set_state_tensor = written
        states.append(physics_state(env))
    assert torch.equal(*states)


@pytest.mark.parametrize(
    ("named", "params"),
    {
        "'w'": {"force_range": {"w": (0.0, 1.0)}},
        "range": {"torque_range": (1.0, 0.0)},
        "duration_s": {"duration_s": (0.0, 1.0)},
        "duration_s.*low <= high": {"duration_s": (2.0, 1.0)},
        "_ids": {"asset_cfg": SceneEntityCfg("robot", geom_ids=[1])},
        "trunk.*body": {"asset_cfg": SceneEntityCfg("robot", body_names="trunk")},
    }.items(),
)
def test_a_wrench_that_makes_no_sense_is_refused(named, params):
    with pytest.raises(ConfigError, match=rf"'wrench'.*{named}"):
        flying(wrench("reset", **params))


def test_a_wrench_at_startup_is_refused():
    with pytest.raises(ConfigError, match=r"'wrench'.*'startup'"):
        flying(wrench("startup"))
