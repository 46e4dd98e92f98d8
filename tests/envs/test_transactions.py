"""A reset is one transaction (0011-C11 to C13)."""

from dataclasses import dataclass

import pytest
import torch
from envs.tables import ON_TWINS, act, drive, go2, physics_state, twins, twins_cfg

from unilab.envs import EventTermCfg, ObservationGroupCfg, ObservationTermCfg, RewardTermCfg
from unilab.envs.managers.term import writes
from unilab.errors import ConfigError, EnvFaultedError, NonFiniteError


@dataclass
class Fuse:
    """Fails once it is blown: a term of any kind."""

    blown: bool = False
    error: type[BaseException] = ZeroDivisionError

    def check(self) -> None:
        if self.blown:
            raise self.error("the fuse has blown")


def fused_event(env, env_ids, fuse, asset_cfg=None):
    # Draws and stages before it fails.
    torch.rand(3, generator=env.generator)
    env.scene["twins"].write_joint_state(*torch.zeros(2, len(env_ids), 2))
    fuse.check()


def fused_value(env, fuse, asset_cfg=None):
    fuse.check()
    return torch.zeros(env.num_envs, 1)


def fused_rate(env, fuse):
    fuse.check()
    return torch.zeros(env.num_envs)


def with_event(folder, fuse):
    event = EventTermCfg(func=fused_event, mode="reset", params={"fuse": fuse, **ON_TWINS})
    return twins(folder, events={**twins_cfg(folder).events, "fuse": event})


def with_observation(folder, fuse):
    term = ObservationTermCfg(func=fused_value, params={"fuse": fuse})
    return twins(folder, observations={"obs": ObservationGroupCfg(terms={"fuse": term})})


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_c12_a_failure_before_the_commit_changes_nothing(tmp_path, error):
    fuse, spared = Fuse(error=error), Fuse()
    env, other = with_event(tmp_path, fuse), with_event(tmp_path, spared)
    for e in (env, other):
        drive(e, 8)
    physics, generator = physics_state(env), env.generator.get_state()
    lengths, sums = env.episode_length.clone(), env.reward_manager.episode_sums.clone()
    fuse.blown = True
    with pytest.raises(error):
        env.reset()
    assert torch.equal(physics_state(env), physics)
    assert torch.equal(env.generator.get_state(), generator)
    assert torch.equal(env.episode_length, lengths)
    assert torch.equal(env.reward_manager.episode_sums, sums)
    fuse.blown = False
    assert torch.equal(drive(env, 8)["obs"], drive(other, 8)["obs"])


def test_c12_a_failed_reset_of_done_rows_can_be_repeated(tmp_path):
    fuse = Fuse()
    env = with_event(tmp_path, fuse)
    root = act(env, env.reset())
    for _ in range(4):
        _, root = env.step_and_maybe_reset(act(env, root))
    fuse.blown = True
    with pytest.raises(ZeroDivisionError):
        env.step_and_maybe_reset(act(env, root))
    fuse.blown = False
    assert env.episode_length.tolist() == [5, 5, 5, 5]
    root = env.reset()
    assert env.step(act(env, root))["next", "obs"].isfinite().all()


def stage_nan(env, env_ids, asset_cfg=None, rows=()):
    pos = torch.zeros(env_ids.shape[0], 2)
    pos[[i for i, row in enumerate(env_ids.tolist()) if row in rows]] = torch.nan
    env.scene["twins"].write_joint_state(pos, torch.zeros_like(pos))


def test_c24_a_nonfinite_staged_state_is_refused_whole(tmp_path):
    rows: list[int] = []
    event = EventTermCfg(func=stage_nan, mode="reset", params={"rows": rows})
    env = twins(tmp_path, events={"bad": event})
    drive(env, 3)
    physics = physics_state(env)
    rows.append(2)
    with pytest.raises(NonFiniteError, match=r"state.*\[2\]"):
        env.reset()
    assert torch.equal(physics_state(env), physics)
    rows.clear()
    assert env.reset()["obs"].isfinite().all()


def test_c13_a_failure_after_the_commit_faults_the_environment(tmp_path):
    fuse = Fuse()
    env = with_observation(tmp_path, fuse)
    root = act(env, env.reset())
    env.step(root)
    fuse.blown = True
    with pytest.raises(ZeroDivisionError):
        env.reset()
    fuse.blown = False
    for call in (env.reset, lambda: env.step(root)):
        with pytest.raises(EnvFaultedError, match=r"reset after 1 .*ZeroDivisionError: the fuse"):
            call()
    assert env.export_training_state() == {"version": 1, "control_steps": 1}
    env.close()


def test_a_failure_after_physics_faults_the_environment(tmp_path):
    fuse = Fuse()
    env = twins(
        tmp_path,
        rewards={"fuse": RewardTermCfg(func=fused_rate, weight=1.0, params={"fuse": fuse})},
    )
    root = act(env, env.reset())
    fuse.blown = True
    with pytest.raises(ZeroDivisionError) as caught:
        env.step(root)
    with pytest.raises(EnvFaultedError, match="step after 1") as later:
        env.reset()
    assert later.value.__cause__ is caught.value


@writes("body_mass")
def write_masses(env, env_ids, index, shape, on, asset_cfg=None):
    env.scene.write_field("body_mass", (torch.tensor([1]),), torch.full((len(env_ids), 1), 5.0))
    if on:
        env.scene.write_field("body_mass", index, torch.ones(shape))


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        ((torch.tensor([1, 2]),), (1, 2)),
        ((torch.tensor([1, 9]),), (4, 2)),
        ((torch.tensor([1]), 0), (4, 1)),
    ],
)
def test_a_bad_write_is_refused_before_anything_is_written(tmp_path, index, shape):
    on: list[int] = []
    params = {"index": index, "shape": shape, "on": on}
    env = twins(
        tmp_path, events={"w": EventTermCfg(func=write_masses, mode="reset", params=params)}
    )
    env.reset()
    mass, physics = env.backend.expand("body_mass"), physics_state(env)
    mass[:] = 1.0
    on.append(1)
    with pytest.raises(ConfigError, match="body_mass"):
        env.reset()
    assert (mass == 1.0).all()
    assert torch.equal(physics_state(env), physics)
    on.clear()
    env.reset()
    assert (mass[:, 1] == 5.0).all()


@pytest.mark.parametrize("length", [0.5, 2.0])
def test_root_quaternions_are_normalized(length):
    """MuJoCo brings it to 1 for itself; terms see what was written."""

    def write(env, env_ids):
        quat = torch.tensor([[0.8, 0.6, 0.0, 0.0]]).expand(len(env_ids), -1) * length
        env.scene["robot"].write_root_pose(torch.ones(len(env_ids), 3), quat)

    env = go2(events={"turned": EventTermCfg(func=write, mode="reset")})
    env.reset()
    gravity = env.scene["robot"].data.projected_gravity_b
    torch.testing.assert_close(gravity, torch.tensor([0.0, -0.96, -0.28]).expand(4, 3))


ROW, ROWS = torch.zeros(3), torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("method", "values", "name"),
    [
        ("write_joint_state", (torch.zeros(12), torch.zeros(4, 12)), "joint position"),
        ("write_joint_state", (torch.zeros(4, 12), torch.zeros(4, 1)), "joint velocity"),
        ("write_root_pose", (ROW, torch.zeros(4, 4)), "root position"),
        ("write_root_pose", (ROWS, torch.zeros(1, 4)), "root quaternion"),
        ("write_root_velocity", (ROWS, ROW), "root angular velocity"),
    ],
)
def test_state_is_written_a_row_for_each_environment(method, values, name):
    """Not one row for all, as PyTorch would broadcast it."""

    def write(env, env_ids):
        getattr(env.scene["robot"], method)(*values)

    with pytest.raises(ConfigError, match=rf"'bad'.*{name}"):
        go2(events={"bad": EventTermCfg(func=write, mode="reset")})
