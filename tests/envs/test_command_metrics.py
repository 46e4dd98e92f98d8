"""How well a command is followed, logged as ``Metrics/<command>/<name>``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from envs.tables import act, go2, twins

from unilab.envs import CommandTerm, CommandTermCfg, EntityCfg, MetricsTermCfg, SceneCfg
from unilab.errors import CapabilityError, ConfigError, NonFiniteError
from unilab.tasks.velocity.go2 import go2_velocity_flat


@dataclass(frozen=True, kw_only=True)
class StandCfg(CommandTermCfg):
    """To stand still; measured by whatever a test wants."""

    resampling_time_range: tuple[float, float] = (1.0, 1.0)
    measured: tuple = ()

    def build(self, env):
        return Stand(self, env)


class Stand(CommandTerm):
    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.cfg = cfg

    @property
    def command(self):
        return torch.zeros(self._env.num_envs, 1)

    def resample(self, rows):
        pass

    def metrics(self):
        return {name: func(self._env) for name, func in self.cfg.measured}


def stand(folder, *measured, **changes):
    return twins(folder, commands={"stand": StandCfg(measured=measured)}, **changes)


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
    length = ("length", lambda env: env.episode_length.float())
    both = {name: StandCfg(measured=(length,)) for name in ("a", "b")}
    extra = {"length": MetricsTermCfg(func=length[1])}
    env = twins(tmp_path, commands={**both, "c": StandCfg()}, metrics=extra)
    root = env.reset()
    for _ in range(5):
        _, root = env.step_and_maybe_reset(act(env, root))
    metrics = {k: v for k, v in env.drain_metrics().items() if k.startswith("Metrics/")}
    assert metrics == {"Metrics/a/length": 3.0, "Metrics/b/length": 3.0, "Metrics/length": 3.0}


def test_nonfinite_command_metric_names_metrics_and_rows(tmp_path):
    def spoilt(env):
        value = torch.zeros(env.num_envs)
        value[[1, 3]] = torch.nan if env.common_step_counter else 0.0
        return value

    env = stand(tmp_path, ("fine", lambda env: torch.ones(4)), ("spoilt", spoilt))
    root = act(env, env.reset())
    with pytest.raises(NonFiniteError, match=r"'stand/spoilt': \[1, 3\]"):
        env.step(root)


def test_two_metrics_of_one_tag_are_refused(tmp_path):
    ones = ("ones", lambda env: torch.ones(4))
    with pytest.raises(ConfigError, match="Metrics/stand/ones"):
        stand(tmp_path, ones, metrics={"stand/ones": MetricsTermCfg(func=ones[1])})


def test_a_velocity_command_needs_its_robot_and_a_free_root(tmp_path):
    command = go2_velocity_flat().commands["base_velocity"]
    with pytest.raises(ConfigError, match=r"'robot'.*'twins'"):
        twins(tmp_path, commands={"go": command})
    with pytest.raises(CapabilityError, match=r"'twins'.*root_quat_w"):
        twins(tmp_path, commands={"go": replace(command, entity_name="twins")})


def test_the_robot_may_have_another_name():
    base = go2_velocity_flat()
    scene = SceneCfg(model=base.scene.model, entities={"dog": EntityCfg(root_body="base")})
    command = replace(base.commands["base_velocity"], entity_name="dog")
    obs = base.observations["obs"]
    terms = {"command": obs.terms["command"]}
    env = go2(
        scene=scene,
        commands={"base_velocity": command},
        observations={"obs": replace(obs, terms=terms)},
        rewards={},
        terminations={},
        events={},
    )
    env.step(act(env, env.reset()))
    env.reset()
    assert env.drain_metrics()["Metrics/base_velocity/error_vel_xy"] > 0.0
