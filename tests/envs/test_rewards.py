"""Reward terms against formulas written in NumPy from MuJoCo's own state."""

import mujoco
import numpy as np
import pytest
import torch
from envs.tables import ON_TWINS, act, drive, go2, twins

from unilab.envs import (
    ManagerBasedRlEnv,
    RewardTermCfg,
    SceneEntityCfg,
    mdp,
)
from unilab.errors import ConfigError

COMMAND = {"command_name": "base_velocity"}
CALVES = SceneEntityCfg("robot", joint_names=(".*_calf_joint",))


def term(func, weight=1.0, **params):
    return RewardTermCfg(func=func, weight=weight, params=params)


STDS = ((0.05, 0.1), (0.15, 0.2), (0.3, 0.4))
"""Of hips and other joints, rad: standing, walking, running."""
POSTURE = {
    f"std_{gait}": {".*_hip_joint": hip, ".*_(thigh|calf)_joint": other}
    for gait, (hip, other) in zip(("standing", "walking", "running"), STDS, strict=True)
}

TERMS = {
    "track_lin_vel_xy_exp": term(mdp.track_lin_vel_xy_exp, std=0.4, **COMMAND),
    "track_ang_vel_z_exp": term(mdp.track_ang_vel_z_exp, std=0.7, **COMMAND),
    "lin_vel_z_l2": term(mdp.lin_vel_z_l2),
    "ang_vel_xy_l2": term(mdp.ang_vel_xy_l2),
    "flat_orientation_l2": term(mdp.flat_orientation_l2),
    "joint_torques_l2": term(mdp.joint_torques_l2),
    "joint_vel_l2": term(mdp.joint_vel_l2),
    "joint_deviation_l2": term(mdp.joint_deviation_l2),
    "calves": term(mdp.joint_deviation_l2, asset_cfg=CALVES),
    "joint_pos_limits": term(mdp.joint_pos_limits, soft_limit_factor=0.5),
    "action_l2": term(mdp.action_l2),
    "action_rate_l2": term(mdp.action_rate_l2),
    "action_acc_l2": term(mdp.action_acc_l2),
    "upright": term(mdp.upright, std=0.4),
    "electrical_power_cost": term(mdp.electrical_power_cost),
    "variable_posture": term(
        mdp.variable_posture, walking_threshold=0.7, running_threshold=1.0, **POSTURE, **COMMAND
    ),
    "is_alive": term(mdp.is_alive),
    "is_terminated": term(mdp.is_terminated),
}


def drawn_actions() -> torch.Tensor:
    """``[3, 4, 12]``, the actions of the episodes of :func:`moved`."""
    return torch.rand(3, 4, 12, generator=torch.Generator().manual_seed(5)) * 2 - 1


@pytest.fixture(scope="module")
def moved() -> tuple[ManagerBasedRlEnv, torch.Tensor]:
    """A robot in motion, one of four fallen, and each term's value of the last step."""
    env = go2(4, rewards=TERMS)
    drive(env, 6)
    env.reset()
    for step, action in enumerate(drawn_actions()):
        if step == 2:
            env.backend.get_state_views()["qpos"][3, 2] = 0.1
        sums = env.reward_manager.episode_sums.clone()
        env.step(act(env, env.fake_tensordict()).set("action", action))
    return env, (env.reward_manager.episode_sums - sums) / env.step_dt


def expected_terms(env: ManagerBasedRlEnv) -> dict[str, list[float]]:
    """The same numbers from MuJoCo's state, row by row in float64."""
    model, views = env.backend.mj_model, env.backend.get_state_views()
    command = env.command_manager.get_command("base_velocity").double().numpy()
    action = env.action_manager.action.double().numpy()
    previous = env.action_manager.prev_action.double().numpy()
    before = drawn_actions()[0].double().numpy()
    home = env.backend.default_qpos.numpy()[7:]
    out: dict[str, list[float]] = {name: [] for name in TERMS}
    for row in range(env.num_envs):
        qpos, qvel = views["qpos"][row].numpy(), views["qvel"][row].numpy()
        torque = views["qfrc_actuator"][row].numpy()[6:]
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, qpos[3:7] / np.linalg.norm(qpos[3:7]))
        to_body = matrix.reshape(3, 3).T
        v, w, g = to_body @ qvel[:3], qvel[3:6], to_body @ np.array([0.0, 0.0, -1.0])
        joints, rates = qpos[7:], qvel[6:]
        low, high = model.jnt_range[1:].T
        middle, half = (low + high) / 2, 0.25 * (high - low)
        speed = np.hypot(*command[row, :2]) + abs(command[row, 2])
        hip, other = STDS[int(speed >= 0.7) + int(speed >= 1.0)]
        std = np.array([hip, other, other] * 4)
        failed = qpos[2] < 0.15 or g[2] > -np.cos(np.radians(60.0))
        values = {
            "track_lin_vel_xy_exp": np.exp(-np.sum((command[row, :2] - v[:2]) ** 2) / 0.16),
            "track_ang_vel_z_exp": np.exp(-((command[row, 2] - w[2]) ** 2) / 0.49),
            "lin_vel_z_l2": v[2] ** 2,
            "ang_vel_xy_l2": w[0] ** 2 + w[1] ** 2,
            "flat_orientation_l2": g[0] ** 2 + g[1] ** 2,
            "joint_torques_l2": np.sum(torque**2),
            "joint_vel_l2": np.sum(rates**2),
            "joint_deviation_l2": np.sum((joints - home) ** 2),
            "calves": np.sum((joints - home)[2::3] ** 2),
            "joint_pos_limits": np.sum(np.maximum(np.abs(joints - middle) - half, 0.0)),
            "action_l2": np.sum(action[row] ** 2),
            "action_rate_l2": np.sum((action[row] - previous[row]) ** 2),
            "action_acc_l2": np.sum((action[row] - 2 * previous[row] + before[row]) ** 2),
            "upright": np.exp(-(g[0] ** 2 + g[1] ** 2) / 0.16),
            "electrical_power_cost": np.sum(np.maximum(torque * rates, 0.0)),
            "variable_posture": np.exp(-np.mean(((joints - home) / std) ** 2)),
            "is_alive": float(not failed),
            "is_terminated": float(failed),
        }
        for name, value in values.items():
            out[name].append(value)
    return out


@pytest.mark.parametrize("name", TERMS)
def test_a_term_agrees_with_its_formula(moved, name):
    env, values = moved
    got = values[env.reward_manager.term_names.index(name)].double()
    expected = torch.tensor(expected_terms(env)[name], dtype=torch.float64)
    assert expected.abs().max() > 0.0
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_reward_is_the_weighted_sum_times_the_step(tmp_path):
    env = twins(tmp_path, events={})
    data = env.step(act(env, env.reset(), 0.5))["next"]
    still = env.backend.get_state_views()["qvel"].float().square().sum(1)
    torch.testing.assert_close(data["reward"][:, 0], (-still - 0.5 * 0.5) * env.step_dt)


def test_a_term_of_weight_zero_is_checked_and_not_computed(tmp_path):
    terms = {"off": term(mdp.joint_torques_l2, 0.0, **ON_TWINS), "on": term(mdp.is_alive, 2.0)}
    env = twins(tmp_path, rewards=terms)
    data = env.step(act(env, env.reset()))["next"]
    assert env.reward_manager.term_names == ["on"]
    assert data["reward"][:, 0].tolist() == pytest.approx([0.04] * 4)
    assert env.scene.plan.packet.shape[1] == 4  # positions and velocities, no torques
    with pytest.raises(ConfigError, match=r"'off'.*scale"):
        twins(tmp_path, rewards={"off": term(mdp.action_l2, 0.0, scale=2.0)})


def test_a_task_without_rewards_gives_zeros(tmp_path):
    env = twins(tmp_path, rewards={})
    assert env.step(act(env, env.reset()))["next", "reward"].tolist() == [[0.0]] * 4


def test_metrics_are_episode_sums_by_the_episode_length_in_seconds(tmp_path):
    env = twins(tmp_path)
    root, rewards = env.reset(), torch.zeros(4)
    for step in range(5):
        if step == 2:
            env.backend.get_state_views()["qpos"][1] = 2.7
        data, root = env.step_and_maybe_reset(act(env, root, 0.5))
        counted_rows = torch.tensor([True, step <= 2, True, True])  # row 1 starts anew
        rewards += data["next", "reward"][:, 0] * counted_rows
    metrics = episode_metrics(env)
    assert set(metrics) == {
        "Episode_Reward/still",
        "Episode_Reward/effort",
        "Episode_Termination/time_out",
        "Episode_Termination/too_far",
    }
    total = metrics["Episode_Reward/still"] + metrics["Episode_Reward/effort"]
    assert total == pytest.approx(float(rewards.mean()) / 0.1, rel=1e-4)
    # Row 1 ended after 3 of its 5 steps; what it missed counts as 0.
    effort = -0.5 * 2 * 0.5**2 * env.step_dt
    assert metrics["Episode_Reward/effort"] == pytest.approx(
        effort * (5 + 3 + 5 + 5) / 4 / 0.1, rel=1e-4
    )
    assert metrics["Episode_Termination/time_out"] == 0.75
    assert metrics["Episode_Termination/too_far"] == 0.25


def episode_metrics(env):
    return {k: v for k, v in env.drain_metrics().items() if k.startswith("Episode_")}


def test_metrics_count_each_ended_episode_once(tmp_path):
    env = twins(tmp_path)
    env.reset()
    assert episode_metrics(env) == {}
    drive(env, 5)
    assert env.drain_metrics()["Episode_Termination/time_out"] == 1.0
    env.reset()  # before its first step
    env.reset()
    assert episode_metrics(env) == {}


BAD_TERMS = {
    "std": term(mdp.track_lin_vel_xy_exp, std=0.0, **COMMAND),
    "std_walking must cover": term(
        mdp.variable_posture, **{**POSTURE, "std_walking": {".*_hip_joint": 1.0}}, **COMMAND
    ),
    "_knee": term(mdp.variable_posture, **{**POSTURE, "std_running": {".*_knee": 1.0}}, **COMMAND),
    "deviations": term(mdp.variable_posture, **{**POSTURE, "std_standing": {".*": 0.0}}, **COMMAND),
    "walking_threshold": term(mdp.variable_posture, walking_threshold=2.0, **POSTURE, **COMMAND),
}


@pytest.mark.parametrize("named", BAD_TERMS)
def test_parameters_that_make_no_sense_are_refused(named):
    with pytest.raises(ConfigError, match=rf"'bad'.*{named}"):
        go2(rewards={"bad": BAD_TERMS[named]})


def test_a_second_difference_of_actions_begins_at_zero_in_every_episode(tmp_path):
    env = twins(tmp_path, rewards={"acc": term(mdp.action_acc_l2, 100.0)})  # 5 steps an episode
    actions = (0.5, 0.25, 0.25, 0.0, 0.5)
    root, got = env.reset(), []
    for action in (*actions, *actions):
        data, root = env.step_and_maybe_reset(act(env, root, action))
        got.append(float(data["next", "reward"][0]) / 100.0 / env.step_dt)
    padded = np.array([0.0, 0.0, *actions])
    wanted = 2 * np.diff(padded, 2) ** 2
    np.testing.assert_allclose(got, [*wanted, *wanted], rtol=1e-5)


def test_weight_of_a_term_can_be_changed(tmp_path):
    terms = {"effort": term(mdp.action_l2, -0.5), "off": term(mdp.action_l2, 0.0)}
    env = twins(tmp_path, rewards=terms)
    env.reward_manager.set_weight("effort", -2.0)
    assert env.reward_manager.get_weight("effort") == pytest.approx(-2.0)
    data = env.step(act(env, env.reset(), 0.5))["next"]
    assert data["reward"][:, 0].tolist() == pytest.approx([-2.0 * 2 * 0.25 * env.step_dt] * 4)
    for name, weight, named in (
        ("effort", float("nan"), "effort"),
        ("efort", 1.0, "efort.*effort"),
        ("off", 1.0, "off"),
    ):
        with pytest.raises(ConfigError, match=named):
            env.reward_manager.set_weight(name, weight)


def test_joints_without_limits_are_never_past_them(tmp_path):
    env = twins(tmp_path, rewards={"limits": term(mdp.joint_pos_limits, **ON_TWINS)})
    second = SceneEntityCfg("twins", joint_names=("second",))
    free = twins(tmp_path, rewards={"limits": term(mdp.joint_pos_limits, asset_cfg=second)})
    assert drive(env, 3)["next", "reward"].isfinite().all()
    assert not drive(free, 3)["next", "reward"].any()
