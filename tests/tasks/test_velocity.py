"""Go2 and G1 following a velocity: what each network sees, what pays, what ends an episode."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mujoco
import pytest
import torch
from tensordict import TensorDictBase

from unilab import registry
from unilab.backends import MujocoBackend
from unilab.envs import ManagerBasedRlEnv, ManagerBasedRlEnvCfg, mdp

ROBOTS = ("go2", "g1")
JOINTS = {"go2": 12, "g1": 29}
HOME_HEIGHT = {"go2": 0.32, "g1": 0.76}
LIMITS = {"go2": (0.15, 60.0), "g1": (0.45, 50.0)}
SENSED = ("base_ang_vel", "projected_gravity", "command", "joint_pos", "joint_vel", "actions")
# Half widths of the uniform sensor noise in the sensors' units, and the terms' scales.
NOISE = {
    "base_ang_vel": 0.2 * 0.25,
    "projected_gravity": 0.05,
    "command": 0.0,
    "joint_pos": 0.01,
    "joint_vel": 1.5 * 0.05,
    "actions": 0.0,
}

both = pytest.mark.parametrize("robot", ROBOTS)


def _cfg(robot: str) -> ManagerBasedRlEnvCfg:
    return registry.config(f"{robot}_velocity_flat")


def _env(cfg: ManagerBasedRlEnvCfg, num_envs: int = 8) -> ManagerBasedRlEnv:
    return ManagerBasedRlEnv(replace(cfg, num_threads=1), num_envs=num_envs, seed=0)


def _starting(robot: str, **offset: float) -> ManagerBasedRlEnvCfg:
    """The task with every episode at its home pose moved by ``offset``, at rest."""
    cfg = _cfg(robot)
    pose = {axis: (value, value) for axis, value in offset.items()}
    base, joints = cfg.events["reset_base"], cfg.events["reset_joints"]
    still: dict[str, Any] = {"position_range": (0.0, 0.0), "velocity_range": (0.0, 0.0)}
    events = {
        "reset_base": replace(base, params={"pose_range": pose, "velocity_range": {}}),
        "reset_joints": replace(joints, params=still),
    }
    return replace(cfg, events=events)


def _commanding(cfg: ManagerBasedRlEnvCfg, x: float) -> ManagerBasedRlEnvCfg:
    command = replace(
        cfg.commands["base_velocity"],
        ranges=mdp.UniformVelocityCommandCfg.Ranges(
            lin_vel_x=(x, x), lin_vel_y=(0.0, 0.0), ang_vel_z=(0.0, 0.0)
        ),
        rel_standing_envs=0.0,
    )
    return replace(cfg, commands={"base_velocity": command})


def _still(env: ManagerBasedRlEnv, steps: int) -> TensorDictBase:
    zero = torch.zeros(env.num_envs, env.action_manager.action_dim)
    return env.rollout(steps, lambda td: td.set("action", zero), break_when_any_done=False)


def _columns(env: ManagerBasedRlEnv, group: str) -> dict[str, slice]:
    out, at = {}, 0
    for term, width in env.observation_manager.term_widths[group].items():
        out[term] = slice(at, at + width)
        at += width
    return out


# Observations ---------------------------------------------------------------------------------


@both
def test_obs_holds_only_what_the_robot_senses_and_critic_adds_to_it(robot: str) -> None:
    env = _env(_cfg(robot))
    widths = env.observation_manager.term_widths
    env.close()

    assert tuple(widths["obs"]) == SENSED
    extra = {"base_lin_vel", "base_height"} | ({"foot_heights"} if robot == "g1" else set())
    assert set(widths["critic"]) == {*SENSED, *extra}


@both
def test_obs_does_not_change_with_height_and_linear_velocity_and_critic_does(robot: str) -> None:
    cfg = _commanding(_starting(robot), 0.0)
    quiet = replace(cfg.observations["obs"], enable_corruption=False)
    base = cfg.events["reset_base"]
    params = {
        "pose_range": dict.fromkeys(("x", "y", "z"), (0.0, 0.5)),
        "velocity_range": dict.fromkeys(("x", "y", "z"), (-1.0, 1.0)),
    }
    cfg = replace(
        cfg,
        observations={**cfg.observations, "obs": quiet},
        events={**cfg.events, "reset_base": replace(base, params=params)},
    )
    env = _env(cfg)
    data = env.reset()
    columns = _columns(env, "critic")
    env.close()

    torch.testing.assert_close(data["obs"], data["obs"][:1].expand(8, -1), rtol=0, atol=1e-6)
    for term in ("base_lin_vel", "base_height"):
        assert data["critic"][:, columns[term]].std(0).min() > 0.05


@both
def test_noise_is_in_obs_only_on_its_sensors_and_within_its_bounds(robot: str) -> None:
    env = _env(_cfg(robot))
    data = env.rollout(50, break_when_any_done=False)
    columns = _columns(env, "obs")
    env.close()
    noise = data["obs"] - data["critic"][..., : data["obs"].shape[-1]]

    for term, half in NOISE.items():
        error = noise[..., columns[term]]
        assert error.abs().max() <= half * 1.001 + 1e-6, term
        assert half == 0.0 or error.abs().max() > 0.9 * half, term
        assert half == 0.0 or error.mean().abs() < 0.1 * half, term


@both
def test_critic_sees_the_physics_without_noise(robot: str) -> None:
    env = _env(_cfg(robot))
    data = env.reset()
    state = {k: v.float() for k, v in env.backend.get_state_views().items()}
    columns = _columns(env, "critic")
    joints = state["qpos"][:, 7:] - env.backend.default_qpos[7:].float()

    torch.testing.assert_close(data["critic"][:, columns["joint_pos"]], joints)
    scale = {"go2": 3.0, "g1": 1.0}[robot]
    torch.testing.assert_close(
        data["critic"][:, columns["base_height"]], scale * state["qpos"][:, 2:3]
    )
    env.close()


@both
def test_upright_gravity_is_seen_straight_down(robot: str) -> None:
    env = _env(_starting(robot))
    down = env.reset()["critic"][:, _columns(env, "critic")["projected_gravity"]]
    env.close()

    torch.testing.assert_close(down, torch.tensor([[0.0, 0.0, -1.0]]).expand(8, 3))


def test_g1_critic_sees_its_soles_near_the_floor_at_home() -> None:
    env = _env(_starting("g1"))
    heights = env.reset()["critic"][:, _columns(env, "critic")["foot_heights"]] / 5.0
    env.close()

    assert heights.min() > 0.0
    assert heights.max() < 0.05


@both
def test_commands_lie_in_the_tasks_ranges_and_use_them(robot: str) -> None:
    cfg = _cfg(robot)
    env = _env(cfg, num_envs=512)
    given = env.reset()["critic"][:, _columns(env, "critic")["command"]]
    env.close()
    command = given / torch.tensor([2.0, 2.0, 1.0])
    term = cfg.commands["base_velocity"].ranges

    for column, (low, high) in zip(
        command.T, (term.lin_vel_x, term.lin_vel_y, term.ang_vel_z), strict=True
    ):
        assert low - 1e-6 <= column.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < column.max() <= high + 1e-6
    assert 0.01 < float((command == 0).all(1).float().mean()) < 0.12


# Actions --------------------------------------------------------------------------------------


@both
def test_action_zero_asks_for_the_home_pose(robot: str) -> None:
    env = _env(_starting(robot))
    _still(env, 1)
    ctrl = env.backend.get_state_views()["ctrl"]

    torch.testing.assert_close(ctrl, env.backend.default_qpos[7:].expand(8, -1), rtol=0, atol=1e-6)
    env.close()


def test_go2_with_action_zero_stands_through_five_seconds() -> None:
    env = _env(_starting("go2"))
    data = _still(env, 250)
    env.close()

    assert not data["next", "done"].any()


def test_g1_with_action_zero_stays_finite() -> None:
    env = _env(_starting("g1"))
    data = _still(env, 100)
    env.close()

    assert bool(data["next", "critic"].isfinite().all())
    assert data["next", "critic"].abs().max() < 50.0


# Rewards --------------------------------------------------------------------------------------


@both
def test_tracking_pays_and_everything_else_but_staying_alive_costs(robot: str) -> None:
    env = _env(_cfg(robot))
    env.rollout(10, break_when_any_done=False)
    sums = dict(
        zip(env.reward_manager.term_names, env.reward_manager.episode_sums.mean(1), strict=True)
    )
    env.close()
    pays = {"track_lin_vel_xy", "track_ang_vel_z", "alive"} & set(sums)

    assert all(sums[name] > 0 for name in pays), sums
    assert all(sums[name] < 0 for name in set(sums) - pays), sums


@both
def test_a_robot_that_obeys_is_paid_more_than_one_that_does_not(robot: str) -> None:
    # Half a second, in which even G1 keeps its feet.
    paid = {}
    for x in (0.0, 0.8):
        env = _env(_commanding(_starting(robot), x))
        _still(env, 25)
        names = env.reward_manager.term_names
        paid[x] = env.reward_manager.episode_sums[names.index("track_lin_vel_xy")] / (25 * 0.02)
        env.close()

    assert paid[0.0].min() > 0.75 * 1.5
    assert paid[0.8].max() < 0.5 * 1.5


@both
def test_reward_per_second_never_exceeds_what_perfect_tracking_pays(robot: str) -> None:
    cfg = _cfg(robot)
    most = sum(term.weight for term in cfg.rewards.values() if term.weight > 0)
    env = _env(cfg)
    reward = env.rollout(50, break_when_any_done=False)["next", "reward"] / env.step_dt
    env.close()

    assert reward.max() <= most
    assert most == {"go2": 2.25, "g1": 2.75}[robot]


# Terminations ---------------------------------------------------------------------------------


def _causes(cfg: ManagerBasedRlEnvCfg) -> set[str]:
    """Terms that end every episode at its first step, on a floor that pushes nobody out of it."""
    model = mujoco.MjModel.from_xml_path(cfg.scene.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    backend = MujocoBackend(model, 8, num_threads=1, keyframe="home")
    env = ManagerBasedRlEnv(cfg, num_envs=8, seed=0, backend=backend)
    data = _still(env, 1)
    names = env.termination_manager.term_names
    fired = {n for n, d in zip(names, env.termination_manager.term_dones, strict=True) if d.all()}
    assert bool(data["next", "terminated"].all()) == bool(fired - {"time_out"})
    env.close()
    return fired


@both
def test_a_robot_at_home_goes_on(robot: str) -> None:
    assert _causes(_starting(robot)) == set()


@both
@pytest.mark.parametrize(("margin", "ends"), [(-0.02, True), (0.02, False)])
def test_a_low_root_terminates(robot: str, margin: float, ends: bool) -> None:
    lowest, _ = LIMITS[robot]
    fired = _causes(_starting(robot, z=lowest + margin - HOME_HEIGHT[robot]))
    assert fired == ({"too_low"} if ends else set())


@both
@pytest.mark.parametrize("axis", ["roll", "pitch"])
@pytest.mark.parametrize(("margin", "ends"), [(3.0, True), (-3.0, False)])
def test_a_tilted_root_terminates(robot: str, axis: str, margin: float, ends: bool) -> None:
    _, angle = LIMITS[robot]
    tilt = math.radians(angle + margin)
    # Half a metre up, so that the height does not count.
    fired = _causes(_starting(robot, z=0.5, **{axis: tilt}))
    assert fired == ({"tilted"} if ends else set())


@both
def test_heading_and_place_end_nothing(robot: str) -> None:
    assert _causes(_starting(robot, x=100.0, y=-100.0, yaw=3.0)) == set()


def test_g1_that_topples_is_terminated_not_truncated() -> None:
    env = _env(_starting("g1"))
    data = _still(env, 120)
    env.close()

    assert data["next", "terminated"].any(1).all()
    assert not data["next", "truncated"].any()


# Resets ---------------------------------------------------------------------------------------


@both
def test_episodes_begin_over_the_floor_with_every_heading(robot: str) -> None:
    env = _env(_cfg(robot), num_envs=128)
    env.reset()
    qpos = env.backend.get_state_views()["qpos"]
    yaw = 2 * torch.atan2(qpos[:, 6], qpos[:, 3])

    assert (yaw.sin() > 0.7).any()
    assert (yaw.sin() < -0.7).any()
    torch.testing.assert_close(qpos[:, 2], torch.full((128,), HOME_HEIGHT[robot], dtype=qpos.dtype))
    env.close()
