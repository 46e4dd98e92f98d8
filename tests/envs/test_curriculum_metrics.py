"""Curricula, metrics, and terms with a memory."""

import pytest
import torch
from envs.tables import act, drive, go2, twins

from unilab.envs import (
    CurriculumTermCfg,
    MetricsTermCfg,
    mdp,
)
from unilab.errors import ConfigError, NonFiniteError


def log_rows(env, env_ids, log):
    log.append((env.common_step_counter, env_ids.tolist()))
    ended = env.termination_manager.terminated | env.termination_manager.truncated
    assert ended[env_ids].all() or not env.episode_length.any()
    return {"calls": float(len(log)), "rows": torch.tensor(env_ids.shape[0])}


def test_a_curriculum_runs_for_the_episodes_that_end(tmp_path):
    log: list[tuple[int, list[int]]] = []
    env = twins(tmp_path, curriculum={"log": CurriculumTermCfg(func=log_rows, params={"log": log})})
    assert log == [(0, [])]
    root = env.reset()
    for step in range(5):
        if step == 2:
            env.backend.get_state_views()["qpos"][1] = 2.7
        _, root = env.step_and_maybe_reset(act(env, root))
    assert log[1:] == [(0, [0, 1, 2, 3]), (3, [1]), (5, [0, 2, 3])]
    metrics = env.drain_metrics()
    assert (metrics["Curriculum/log/calls"], metrics["Curriculum/log/rows"]) == (4.0, 3.0)


def test_a_velocity_command_widens_in_stages():
    stages = [{"step": 3, "lin_vel_x": (2.0, 3.0)}, {"step": 9, "ang_vel_z": (1.5, 1.6)}]
    widen = CurriculumTermCfg(
        func=mdp.commands_vel,
        params={"command_name": "base_velocity", "velocity_stages": stages},
    )
    env = go2(8, curriculum={"speed": widen}, episode_length_s=0.1)  # 5 steps
    root, highest = env.reset(), []
    for _ in range(10):
        command = env.command_manager.get_command("base_velocity").abs().amax(0)
        highest.append((float(command[0]), float(command[2])))
        _, root = env.step_and_maybe_reset(act(env, root))
    assert all(x <= 1.0 and w <= 0.8 for x, w in highest[:5])
    assert all(x >= 2.0 and w <= 0.8 for x, w in highest[5:])
    command = env.command_manager.get_command("base_velocity")
    moving = command[(command != 0.0).any(1)]
    assert ((moving[:, 2] >= 1.5) & (moving[:, 2] <= 1.6)).all()
    assert env.drain_metrics()["Curriculum/speed/lin_vel_x_max"] == 3.0


def test_curriculum_that_returns_no_number_is_refused(tmp_path):
    bad = CurriculumTermCfg(func=lambda env, env_ids: "much")
    with pytest.raises(ConfigError, match=r"'bad'.*much"):
        twins(tmp_path, curriculum={"bad": bad})


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ([{"lin_vel_x": (0.0, 1.0)}], "step"),
        ([{"step": 0, "lin_vel_z": (0.0, 1.0)}], "lin_vel_z.*lin_vel_"),
        ([{"step": 0, "lin_vel_x": (1.0, 0.0)}], "lin_vel_x"),
        ([{"step": 0, "lin_vel_x": 1.0}], "lin_vel_x"),
        ([{"step": 1e6}], "step"),
        ([{"step": 10}, {"step": 5}], "step"),
        (["step 5"], "velocity_stages"),
    ],
)
def test_velocity_stage_that_does_not_fit_is_refused(stages, named):
    params = {"command_name": "base_velocity", "velocity_stages": stages}
    with pytest.raises(ConfigError, match=rf"'bad'.*{named}"):
        go2(curriculum={"bad": CurriculumTermCfg(func=mdp.commands_vel, params=params)})


def test_curriculum_that_returns_nan_refuses_the_reset(tmp_path):
    def level(env, env_ids):
        return torch.nan if env.common_step_counter else 1.0

    env = twins(tmp_path, curriculum={"level": CurriculumTermCfg(func=level)})
    drive(env, 3)
    with pytest.raises(NonFiniteError, match="'level'"):
        env.reset()
    assert env.drain_metrics()["Curriculum/level"] == 1.0


def test_curriculum_continues_from_a_checkpoint(tmp_path):
    log: list[tuple[int, list[int]]] = []
    env = twins(tmp_path, curriculum={"log": CurriculumTermCfg(func=log_rows, params={"log": log})})
    env.import_training_state({"version": 1, "control_steps": 1000})
    drive(env, 5)
    assert [step for step, _ in log[1:]] == [1000, 1005]


def step_number(env):
    return env.episode_length.float()


def test_a_metric_is_the_mean_over_the_steps_of_ended_episodes(tmp_path):
    env = twins(tmp_path, metrics={"step": MetricsTermCfg(func=step_number)})
    root = env.reset()
    for step in range(5):
        if step == 2:
            env.backend.get_state_views()["qpos"][1] = 2.7
        _, root = env.step_and_maybe_reset(act(env, root))
    # Three episodes of 5 steps and one of 3; the one that is running does not count.
    expected = (3 * (1 + 2 + 3 + 4 + 5) + (1 + 2 + 3)) / (3 * 5 + 3)
    assert env.drain_metrics()["Metrics/step"] == pytest.approx(expected)
