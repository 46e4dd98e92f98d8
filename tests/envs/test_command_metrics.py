"""How well a command is followed, logged as ``Metrics/<command>/<name>``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from envs.tables import CommandOf, act, go2, twins

from unilab.envs import MetricsTermCfg
from unilab.errors import CapabilityError, ConfigError
from unilab.tasks.velocity.go2 import go2_velocity_flat


def test_tracking_errors_are_mean_distances_from_the_command_of_the_step():
    """That of the step, also where the step ends with a new one."""
    command = replace(
        go2_velocity_flat().commands["base_velocity"], resampling_time_range=(0.02, 0.02)
    )
    env = go2(4, commands={"base_velocity": command}, episode_length_s=0.06, terminations={})
    root = env.reset()
    xy, yaw = torch.zeros(4), torch.zeros(4)
    for _ in range(3):
        asked = env.command_manager.get_command("base_velocity").clone()
        data = env.step(act(env, root))["next"]
        assert not torch.equal(env.command_manager.get_command("base_velocity"), asked)
        speed, rate = data["critic"][:, 45:47] / 2.0, data["critic"][:, 2] / 0.25
        xy += (asked[:, :2] - speed).norm(dim=1) / 3
        yaw += (asked[:, 2] - rate).abs() / 3
    env.reset()
    metrics = env.drain_metrics()
    key = "Metrics/base_velocity/error_vel_"
    assert metrics[key + "xy"] == pytest.approx(float(xy.mean()), rel=1e-5)
    assert metrics[key + "yaw"] == pytest.approx(float(yaw.mean()), rel=1e-5)


def test_command_metrics_carry_the_name_of_their_command(tmp_path):
    def length(env):
        return env.episode_length.float()

    both = {name: CommandOf(measured={"length": length}) for name in ("a", "b")}
    extra = {"length": MetricsTermCfg(func=length)}
    env = twins(tmp_path, commands={**both, "c": CommandOf()}, metrics=extra)
    root = env.reset()
    for _ in range(5):
        _, root = env.step_and_maybe_reset(act(env, root))
    metrics = {k: v for k, v in env.drain_metrics().items() if k.startswith("Metrics/")}
    assert metrics == {"Metrics/a/length": 3.0, "Metrics/b/length": 3.0, "Metrics/length": 3.0}


def test_two_metrics_of_one_tag_are_refused(tmp_path):
    measured = {"zeros": lambda env: torch.zeros(4)}
    metrics = {"stand/zeros": MetricsTermCfg(func=measured["zeros"])}
    with pytest.raises(ConfigError, match="Metrics/stand/zeros"):
        twins(tmp_path, commands={"stand": CommandOf(measured=measured)}, metrics=metrics)


def test_a_velocity_command_needs_its_robot_and_a_free_root(tmp_path):
    command = go2_velocity_flat().commands["base_velocity"]
    with pytest.raises(ConfigError, match=r"'robot'.*'twins'"):
        twins(tmp_path, commands={"go": command})
    with pytest.raises(CapabilityError, match=r"'twins'.*root_quat_w"):
        twins(tmp_path, commands={"go": replace(command, entity_name="twins")})
