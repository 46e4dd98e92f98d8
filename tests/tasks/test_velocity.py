"""Go2 and G1 velocity tasks: observations, randomization, rewards and terminations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mujoco
import pytest
import torch
from tensordict import TensorDictBase

from unilab import registry
from unilab.backends import MujocoBackend
from unilab.envs import ManagerBasedRlEnv, mdp, scene_model
from unilab.tasks.velocity.velocity_env_cfg import VelocityEnvCfg

ROBOTS = ("go2", "g1")
HOME_HEIGHT = {"go2": 0.32, "g1": 0.76}

both = pytest.mark.parametrize("robot", ROBOTS)


def _cfg(robot: str, **changes: Any) -> VelocityEnvCfg:
    cfg = registry.config(f"{robot}_velocity_flat")
    assert isinstance(cfg, VelocityEnvCfg)
    return replace(cfg, **changes)


def _env(cfg: VelocityEnvCfg, num_envs: int = 8) -> ManagerBasedRlEnv:
    return ManagerBasedRlEnv(replace(cfg, num_threads=1), num_envs=num_envs, seed=0)


@pytest.fixture(scope="module")
def randomized() -> Iterator[dict[str, ManagerBasedRlEnv]]:
    """The tasks as they are, for tests that only reset and step them."""
    envs = {robot: _env(_cfg(robot), 32) for robot in ROBOTS}
    yield envs
    for env in envs.values():
        env.close()


@pytest.fixture(scope="module")
def nominal() -> Iterator[dict[str, ManagerBasedRlEnv]]:
    """The tasks without randomization, for tests that only reset and step them."""
    envs = {robot: _env(_cfg(robot, randomize=False)) for robot in ROBOTS}
    yield envs
    for env in envs.values():
        env.close()


def _starting(robot: str, **offset: float) -> VelocityEnvCfg:
    """The nominal task with every episode at its home pose moved by ``offset``, at rest."""
    cfg = _cfg(robot, randomize=False)
    pose = {axis: (value, value) for axis, value in offset.items()}
    base, joints = cfg.events["reset_base"], cfg.events["reset_joints"]
    still: dict[str, Any] = {"position_range": (0.0, 0.0), "velocity_range": (0.0, 0.0)}
    events = {
        "reset_base": replace(base, params={"pose_range": pose, "velocity_range": {}}),
        "reset_joints": replace(joints, params=still),
    }
    return replace(cfg, events=events)


def _commanding(cfg: VelocityEnvCfg, x: float) -> VelocityEnvCfg:
    ranges = mdp.UniformVelocityCommandCfg.Ranges(
        lin_vel_x=(x, x), lin_vel_y=(0.0, 0.0), ang_vel_z=(0.0, 0.0)
    )
    command = replace(cfg.commands["base_velocity"], ranges=ranges, rel_standing_envs=0.0)
    return replace(cfg, commands={"base_velocity": command})


def _still(env: ManagerBasedRlEnv, steps: int) -> TensorDictBase:
    zero = torch.zeros(env.num_envs, env.action_manager.action_dim)
    return env.rollout(steps, lambda td: td.set("action", zero), break_when_any_done=False)


@both
def test_height_and_linear_velocity_change_critic_but_not_obs(robot: str) -> None:
    cfg = _commanding(_starting(robot), 0.0)
    params = {
        "pose_range": dict.fromkeys(("x", "y", "z"), (0.0, 0.5)),
        "velocity_range": dict.fromkeys(("x", "y", "z"), (-1.0, 1.0)),
    }
    base = replace(cfg.events["reset_base"], params=params)
    env = _env(replace(cfg, events={**cfg.events, "reset_base": base}))
    data = env.reset()
    env.close()
    privileged = data["critic"][:, data["obs"].shape[1] :]

    torch.testing.assert_close(data["obs"], data["obs"][:1].expand(8, -1), rtol=0, atol=1e-6)
    assert privileged[:, :4].std(0).min() > 0.05


def _varied(env: ManagerBasedRlEnv) -> dict[str, bool]:
    """Which parameters differ between the environments."""
    fields = ("body_mass", "body_ipos", "geom_friction", "actuator_gainprm", "actuator_biasprm")
    values = {name: env.backend.expand(name).flatten(1) for name in fields}
    values["encoder_bias"] = env.scene["robot"].data.encoder_bias
    return {name: bool((value != value[:1]).any()) for name, value in values.items()}


@both
def test_environments_differ_in_robot_ground_and_encoders(robot, randomized) -> None:
    assert all(_varied(randomized[robot]).values())


@both
def test_payload_and_friction_leave_other_bodies_and_geoms_alone(robot, randomized) -> None:
    backend = randomized[robot].backend
    mass, friction = backend.expand("body_mass"), backend.expand("geom_friction")[..., 0]
    heavier = (mass != mass[:1]).any(0).nonzero().flatten()
    slippery = (friction != friction[:1]).any(0).nonzero().flatten()
    loaded = {"go2": ["base"], "g1": ["torso_link"]}[robot]

    assert [backend.bodies[i] for i in heavier] == loaded
    assert all("foot" in backend.geoms[i].name + backend.geoms[i].body for i in slippery)


@both
def test_some_robots_act_a_step_late_and_are_pushed(robot: str) -> None:
    cfg = _cfg(robot)
    push = replace(cfg.events["push"], interval_range_s=(0.02, 0.02))
    env = _env(replace(cfg, events={**_starting(robot).events, "push": push}), 32)
    root = env.reset()
    full = torch.ones(32, env.action_manager.action_dim)
    after = env.step(root.set("action", full))["next"]
    moved = env.backend.get_state_views()["ctrl"] - env.backend.default_ctrl
    late = moved.abs().amax(1) < 1e-3
    env.close()

    assert 0 < late.sum() < 32
    velocity = after["critic"][:, after["obs"].shape[1] :][:, :2] / 2.0
    assert velocity.std(0).min() > 0.2


@both
def test_without_randomization_robots_are_alike_and_sensors_exact(robot, nominal) -> None:
    env = nominal[robot]
    data = env.rollout(20, break_when_any_done=False)["next"]

    assert not any(_varied(env).values())
    assert torch.equal(data["obs"], data["critic"][..., : data["obs"].shape[-1]])
    assert {term.mode for term in env.cfg.events.values()} == {"reset"}


@both
def test_tracking_and_steps_pay_and_everything_else_costs(robot, nominal) -> None:
    env = nominal[robot]
    env.reset()
    env.rollout(10, break_when_any_done=False)
    manager = env.reward_manager
    sums = dict(zip(manager.term_names, manager.episode_sums.mean(1).tolist(), strict=True))
    pays = {"track_lin_vel_xy", "track_ang_vel_z", "alive"} & set(sums)
    sums.pop("feet_air_time")  # Go2's is negative while its steps are short

    assert {name for name, value in sums.items() if value > 0} == pays, sums


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

    assert paid[0.0].min() > 1.5 * paid[0.8].max()


def _causes(cfg: VelocityEnvCfg) -> set[str]:
    """Terms that end every episode at its first step, on a floor without contacts."""
    model = scene_model(cfg.scene)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    backend = MujocoBackend(model, 8, num_threads=1, keyframe="home")
    env = ManagerBasedRlEnv(cfg, num_envs=8, seed=0, backend=backend)
    data = _still(env, 1)
    names = env.termination_manager.term_names
    fired = {n for n, d in zip(names, env.termination_manager.term_dones, strict=True) if d.all()}
    assert bool(data["next", "terminated"].all()) == bool(fired)
    env.close()
    return fired


@pytest.mark.parametrize(
    ("robot", "offset", "fired"),
    [
        ("go2", {}, set()),
        ("g1", {}, set()),
        ("go2", {"x": 100.0, "y": -100.0, "yaw": 3.0}, set()),
        ("go2", {"z": 0.13 - HOME_HEIGHT["go2"]}, {"too_low"}),
        ("g1", {"z": 0.43 - HOME_HEIGHT["g1"]}, {"too_low"}),
        # Half a metre up, so that the height does not count.
        ("go2", {"z": 0.5, "roll": math.radians(63)}, {"tilted"}),
        ("go2", {"z": 0.5, "pitch": math.radians(57)}, set()),
        ("g1", {"z": 0.5, "pitch": math.radians(53)}, {"tilted"}),
        ("g1", {"z": 0.5, "roll": math.radians(47)}, set()),
    ],
)
def test_a_low_or_tilted_root_terminates(robot: str, offset: dict, fired: set) -> None:
    assert _causes(_starting(robot, **offset)) == fired
