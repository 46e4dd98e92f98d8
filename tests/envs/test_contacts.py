"""Contact sensors and the terms of feet, against MuJoCo's contacts and formulas in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from envs.tables import ON_TWINS, act, go2, twins

from unilab.backends import MujocoBackend
from unilab.envs import (
    ContactMatch,
    ContactSensorCfg,
    EntityCfg,
    ManagerBasedRlEnv,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
    scene_model,
)
from unilab.errors import CapabilityError, ConfigError
from unilab.tasks.velocity.g1 import g1_velocity_flat
from unilab.tasks.velocity.go2 import go2_velocity_flat

LEGS = ("FL", "FR", "RL", "RR")
FEET = ContactMatch(mode="geom", pattern=LEGS, entity="robot")
SENSORS = {
    "feet": ContactSensorCfg(primary=FEET, track_air_time=True, history_length=3),
    "pressed": ContactSensorCfg(
        primary=replace(FEET, pattern=".L"),
        secondary=ContactMatch(mode="geom", pattern="floor"),
        fields=("found", "force"),
        force_threshold=5.0,
        track_air_time=True,
        history_length=2,
    ),
    "calves": ContactSensorCfg(
        primary=ContactMatch(mode="subtree", pattern=".*_calf", entity="robot"),
        fields=("found", "force"),
        track_air_time=True,
    ),
}
COMMAND = {"command_name": "base_velocity"}
BODIES = SceneEntityCfg("robot", body_names=".*_foot")
THRESHOLD = 0.1


def term(func, **params):
    return RewardTermCfg(func=func, weight=1.0, params=params)


TIMES = {"threshold": THRESHOLD, **COMMAND}
ON_FEET = {"sensor_name": "feet", "asset_cfg": BODIES}
TERMS = {
    "air": term(mdp.feet_air_time, sensor_name="feet", **TIMES),
    "one_leg": term(mdp.feet_air_time_positive_biped, sensor_name="pressed", **TIMES),
    "slide": term(
        mdp.feet_slide,
        sensor_name="feet",
        velocity_sensor_names=tuple(f"{leg}_foot_vel" for leg in LEGS),
    ),
    "undesired": term(mdp.undesired_contacts, sensor_name="calves", threshold=30.0),
    "slip": term(mdp.feet_slip, command_threshold=0.6, **ON_FEET, **COMMAND),
    "clearance": term(
        mdp.feet_clearance, target_height=0.08, asset_cfg=BODIES, command_threshold=0.6, **COMMAND
    ),
    "swing": term(mdp.feet_swing_height, target_height=0.05, **ON_FEET),
    "landing": term(mdp.soft_landing, sensor_name="calves", command_threshold=0.6, **COMMAND),
}


def scene(**changes: Any) -> SceneCfg:
    return replace(go2_velocity_flat().scene, **{"sensors": SENSORS, **changes})


def mujoco_rows(env: ManagerBasedRlEnv) -> Iterator[mujoco.MjData]:
    """Each environment in MuJoCo's own data, with everything computed."""
    for row in range(env.num_envs):
        model, data = env.backend.mj_model, env.backend._batch.get_data(row)
        mujoco.mj_forward(model, data)
        yield data


def force_on(model: mujoco.MjModel, data: mujoco.MjData, geoms: set[int]) -> np.ndarray:
    """Net force of the contacts on some geoms, in the world frame."""
    total, one = np.zeros(3), np.zeros(6)
    for i, contact in enumerate(data.contact):
        for sign, geom in zip((-1.0, 1.0), contact.geom, strict=True):
            if geom in geoms:
                mujoco.mj_contactForce(model, data, i, one)
                total += sign * contact.frame.reshape(3, 3).T @ one[:3]
    return total


def calf(model: mujoco.MjModel, leg: str) -> set[int]:
    bodies = {model.body(f"{leg}_{part}").id for part in ("calf", "foot")}
    return {i for i in range(model.ngeom) if model.geom_bodyid[i] in bodies}


def test_a_sensor_reads_mujocos_contacts_and_their_net_forces() -> None:
    env = go2(3, scene=scene(), rewards=TERMS)
    model = env.backend.mj_model
    root = env.reset()
    for _ in range(12):
        root = env.step(act(env, root, 0.3))["next"]
    env.scene.stage_current(torch.arange(3))
    env.scene.staged.qvel[:, 0] += 0.1  # after a write, forces are those of the state
    env.scene.staged.validate("test")
    env.scene.commit_staged()
    found, force = env.scene.sensors["feet"].found, env.scene.sensors["calves"].force
    assert env.scene.sensors["feet"].parts == LEGS
    assert env.scene.sensors["calves"].parts == tuple(f"{leg}_calf" for leg in LEGS)
    for row, data in enumerate(mujoco_rows(env)):
        feet = [model.geom(leg).id for leg in LEGS]
        counts = [(data.contact.geom == foot).any(1).sum() for foot in feet]
        assert found[row].tolist() == counts
        wanted = [force_on(model, data, calf(model, leg)) for leg in LEGS]
        np.testing.assert_allclose(force[row], wanted, rtol=1e-4, atol=1e-3)
    assert (force[..., 2].sum(1) > 50.0).all()  # the ground pushes the robot up


def test_times_follow_a_robot_that_is_lifted_and_put_down() -> None:
    env = go2(2, scene=scene(), rewards=TERMS, terminations={})
    root, dt, home = env.reset(), env.step_dt, env.backend.default_qpos
    views, feet = env.backend.get_state_views(), env.scene.sensors["feet"]
    # Of row 0, by steps; row 1 stands all the time.
    flies = (False, True, True, True, False, False, True, False)
    seen = []
    for lifted in flies:
        views["qpos"][:], views["qvel"][:] = home, 0.0
        views["qpos"][:, 2] = torch.tensor([1.0 if lifted else 0.28, 0.28])
        root = env.step(act(env, root))["next"]
        names = ("current_air_time", "last_air_time", "current_contact_time", "last_contact_time")
        values = torch.stack([getattr(feet, name) for name in names])
        assert torch.equal(values, values[..., :1].expand_as(values)), "all feet do the same"
        flags = [bool(flag[0].all()) for flag in (feet.first_contact, feet.first_air)]
        seen.append([*(values[:, 0, 0] / dt).round().int().tolist(), *flags])
        assert not feet.current_air_time[1].any()
        assert not feet.first_contact[1].any(), "a robot that begins on the ground never lands"
    assert seen == [  # a time counts the step that ends it
        [0, 0, 1, 0, False, False],
        [1, 0, 0, 2, False, True],
        [2, 0, 0, 2, False, False],
        [3, 0, 0, 2, False, False],
        [0, 4, 1, 2, True, False],
        [0, 4, 2, 2, False, False],
        [1, 4, 0, 3, False, True],
        [0, 2, 1, 3, True, False],
    ]
    assert feet.found_history[0, :, :].bool().tolist() == [[True, False, True]] * 4
    env.reset(env_ids=torch.tensor([0]))
    assert not feet.last_air_time[0].any()
    assert not feet.found_history[0].any()
    assert feet.current_contact_time[1].tolist() == pytest.approx([len(flies) * dt] * 4)


def test_terms_agree_with_their_formulas_over_resets() -> None:
    env = go2(6, scene=scene(), rewards=TERMS, episode_length_s=0.3, seed=1)
    model, root = env.backend.mj_model, env.reset()
    pressed, calves = env.scene.sensors["pressed"], env.scene.sensors["calves"]
    air, single_air, ground, calf_air = (np.zeros((6, n)) for n in (4, 2, 2, 4))
    highest = np.zeros((6, 4))
    ids = [model.body(f"{leg}_foot").id for leg in LEGS]
    draw, seen = torch.Generator().manual_seed(3), dict.fromkeys(TERMS, 0)
    for _ in range(40):
        sums = env.reward_manager.episode_sums.clone()
        command = env.command_manager.get_command("base_velocity").numpy().copy()
        data = env.step(root.set("action", torch.rand(6, 12, generator=draw) * 2 - 1))
        got = ((env.reward_manager.episode_sums - sums) / env.step_dt).double().numpy()

        velocity, position, found = np.zeros((6, 4, 6)), np.zeros((6, 4, 3)), np.zeros((6, 4))
        for row, now in enumerate(mujoco_rows(env)):
            for foot, body in enumerate(ids):
                spatial = velocity[row, foot]
                mujoco.mj_objectVelocity(model, now, mujoco.mjtObj.mjOBJ_XBODY, body, spatial, 0)
                position[row, foot] = now.xpos[body]
                geom = model.geom(LEGS[foot]).id
                found[row, foot] = (now.contact.geom == geom).any(1).sum()
        found, speed = found > 0, np.linalg.norm(velocity[..., 3:5], axis=-1)
        moves = np.linalg.norm(command[:, :2], axis=1) > 0.1
        fast = np.linalg.norm(command[:, :2], axis=1) + np.abs(command[:, 2]) > 0.6
        force, on_calf = pressed.force.norm(dim=2).numpy(), calves.force.norm(dim=2).numpy()
        landing, stands = found & (air > 0), force > 5.0
        calf_stands = calves.found.numpy() > 0
        calf_landing = calf_stands & (calf_air > 0)
        flown = air + env.step_dt
        air, single_air, calf_air = (
            np.where(contact, 0.0, before + env.step_dt)
            for contact, before in ((found, air), (stands, single_air), (calf_stands, calf_air))
        )
        ground = np.where(stands, ground + env.step_dt, 0.0)
        in_phase = np.where(stands, ground, single_air).min(axis=1)
        wanted = {
            "air": ((flown - THRESHOLD) * landing).sum(axis=1) * moves,
            "one_leg": np.minimum(in_phase, THRESHOLD) * (stands.sum(axis=1) == 1) * moves,
            "slide": (speed * found).sum(axis=1),
            "undesired": (on_calf > 30.0).sum(axis=1),
            "slip": (speed**2 * found).sum(axis=1) * fast,
            "clearance": (np.abs(position[..., 2] - 0.08) * speed).sum(axis=1) * fast,
            "swing": ((highest / 0.05 - 1.0) ** 2 * landing).sum(axis=1),
            "landing": (on_calf * calf_landing).sum(axis=1) * fast,
        }
        highest = np.where(found, 0.0, np.maximum(highest, position[..., 2]))
        for i, name in enumerate(env.reward_manager.term_names):
            np.testing.assert_allclose(got[i], wanted[name], rtol=2e-4, atol=1e-4, err_msg=name)
            seen[name] += int((wanted[name] != 0).sum())
        root = env.maybe_reset(root.update(data["next"]))
        ended = data["next", "done"][:, 0].numpy()
        for kept in (air, single_air, ground, calf_air, highest):
            kept[ended] = 0.0
    assert min(seen.values()) > 5, seen


def test_a_forbidden_contact_ends_the_episode() -> None:
    touch = TerminationTermCfg(
        func=mdp.illegal_contact, params={"sensor_name": "calves", "threshold": 0.5}
    )
    env = go2(3, scene=scene(), rewards=TERMS, terminations={"touch": touch})
    root = act(env, env.reset())
    for _ in range(20):
        env.backend.get_state_views()["qpos"][1, 2] = 1.0  # the second one flies
        data = env.step(root)["next"]

    assert data["terminated"][:, 0].tolist() == [True, False, True]


@pytest.mark.parametrize("task", [go2_velocity_flat, g1_velocity_flat])
def test_a_robot_collides_with_itself_if_asked(task) -> None:
    """The packaged models leave self-collision out; nothing touches in the home pose."""
    cfg = task()
    ((name, entity),) = cfg.scene.entities.items()
    tree = ContactMatch(mode="subtree", pattern=entity.root_body, entity=name)
    env, plain = (
        ManagerBasedRlEnv(
            replace(
                cfg,
                scene=replace(
                    cfg.scene,
                    entities={name: EntityCfg(root_body=entity.root_body, self_collisions=on)},
                    sensors={"self": ContactSensorCfg(primary=tree, secondary=tree)},
                ),
                rewards={"self": term(mdp.self_collision_cost, sensor_name="self")},
                events={},
                terminations={},
                num_threads=1,
            ),
            num_envs=2,
            seed=0,
        )
        for on in (True, False)
    )
    hips = [
        j.qpos.start for j in env.backend.joints if j.name.endswith(("hip_joint", "hip_roll_joint"))
    ]
    counts = []
    for each in (env, plain):
        root, views = each.reset(), each.backend.get_state_views()
        views["qpos"][:, 2] = 2.0
        views["qpos"][1, hips] += torch.tensor([0.9 if i % 2 else -0.9 for i in range(len(hips))])
        reward = each.step(act(each, root))["next", "reward"][:, 0] / each.step_dt
        counts.append(reward.round().int().tolist())
    floor = env.backend.mj_model.geom("floor").id
    crossed = [int((data.contact.geom != floor).all(1).sum()) for data in mujoco_rows(env)]
    assert counts == [crossed, [0, 0]]
    assert crossed[0] == 0 < crossed[1]


def sensors(**changes: Any) -> dict[str, Any]:
    return {"scene": scene(sensors={"feet": replace(SENSORS["feet"], **changes)})}


def reading(func: Any, **params: Any) -> dict[str, Any]:
    return {"scene": scene(), "rewards": {"bad": term(func, **params)}}


BAD = {
    r"'feet'.*'foot'.*geom": lambda: sensors(primary=replace(FEET, pattern="foot")),
    r"'robt'.*robot": lambda: sensors(primary=replace(FEET, entity="robt")),
    r"secondary.*one part.*FL": lambda: sensors(secondary=FEET),
    r"'spine'.*contype": lambda: sensors(primary=replace(FEET, pattern="spine")),
    r"history_length.*-1": lambda: sensors(history_length=-1),
    r"fields": lambda: sensors(fields=("force",)),
    r"fields.*torque": lambda: sensors(fields=("found", "torque")),
    r"force_threshold": lambda: sensors(force_threshold=1.0),
    r"mode": lambda: sensors(primary=replace(FEET, mode="site")),
    r"'bad'.*'foot'.*feet": lambda: reading(mdp.foot_contact, sensor_name="foot"),
    r"'bad'.*'feet'.*force": lambda: reading(mdp.soft_landing, sensor_name="feet"),
    r"'bad'.*'plain'.*track_air_time": lambda: {
        **reading(mdp.foot_air_time, sensor_name="plain"),
        "scene": scene(sensors={"plain": ContactSensorCfg(primary=FEET)}),
    },
    r"'bad'.*body_names": lambda: reading(
        mdp.feet_slip, sensor_name="feet", asset_cfg=SceneEntityCfg("robot")
    ),
    r"'a/b'.*rename": lambda: {
        "scene": scene(sensors=dict.fromkeys(("a", "a/b"), SENSORS["feet"]))
    },
    r"'bad'.*velocity_sensor_names.*got 1": lambda: reading(
        mdp.feet_slide, sensor_name="feet", velocity_sensor_names=("FL_foot_vel",)
    ),
    r"'bad'.*velocity_sensor_names.*got 2": lambda: reading(
        mdp.feet_slide,
        sensor_name="feet",
        velocity_sensor_names=("FL_foot_vel", "FR_foot_vel"),
    ),
    r"'bad'.*one body": lambda: reading(mdp.upright, std=1.0, asset_cfg=BODIES),
    r"'bad'.*_foto.*_foot": lambda: reading(
        mdp.foot_height, asset_cfg=SceneEntityCfg("robot", body_names=".*_foto")
    ),
}


@pytest.mark.parametrize("named", BAD)
def test_sensors_and_terms_that_do_not_fit_are_refused(named) -> None:
    with pytest.raises(ConfigError, match=named):
        go2(2, **BAD[named]())


def test_a_body_without_geoms_has_no_contacts(tmp_path) -> None:
    file = tmp_path / "bare.xml"
    inertial = '<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>'
    body = f'<body name="bare"><freejoint/>{inertial}</body>'
    file.write_text(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    bare = ContactSensorCfg(primary=ContactMatch(mode="body", pattern="bare"))
    with pytest.raises(ConfigError, match=r"'touch'.*'bare'.*geom"):
        go2(2, scene=SceneCfg(model=file, keyframe=None, sensors={"touch": bare}))


def test_joint_accelerations_are_those_of_the_control_rate(tmp_path) -> None:
    second = SceneEntityCfg("twins", joint_names=("second",))
    terms = {
        "all": term(mdp.joint_acc_l2, **ON_TWINS),
        "one": term(mdp.joint_acc_l2, asset_cfg=second),
    }
    env = twins(tmp_path, rewards=terms)
    root, last = env.reset(), None
    for _ in range(8):  # an episode ends in the fifth step
        before = env.reward_manager.episode_sums.clone()
        first = env.episode_length == 0
        data = env.step(act(env, root, 0.4))
        got = (env.reward_manager.episode_sums - before) / env.step_dt
        rates = env.backend.get_state_views()["qvel"].clone()
        if last is None or first.any():
            assert first.all()
            assert not got.any()
        else:
            squares = ((rates - last) / env.step_dt).square()
            torch.testing.assert_close(got[0].double(), squares.sum(1), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(got[1].double(), squares[:, 1], rtol=1e-4, atol=1e-5)
        last = rates
        root = env.maybe_reset(root.update(data["next"]))


@pytest.mark.parametrize("names", [(".*_foot", "base"), (".*",), ("RL_thigh",)])
def test_bodies_are_where_mujoco_has_them_and_move_as_there(names) -> None:
    chosen = SceneEntityCfg("robot", body_names=names)
    seen = {}

    def read(env, asset_cfg):
        data = env.scene[asset_cfg.name].data
        for field in ("body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w"):
            seen[field] = getattr(data, field)(asset_cfg)
        return seen["body_pos_w"].flatten(1)

    groups = go2_velocity_flat().observations
    bodies = ObservationTermCfg(func=read, params={"asset_cfg": chosen})
    obs = replace(groups["obs"], terms={**groups["obs"].terms, "bodies": bodies})
    env = go2(3, observations={"obs": obs})
    model, root = env.backend.mj_model, env.reset()
    for _ in range(5):
        root = env.step(env.rand_action(root))["next"]
    ids = env.scene.resolve(chosen).body_ids.tolist()
    for row, data in enumerate(mujoco_rows(env)):
        spatial = np.zeros((len(ids), 6))
        for out, body in zip(spatial, ids, strict=True):
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, out, 0)
        wanted = {
            "body_pos_w": data.xpos[ids],
            "body_quat_w": data.xquat[ids],
            "body_lin_vel_w": spatial[:, 3:],
            "body_ang_vel_w": spatial[:, :3],
        }
        for field, value in wanted.items():
            np.testing.assert_allclose(seen[field][row], value, atol=2e-5, err_msg=field)


@pytest.mark.parametrize(
    "made",
    [
        {"primary": replace(FEET, pattern="FL"), "fields": ("found", "force")},
        {"primary": FEET, "fields": ("found",)},
        None,
    ],
)
def test_backend_with_other_contact_sensors_is_refused(made: dict[str, Any] | None) -> None:
    cfg = replace(go2_velocity_flat(), randomize=False, num_threads=1)
    wanted = ContactSensorCfg(primary=FEET, fields=("found", "force"))
    sensors = {} if made is None else {"extra": ContactSensorCfg(**made)}
    scene = replace(cfg.scene, sensors={**cfg.scene.sensors, **sensors})
    backend = MujocoBackend(scene_model(scene), 1, num_threads=1, keyframe=scene.keyframe)
    scene = replace(scene, sensors={**cfg.scene.sensors, "extra": wanted})

    with pytest.raises(CapabilityError, match="'extra'"):
        ManagerBasedRlEnv(replace(cfg, scene=scene), num_envs=1, backend=backend)


def test_contact_history_without_a_sane_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="history_length"):
        ContactSensorCfg(primary=FEET, history_length=10**13)
