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
    TerminationTermCfg,
    mdp,
)
from unilab.errors import ConfigError, NonFiniteError

COMMAND = {"command_name": "base_velocity"}
CALVES = SceneEntityCfg("robot", joint_names=(".*_calf_joint",))
TERMS = {
    "track_lin_vel_xy_exp": RewardTermCfg(
        func=mdp.track_lin_vel_xy_exp, weight=1.0, params={"std": 0.4, **COMMAND}
    ),
    "track_ang_vel_z_exp": RewardTermCfg(
        func=mdp.track_ang_vel_z_exp, weight=1.0, params={"std": 0.7, **COMMAND}
    ),
    "track_lin_vel_xy_yaw_frame_exp": RewardTermCfg(
        func=mdp.track_lin_vel_xy_yaw_frame_exp, weight=1.0, params={"std": 0.4, **COMMAND}
    ),
    "track_ang_vel_z_world_exp": RewardTermCfg(
        func=mdp.track_ang_vel_z_world_exp, weight=1.0, params={"std": 0.7, **COMMAND}
    ),
    "stand_still_joint_deviation_l1": RewardTermCfg(
        func=mdp.stand_still_joint_deviation_l1,
        weight=1.0,
        params={"command_threshold": 0.6, **COMMAND},
    ),
    "lin_vel_z_l2": RewardTermCfg(func=mdp.lin_vel_z_l2, weight=1.0),
    "ang_vel_xy_l2": RewardTermCfg(func=mdp.ang_vel_xy_l2, weight=1.0),
    "flat_orientation_l2": RewardTermCfg(func=mdp.flat_orientation_l2, weight=1.0),
    "base_height_l2": RewardTermCfg(
        func=mdp.base_height_l2, weight=1.0, params={"target_height": 0.4}
    ),
    "joint_torques_l2": RewardTermCfg(func=mdp.joint_torques_l2, weight=1.0),
    "joint_vel_l2": RewardTermCfg(func=mdp.joint_vel_l2, weight=1.0),
    "joint_deviation_l1": RewardTermCfg(func=mdp.joint_deviation_l1, weight=1.0),
    "joint_deviation_l2": RewardTermCfg(func=mdp.joint_deviation_l2, weight=1.0),
    "calves": RewardTermCfg(func=mdp.joint_deviation_l2, weight=1.0, params={"asset_cfg": CALVES}),
    "joint_pos_limits": RewardTermCfg(
        func=mdp.joint_pos_limits, weight=1.0, params={"soft_limit_factor": 0.5}
    ),
    "action_l2": RewardTermCfg(func=mdp.action_l2, weight=1.0),
    "action_rate_l2": RewardTermCfg(func=mdp.action_rate_l2, weight=1.0),
    "is_alive": RewardTermCfg(func=mdp.is_alive, weight=1.0),
    "is_terminated": RewardTermCfg(func=mdp.is_terminated, weight=1.0),
}


@pytest.fixture(scope="module")
def moved() -> tuple[ManagerBasedRlEnv, torch.Tensor]:
    """A robot in motion, one of four fallen, and each term's value of the last step."""
    env = go2(4, rewards=TERMS)
    drive(env, 6)
    env.reset()
    draw = torch.Generator().manual_seed(5)
    for step in range(3):
        if step == 2:
            env.backend.get_state_views()["qpos"][3, 2] = 0.1
        action = torch.rand(4, 12, generator=draw) * 2 - 1
        sums = env.reward_manager.episode_sums.clone()
        env.step(act(env, env.fake_tensordict()).set("action", action))
    return env, (env.reward_manager.episode_sums - sums) / env.step_dt


def expected_terms(env: ManagerBasedRlEnv) -> dict[str, list[float]]:
    """The same numbers from MuJoCo's state, row by row in float64."""
    model, views = env.backend.mj_model, env.backend.get_state_views()
    command = env.command_manager.get_command("base_velocity").double().numpy()
    action = env.action_manager.action.double().numpy()
    previous = env.action_manager.prev_action.double().numpy()
    home = env.backend.default_qpos.numpy()[7:]
    out: dict[str, list[float]] = {name: [] for name in TERMS}
    for row in range(env.num_envs):
        qpos, qvel = views["qpos"][row].numpy(), views["qvel"][row].numpy()
        torque = views["qfrc_actuator"][row].numpy()[6:]
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, qpos[3:7] / np.linalg.norm(qpos[3:7]))
        to_body = matrix.reshape(3, 3).T
        v, w, g = to_body @ qvel[:3], qvel[3:6], to_body @ np.array([0.0, 0.0, -1.0])
        forward = to_body[0] * [1.0, 1.0, 0.0]  # the root's x axis, seen from above
        forward /= np.linalg.norm(forward)
        upright = [forward @ qvel[:3], np.cross([0.0, 0.0, 1.0], forward) @ qvel[:3]]
        turning = to_body.T @ w
        joints, rates = qpos[7:], qvel[6:]
        low, high = model.jnt_range[1:].T
        middle, half = (low + high) / 2, 0.25 * (high - low)
        failed = qpos[2] < 0.15 or g[2] > -np.cos(np.radians(60.0))
        values = {
            "track_lin_vel_xy_exp": np.exp(-np.sum((command[row, :2] - v[:2]) ** 2) / 0.16),
            "track_ang_vel_z_exp": np.exp(-((command[row, 2] - w[2]) ** 2) / 0.49),
            "track_lin_vel_xy_yaw_frame_exp": np.exp(
                -np.sum((command[row, :2] - upright) ** 2) / 0.16
            ),
            "track_ang_vel_z_world_exp": np.exp(-((command[row, 2] - turning[2]) ** 2) / 0.49),
            "stand_still_joint_deviation_l1": np.sum(np.abs(joints - home))
            * (np.hypot(*command[row, :2]) < 0.6),
            "lin_vel_z_l2": v[2] ** 2,
            "ang_vel_xy_l2": w[0] ** 2 + w[1] ** 2,
            "flat_orientation_l2": g[0] ** 2 + g[1] ** 2,
            "base_height_l2": (qpos[2] - 0.4) ** 2,
            "joint_torques_l2": np.sum(torque**2),
            "joint_vel_l2": np.sum(rates**2),
            "joint_deviation_l1": np.sum(np.abs(joints - home)),
            "joint_deviation_l2": np.sum((joints - home) ** 2),
            "calves": np.sum((joints - home)[2::3] ** 2),
            "joint_pos_limits": np.sum(np.maximum(np.abs(joints - middle) - half, 0.0)),
            "action_l2": np.sum(action[row] ** 2),
            "action_rate_l2": np.sum((action[row] - previous[row]) ** 2),
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


def counted(env, calls):
    calls.append(1)
    return torch.ones(env.num_envs)


def test_a_term_of_weight_zero_is_not_computed(tmp_path):
    calls: list[int] = []
    terms = {
        "off": RewardTermCfg(func=counted, weight=0.0, params={"calls": calls}),
        "on": RewardTermCfg(func=mdp.is_alive, weight=2.0),
    }
    env = twins(tmp_path, rewards=terms)
    data = env.step(act(env, env.reset()))["next"]
    assert not calls
    assert env.reward_manager.term_names == ["on"]
    assert data["reward"][:, 0].tolist() == pytest.approx([0.04] * 4)


def test_a_task_without_rewards_gives_zeros(tmp_path):
    env = twins(tmp_path, rewards={})
    assert env.step(act(env, env.reset()))["next", "reward"].tolist() == [[0.0]] * 4


def spoilt(env, rows, asset_cfg):
    value = env.scene[asset_cfg.name].data.joint_pos[:, 0].clone()
    value[rows] = torch.nan
    return value


def test_nonfinite_reward_names_terms_and_rows(tmp_path):
    rows: list[int] = []
    term = RewardTermCfg(func=spoilt, weight=1.0, params={"rows": rows, **ON_TWINS})
    env = twins(
        tmp_path, rewards={"fine": RewardTermCfg(func=mdp.is_alive, weight=1.0), "spoilt": term}
    )
    root = act(env, env.reset())
    rows += [1, 3]
    with pytest.raises(NonFiniteError, match=r"not finite.*: \{'spoilt': \[1, 3\]\}"):
        env.step(root)


def test_metrics_are_episode_sums_by_the_episode_length_in_seconds(tmp_path):
    limits = {
        "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
        "too_far": TerminationTermCfg(
            func=mdp.joint_pos_out_of_limit, params={"limit": 2.5, **ON_TWINS}
        ),
    }
    env = twins(tmp_path, terminations=limits)
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


def test_reset_before_the_first_step_counts_no_episode(tmp_path):
    env = twins(tmp_path)
    drive(env, 5)
    env.drain_metrics()
    env.reset()
    env.reset()
    assert episode_metrics(env) == {}


def test_metrics_are_empty_after_a_drain(tmp_path):
    env = twins(tmp_path)
    env.reset()
    assert episode_metrics(env) == {}
    drive(env, 5)
    assert env.drain_metrics()["Episode_Termination/time_out"] == 1.0
    assert episode_metrics(env) == {}


@pytest.mark.parametrize(
    ("func", "params"), [(mdp.action_l2, {"scale": 2.0}), (mdp.joint_vel_l2, {}), (None, {})]
)
def test_term_of_weight_zero_must_fit_like_any_other(tmp_path, func, params):
    off = RewardTermCfg(func=func, weight=0.0, params=params)
    with pytest.raises(ConfigError, match="'off'"):
        twins(tmp_path, rewards={"off": off})


@pytest.mark.parametrize("func", [mdp.track_lin_vel_xy_exp, mdp.track_ang_vel_z_world_exp])
def test_tracking_reward_of_width_zero_is_refused(func):
    bad = RewardTermCfg(func=func, weight=1.0, params={"std": 0.0, **COMMAND})
    with pytest.raises(ConfigError, match=r"'bad'.*std"):
        go2(rewards={"bad": bad})


def test_term_of_weight_zero_adds_nothing_to_the_packet(tmp_path):
    off = RewardTermCfg(func=mdp.joint_torques_l2, weight=0.0, params=ON_TWINS)
    env = twins(tmp_path, rewards={"off": off})
    assert env.scene.plan.packet.shape[1] == 4  # positions and velocities of two joints
    assert "off" not in [term.name for term in env.terms]


def test_new_weight_that_is_not_finite_is_refused(tmp_path):
    env = twins(tmp_path)
    with pytest.raises(ConfigError, match="effort"):
        env.reward_manager.set_weight("effort", float("nan"))
    assert env.reward_manager.get_weight("effort") == pytest.approx(-0.5)
