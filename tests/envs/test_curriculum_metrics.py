"""Curricula, metrics, and terms with a memory."""

from dataclasses import replace

import pytest
import torch
from envs.tables import ON_TWINS, act, drive, go2, physics_state, twins, twins_cfg
from tensordict import TensorDict

from unilab.envs import (
    CurriculumTermCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerTermBase,
    MetricsTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
    mdp,
)
from unilab.errors import ConfigError, NonFiniteError
from unilab.record.metrics import metric
from unilab.tasks.velocity.go2 import go2_velocity_flat


def log_rows(env, env_ids, log):
    log.append((env.common_step_counter, env_ids.tolist()))
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


def test_a_curriculum_sees_the_episodes_that_end(tmp_path):
    """How long they were and why they ended; the state that they ended in."""
    log = []

    def look(env, env_ids):
        if env_ids.shape[0] and env.common_step_counter:
            done = env.termination_manager
            log.append((env.episode_length[env_ids].tolist(), done.truncated[env_ids].tolist()))

    drive(twins(tmp_path, curriculum={"look": CurriculumTermCfg(func=look)}), 5)
    assert log == [([5] * 4, [True] * 4)]


def test_a_reward_weight_changes_after_its_steps(tmp_path):
    change = CurriculumTermCfg(
        func=mdp.modify_reward_weight,
        params={"term_name": "effort", "weight": -5.0, "num_steps": 5},
    )
    env = twins(tmp_path, curriculum={"effort": change}, events={})
    paid = drive(env, 15)["next", "reward"][0, :, 0]
    effort = torch.zeros(15)
    draw = torch.Generator().manual_seed(0)
    for step in range(15):
        action = torch.rand(4, 2, generator=draw) * 2 - 1
        weight = -0.5 if step < 10 else -5.0  # the first end beyond step 5 is at step 10
        effort[step] = weight * action[0].square().sum() * env.step_dt
    still = paid - effort
    assert (still <= 1e-6).all()
    assert env.reward_manager.get_weight("effort") == pytest.approx(-5.0)
    assert env.drain_metrics()["Curriculum/effort"] == pytest.approx(-5.0)


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


def weighing(name):
    params = {"term_name": name, "weight": 1.0, "num_steps": 1}
    return CurriculumTermCfg(func=mdp.modify_reward_weight, params=params)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (weighing("track_lin_vel_yx"), "track_lin_vel_yx.*track_lin_vel_xy"),
        (weighing("off"), "off.*weight"),
        (CurriculumTermCfg(func=lambda env, env_ids: "much"), "'bad'.*much"),
    ],
)
def test_curriculum_that_does_not_fit_is_refused(bad, named):
    rewards = {**go2_velocity_flat().rewards, "off": RewardTermCfg(func=mdp.action_l2, weight=0.0)}
    with pytest.raises(ConfigError, match=named):
        go2(rewards=rewards, curriculum={"bad": bad})


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


def failing(env, env_ids):
    torch.rand(3, generator=env.generator)
    if env.common_step_counter == 3:
        raise ZeroDivisionError


def test_c12_failing_curriculum_changes_nothing(tmp_path):
    """It runs before the reset is written."""
    env, other = (
        twins(tmp_path, curriculum={"bad": CurriculumTermCfg(func=failing)}) for _ in range(2)
    )
    for each in (env, other):
        drive(each, 3)
    physics, generator = physics_state(env), env.generator.get_state()
    with pytest.raises(ZeroDivisionError):
        env.reset()
    assert torch.equal(physics_state(env), physics)
    assert torch.equal(env.generator.get_state(), generator)
    assert env.episode_length.tolist() == [3, 3, 3, 3]
    for each in (env, other):
        each.step(act(each, TensorDict(batch_size=4)))
    assert torch.equal(env.reset()["obs"], other.reset()["obs"])


def step_number(env):
    return env.episode_length.float()


def test_a_metric_is_the_mean_over_the_steps_of_ended_episodes(tmp_path):
    limits = {
        "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
        "too_far": TerminationTermCfg(
            func=mdp.joint_pos_out_of_limit, params={"limit": 2.5, **ON_TWINS}
        ),
    }
    env = twins(tmp_path, terminations=limits, metrics={"step": MetricsTermCfg(func=step_number)})
    root = env.reset()
    for step in range(5):
        if step == 2:
            env.backend.get_state_views()["qpos"][1] = 2.7
        _, root = env.step_and_maybe_reset(act(env, root))
    # Three episodes of 5 steps and one of 3; the one that is running does not count.
    expected = (3 * (1 + 2 + 3 + 4 + 5) + (1 + 2 + 3)) / (3 * 5 + 3)
    assert env.drain_metrics()["Metrics/step"] == pytest.approx(expected)


def spoilt(env, rows):
    value = torch.zeros(env.num_envs)
    value[rows] = torch.nan
    return value


def test_nonfinite_metric_names_terms_and_rows(tmp_path):
    rows: list[int] = []
    env = twins(
        tmp_path,
        metrics={
            "fine": MetricsTermCfg(func=step_number),
            "spoilt": MetricsTermCfg(func=spoilt, params={"rows": rows}),
        },
    )
    root = act(env, env.reset())
    rows += [0, 3]
    with pytest.raises(NonFiniteError, match=r"'spoilt': \[0, 3\]"):
        env.step(root)


def test_every_tag_is_in_the_schema():
    stages = {"command_name": "base_velocity", "velocity_stages": []}
    env = go2(
        4,
        episode_length_s=0.04,
        metrics={"torque": MetricsTermCfg(func=mdp.joint_torques_l2)},
        curriculum={"speed": CurriculumTermCfg(func=mdp.commands_vel, params=stages)},
    )
    drive(env, 2)
    tags = env.drain_metrics()
    assert {tag.split("/")[0] for tag in tags} == {
        "Curriculum", "Episode_Reward", "Episode_Termination", "Metrics", "Perf",
    }  # fmt: skip
    assert {tag for tag in tags if tag.startswith("Metrics/")} == {
        "Metrics/torque",
        "Metrics/base_velocity/error_vel_xy",
        "Metrics/base_velocity/error_vel_yaw",
    }
    for tag in tags:
        metric(tag)


def test_the_tables_show_curriculum_and_metrics(tmp_path):
    change = CurriculumTermCfg(
        func=mdp.modify_reward_weight,
        params={"term_name": "effort", "weight": -5.0, "num_steps": 5},
    )
    env = twins(
        tmp_path,
        curriculum={"harder": change},
        metrics={"step": MetricsTermCfg(func=step_number)},
    )
    lines = env.describe().splitlines()
    assert any(line.split() == ["harder", "-0.5"] for line in lines)
    assert "  step" in lines


class Furthest(ManagerTermBase):
    """The largest distance of the first joint from zero in this episode."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.furthest = torch.zeros(env.num_envs)

    def __call__(self, env, gain=1.0, asset_cfg=None):
        position = env.scene[asset_cfg.name].data.joint_pos[:, 0].abs()
        self.furthest = torch.maximum(self.furthest, position)  # bound anew, in inference mode
        return gain * self.furthest

    def reset(self, env_ids):
        self.furthest[env_ids] = 0.0


def test_stateful_term_is_cleared_at_resets_of_its_rows(tmp_path):
    term = RewardTermCfg(func=Furthest, weight=1.0, params={"gain": 2.0, **ON_TWINS})
    env = twins(tmp_path, rewards={"far": term})
    root, furthest = env.reset(), torch.zeros(4)
    for step in range(12):
        data, root = env.step_and_maybe_reset(act(env, root, 0.8 if step % 2 else -0.8))
        pos = data["next", "obs"][:, 0] + 0.3
        furthest = torch.maximum(furthest, pos.abs())
        expected = 2.0 * furthest * env.step_dt
        torch.testing.assert_close(data["next", "reward"][:, 0], expected)
        furthest[data["next", "done"][:, 0]] = 0.0


class Count(ManagerTermBase):
    """How often it was called in this episode; knows its own configuration."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.calls = torch.zeros(env.num_envs, 1)
        assert cfg.params == {"start": 10.0}

    def __call__(self, env, start=10.0):
        self.calls += 1.0
        return self.calls + start

    def reset(self, env_ids):
        self.calls[env_ids] = 0.0


def test_stateful_observation_gets_its_parameters(tmp_path):
    obs = ObservationGroupCfg(terms={"count": ObservationTermCfg(func=Count)})
    env = twins(tmp_path, observations={"obs": obs})
    shown = drive(env, 7)["obs"][0, :, 0].tolist()
    assert shown == [11, 12, 13, 14, 15, 11, 12]


class Nudge(ManagerTermBase):
    """An event that moves further each time."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.times = 0

    def __call__(self, env, env_ids, asset_cfg):
        self.times += 1
        pos = torch.full((env_ids.shape[0], 2), 0.01 * self.times)
        env.scene[asset_cfg.name].write_joint_state(pos, torch.zeros_like(pos))


def test_event_may_be_stateful(tmp_path):
    env = twins(tmp_path, events={"nudge": EventTermCfg(func=Nudge, mode="reset", params=ON_TWINS)})
    seen = [float(env.reset()["obs"][0, 0]) for _ in range(2)]
    assert seen[1] - seen[0] == pytest.approx(0.01, abs=1e-6)


def test_c12_failing_reset_does_not_clear_stateful_terms(tmp_path):
    def explode(env, env_ids):
        if env.episode_length.any():
            raise ZeroDivisionError

    cfg = twins_cfg(tmp_path)
    obs = ObservationGroupCfg(terms={"count": ObservationTermCfg(func=Count)})
    events = {**cfg.events, "explode": EventTermCfg(func=explode, mode="reset")}
    env = ManagerBasedRlEnv(
        replace(cfg, observations={"obs": obs}, events=events), num_envs=4, seed=0
    )
    last = drive(env, 3)["next", "obs"][0, -1]
    physics = physics_state(env)
    with pytest.raises(ZeroDivisionError):
        env.reset()
    assert torch.equal(physics_state(env), physics)
    following = env.step(act(env, env.fake_tensordict()))["next", "obs"][0]
    assert following.tolist() == (last + 1.0).tolist()
