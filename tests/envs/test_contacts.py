"""Contact terms against formulas written in NumPy from what the sensors read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from envs.tables import ON_TWINS, act, go2, twins

from unilab.envs import (
    ManagerBasedRlEnv,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
)
from unilab.tasks.robots import model_path
from unilab.tasks.velocity.go2 import go2_velocity_flat

LEGS = ("FL", "FR", "RL", "RR")
FOUND = tuple(f"{leg}_found" for leg in LEGS)
FORCE = tuple(f"{leg}_force" for leg in LEGS)
SPEED = tuple(f"{leg}_foot_vel" for leg in LEGS)
COMMAND = {"command_name": "base_velocity"}
THRESHOLD = 0.1


def term(func, **params):
    return RewardTermCfg(func=func, weight=1.0, params=params)


TIMES = {"threshold": THRESHOLD, **COMMAND}
TERMS = {
    "air": term(mdp.feet_air_time, sensor_names=FOUND, **TIMES),
    "one_leg": term(
        mdp.feet_air_time_positive_biped, sensor_names=FORCE[:2], contact_threshold=5.0, **TIMES
    ),
    "slide": term(mdp.feet_slide, sensor_names=FOUND, velocity_sensor_names=SPEED),
    "undesired": term(mdp.undesired_contacts, sensor_names=FORCE, threshold=30.0),
}


def scene(folder: Path) -> SceneCfg:
    """The Go2 with a contact's number and force at each foot."""
    shutil.copy(model_path("go2"), folder)
    sensors = "".join(
        f'<contact name="{leg}_found" geom1="{leg}" num="1" data="found"/>'
        f'<contact name="{leg}_force" geom1="{leg}" num="1" data="force" reduce="netforce"/>'
        for leg in LEGS
    )
    file = folder / "go2_contacts.xml"
    file.write_text(f'<mujoco><include file="go2.xml"/><sensor>{sensors}</sensor></mujoco>')
    return SceneCfg(model=str(file), entities=go2_velocity_flat().scene.entities)


def read(env: ManagerBasedRlEnv, names: tuple[str, ...]) -> np.ndarray:
    """``[num_envs, sensors, width]`` in float64."""
    return np.stack([env.backend.get_sensor_view(name).numpy() for name in names], axis=1)


def times(contact: np.ndarray, dt: float, before: np.ndarray) -> np.ndarray:
    return np.where(contact, 0.0, before + dt)


def test_terms_agree_with_their_formulas_over_resets(tmp_path: Path) -> None:
    env = go2(6, scene=scene(tmp_path), rewards=TERMS, episode_length_s=0.3, seed=1)
    root = env.reset()
    air, single_air, ground = np.zeros((6, 4)), np.zeros((6, 2)), np.zeros((6, 2))
    draw, seen = torch.Generator().manual_seed(3), dict.fromkeys(TERMS, 0)
    for _ in range(40):
        sums = env.reward_manager.episode_sums.clone()
        action = torch.rand(6, 12, generator=draw) * 2 - 1
        command = env.command_manager.get_command("base_velocity").numpy().copy()
        root.set("action", action)
        data = env.step(root)
        got = ((env.reward_manager.episode_sums - sums) / env.step_dt).double().numpy()

        moves = np.linalg.norm(command[:, :2], axis=1) > 0.1
        found, force = read(env, FOUND)[..., 0] > 0, np.linalg.norm(read(env, FORCE), axis=-1)
        landing = found & (air > 0)
        stands = force[:, :2] > 5.0
        flown, air = air + env.step_dt, times(found, env.step_dt, air)
        single_air = times(stands, env.step_dt, single_air)
        ground = times(~stands, env.step_dt, ground)
        in_phase = np.where(stands, ground, single_air).min(axis=1)
        speed = np.linalg.norm(read(env, SPEED)[..., :2], axis=-1)
        wanted = {
            "air": ((flown - THRESHOLD) * landing).sum(axis=1) * moves,
            "one_leg": np.minimum(in_phase, THRESHOLD) * (stands.sum(axis=1) == 1) * moves,
            "slide": (speed * found).sum(axis=1),
            "undesired": (force > 30.0).sum(axis=1),
        }
        for i, name in enumerate(env.reward_manager.term_names):
            np.testing.assert_allclose(got[i], wanted[name], rtol=1e-4, atol=2e-5, err_msg=name)
            seen[name] += int((wanted[name] != 0).sum())
        root = env.maybe_reset(root.update(data["next"]))
        ended = data["next", "done"][:, 0].numpy()
        for time in (air, single_air, ground):
            time[ended] = 0.0
    assert min(seen.values()) > 10, seen


def test_a_forbidden_contact_ends_the_episode(tmp_path: Path) -> None:
    touch = TerminationTermCfg(
        func=mdp.illegal_contact, params={"sensor_names": FOUND, "threshold": 0.5}
    )
    env = go2(3, scene=scene(tmp_path), rewards=TERMS, terminations={"touch": touch})
    root = act(env, env.reset())
    for _ in range(20):
        env.backend.get_state_views()["qpos"][1, 2] = 1.0  # the second one flies
        data = env.step(root)["next"]

    assert data["terminated"][:, 0].tolist() == [True, False, True]


def test_joint_accelerations_are_those_of_the_control_rate(tmp_path: Path) -> None:
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


def test_contact_forces_of_the_porting_page_are_the_forces_on_the_feet(tmp_path):
    """As Isaac Lab's ``net_forces_w``: the ground pushes a standing robot up."""
    shutil.copy(model_path("go2"), tmp_path)
    shutil.copy(Path(__file__).parents[2] / "docs/guide/porting/go2_contacts.xml", tmp_path)
    model = str(tmp_path / "go2_contacts.xml")
    entities = go2_velocity_flat().scene.entities
    sensors = tuple(f"{leg}_contact" for leg in LEGS)
    reward = term(mdp.undesired_contacts, sensor_names=sensors, threshold=1.0)
    env = go2(1, scene=SceneCfg(model=model, entities=entities), rewards={"contacts": reward})
    root = env.reset()
    for _ in range(25):
        root = env.step(act(env, root))["next"]
    upward = read(env, sensors)[0, :, 2]
    weight = 9.81 * env.backend.mj_model.body_mass.sum()
    assert (upward > 0.0).all()
    np.testing.assert_allclose(upward.sum(), weight, rtol=0.2)
