"""A reset is one transaction: before its commit it changes nothing, after it there is no way back.

0011-C11 to C13, with resets and observations that really fail.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from envs.tables import ON_TWINS, act, drive, go2, physics_state, twins, twins_cfg

from unilab.envs import EventTermCfg, ManagerBasedRlEnv, ObservationTermCfg, RewardTermCfg
from unilab.envs.managers.term import writes
from unilab.envs.transaction import StagedWrite, Transaction
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
    # Draws and stages before it fails: the worst moment.
    torch.rand(3, generator=env.generator)
    env.scene["twins"].write_joint_state(*torch.zeros(2, len(env_ids), 2))
    fuse.check()


def fused_value(env, fuse, asset_cfg=None):
    fuse.check()
    return torch.zeros(env.num_envs, 1)


def fused_rate(env, fuse):
    fuse.check()
    return torch.zeros(env.num_envs)


def with_event(folder, fuse, **kwargs) -> ManagerBasedRlEnv:
    cfg = twins_cfg(folder)
    event = EventTermCfg(
        func=fused_event, params={"fuse": fuse, **ON_TWINS}, **{"mode": "reset", **kwargs}
    )
    return ManagerBasedRlEnv(replace(cfg, events={**cfg.events, "fuse": event}), num_envs=4, seed=0)


def with_observation(folder, fuse) -> ManagerBasedRlEnv:
    cfg = twins_cfg(folder)
    term = ObservationTermCfg(func=fused_value, params={"fuse": fuse})
    group = replace(cfg.observations["obs"], terms={**cfg.observations["obs"].terms, "fuse": term})
    return ManagerBasedRlEnv(replace(cfg, observations={"obs": group}), num_envs=4, seed=0)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failure_before_the_commit_leaves_the_environment_as_it_was(tmp_path, error):
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
    # It goes on as if nothing had been tried.
    fuse.blown = False
    assert torch.equal(drive(env, 8)["obs"], drive(other, 8)["obs"])


def test_a_reset_of_done_rows_that_fails_before_its_commit_can_be_made_again(tmp_path):
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


def test_a_staged_state_that_is_not_finite_is_refused_whole(tmp_path):
    rows: list[int] = []
    event = EventTermCfg(func=stage_nan, mode="reset", params={"rows": rows})
    env = twins(tmp_path, events={"bad": event})
    drive(env, 3)
    physics = physics_state(env)
    rows.append(2)
    with pytest.raises(
        NonFiniteError, match=r"staged non-finite state for rows \[2\]: nothing was"
    ):
        env.reset()
    assert torch.equal(physics_state(env), physics)
    rows.clear()
    assert env.reset()["obs"].isfinite().all()


def test_a_failure_after_the_commit_faults_the_environment(tmp_path):
    fuse = Fuse()
    env = with_observation(tmp_path, fuse)
    root = act(env, env.reset())
    env.step(root)
    fuse.blown = True
    with pytest.raises(ZeroDivisionError, match="the fuse has blown"):
        env.reset()
    fuse.blown = False
    for call in (env.reset, lambda: env.step(root)):
        with pytest.raises(
            EnvFaultedError,
            match=r"failed earlier, in a reset after 1 control steps "
            r"\(ZeroDivisionError: the fuse has blown\); its state is undefined: make a new one",
        ):
            call()


def test_a_failure_once_physics_has_moved_faults_the_environment(tmp_path):
    fuse = Fuse()
    env = twins(
        tmp_path,
        rewards={"fuse": RewardTermCfg(func=fused_rate, weight=1.0, params={"fuse": fuse})},
    )
    root = act(env, env.reset())
    fuse.blown = True
    with pytest.raises(ZeroDivisionError) as caught:
        env.step(root)
    assert "in a step after 1 control steps and can no longer be used" in caught.value.__notes__[0]
    with pytest.raises(EnvFaultedError, match="in a step after 1 control steps") as later:
        env.reset()
    assert later.value.__cause__ is caught.value


def test_a_faulted_environment_can_still_be_saved_and_closed(tmp_path):
    fuse = Fuse()
    env = with_observation(tmp_path, fuse)
    root = act(env, env.reset())
    fuse.blown = True
    with pytest.raises(ZeroDivisionError):
        env.step(root)
    assert env.export_training_state() == {"version": 1, "control_steps": 1}
    env.close()


def test_an_interval_event_that_fails_faults_the_environment(tmp_path):
    fuse = Fuse()
    env = with_event(tmp_path, fuse, mode="interval", interval_range_s=(0.02, 0.02))
    root = act(env, env.reset())
    fuse.blown = True
    with pytest.raises(ZeroDivisionError):
        env.step(root)
    with pytest.raises(EnvFaultedError, match="the fuse has blown"):
        env.reset()


def test_physics_that_raises_faults_the_environment_with_rows_and_message(tmp_path):
    env = twins(tmp_path)
    root = act(env, env.reset())
    env.backend.expand("eq_type")[[1, 3]] = 99  # a constraint type that MuJoCo does not know
    message = r"MuJoCo raised in 2 of 4 environments \(rows 1, 3\): .*constraint"
    with pytest.raises(EnvFaultedError, match=message):
        env.step(root)
    with pytest.raises(EnvFaultedError, match=rf"failed earlier.*{message}"):
        env.reset()


def test_physics_that_diverges_faults_the_environment_with_fields_and_rows(tmp_path):
    env = twins(tmp_path)
    root = act(env, env.reset())
    env.backend.get_state_views()["qpos"][3] = torch.nan
    with pytest.raises(NonFiniteError, match=r"non-finite values.*'twins.joint_pos': \[3\]"):
        env.step(root)
    with pytest.raises(EnvFaultedError, match="failed earlier"):
        env.step(root)


def test_state_can_be_written_only_while_an_event_runs(tmp_path):
    env = twins(tmp_path)
    env.reset()
    with pytest.raises(ConfigError, match="state can be written only by an event term"):
        env.scene["twins"].write_joint_state(torch.zeros(2), torch.zeros(2))


def test_an_event_that_cannot_run_fails_at_construction(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with_event(tmp_path, Fuse(blown=True))


@writes("body_mass")
def write_masses(env, env_ids, index, shape, on, asset_cfg=None):
    env.scene.write_field("body_mass", (torch.tensor([1]),), torch.full((len(env_ids), 1), 5.0))
    if on:
        env.scene.write_field("body_mass", index, torch.ones(shape))


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        ((torch.tensor([1, 2]),), (4, 3), r"values of shape \(4, 3\): expected \(4, 2\)"),
        ((torch.tensor([1, 2]),), (1, 2), r"values of shape \(1, 2\): expected \(4, 2\)"),
        ((torch.tensor([1, 9]),), (4, 2), r"at \[1, 9\]: expected indices below 4"),
        ((torch.tensor([1]), 0), (4, 1), "with 2 indices: it has 1"),
        ((torch.tensor([True]),), (4, 1), r"expected indices \[m\]"),
        (([1, 2],), (4, 2), r"at \[1, 2\]: expected indices \[m\]"),
        ((torch.tensor([[1]]),), (4, 1), r"at tensor\(\[\[1\]\]\): expected indices \[m\]"),
    ],
)
def test_a_write_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path, index, shape, message
):
    on: list[int] = []
    params = {"index": index, "shape": shape, "on": on}
    env = twins(
        tmp_path, events={"w": EventTermCfg(func=write_masses, mode="reset", params=params)}
    )
    env.reset()
    mass, physics = env.backend.expand("body_mass"), physics_state(env)
    mass[:] = 1.0
    on.append(1)
    with pytest.raises(ConfigError, match=f"body_mass was written .*{message}"):
        env.reset()
    assert (mass == 1.0).all()
    assert torch.equal(physics_state(env), physics)
    on.clear()
    env.reset()
    assert (mass[:, 1] == 5.0).all()


ROW, ROWS = torch.zeros(2), torch.zeros(4, 2)
WRITES = {
    "one row for all": ((ROW, ROWS), r"joint position was written with \(2,\)"),
    "one velocity": ((ROWS, ROWS[:, :1]), r"joint velocity was written with \(4, 1\)"),
    "more columns": ((torch.zeros(4, 3), ROWS), r"joint position .* with \(4, 3\)"),
    "a number": ((0.0, ROWS), "joint position was written with float"),
}


@pytest.mark.parametrize("what", WRITES)
def test_joints_are_written_a_row_for_each_environment(tmp_path, what):
    """Not one row for all, as PyTorch would broadcast it."""
    values, message = WRITES[what]

    def write(env, env_ids):
        env.scene["twins"].write_joint_state(*values)

    with pytest.raises(
        ConfigError, match=rf"^event term 'bad': {message}: expected a tensor of sh"
    ):
        twins(tmp_path, events={"bad": EventTermCfg(func=write, mode="reset")})


def test_some_joints_are_written_by_their_columns(tmp_path):
    def write(env, env_ids, joints=(1,)):
        value = torch.full((len(env_ids), len(joints)), 0.5)
        env.scene["twins"].write_joint_state(value, value, torch.tensor(joints))

    env = twins(tmp_path, events={"half": EventTermCfg(func=write, mode="reset")})
    env.reset()
    assert env.scene["twins"].data.joint_vel.tolist() == [[0.0, 0.5]] * 4
    out = EventTermCfg(func=write, mode="reset", params={"joints": (0, 2)})
    with pytest.raises(
        ConfigError, match=r"joint_ids are tensor\(\[0, 2\]\): 'twins' has 2 joints"
    ):
        twins(tmp_path, events={"out": out})


ROOT_WRITES = {
    "root position": ("write_root_pose", (torch.zeros(3), torch.zeros(4, 4))),
    "root quaternion": ("write_root_pose", (torch.zeros(4, 3), torch.zeros(1, 4))),
    "root linear velocity": ("write_root_velocity", (0.0, torch.zeros(4, 3))),
    "root angular velocity": ("write_root_velocity", (torch.zeros(4, 3), torch.zeros(3))),
}


@pytest.mark.parametrize("length", [0.5, 2.0])
def test_the_length_of_a_root_quaternion_does_not_matter(length):
    """MuJoCo brings it to 1 for itself; terms see what was written."""

    def write(env, env_ids):
        quat = torch.tensor([[0.8, 0.6, 0.0, 0.0]]).expand(len(env_ids), -1) * length
        env.scene["robot"].write_root_pose(torch.ones(len(env_ids), 3), quat)

    env = go2(events={"turned": EventTermCfg(func=write, mode="reset")})
    env.reset()
    gravity = env.scene["robot"].data.projected_gravity_b
    torch.testing.assert_close(gravity, torch.tensor([0.0, -0.96, -0.28]).expand(4, 3))


@pytest.mark.parametrize("what", ROOT_WRITES)
def test_a_root_is_written_a_row_for_each_environment(what):
    method, values = ROOT_WRITES[what]

    def write(env, env_ids):
        getattr(env.scene["robot"], method)(*values)

    with pytest.raises(
        ConfigError, match=rf"^event term 'bad': {what} was written with .*: expect"
    ):
        go2(events={"bad": EventTermCfg(func=write, mode="reset")})


def test_indices_of_different_lengths_are_refused_and_one_goes_with_any():
    transaction = Transaction(torch.arange(3), torch.zeros(3, 1), torch.zeros(3, 1), reset=True)
    field = torch.zeros(5, 4, 4)

    def stage(first: torch.Tensor, second: torch.Tensor | int, width: int) -> None:
        value = torch.ones(3, width)
        transaction.stage(StagedWrite(field, (first, second), value, "field", derives=False))

    with pytest.raises(ConfigError, match="field was written at 3 and 2 indices: give as many"):
        stage(torch.arange(2), torch.arange(3), 3)
    stage(torch.arange(2), torch.arange(2), 2)
    stage(torch.arange(2), torch.tensor([1]), 2)
    stage(torch.tensor([1]), torch.arange(4), 4)
    stage(torch.arange(3), 2, 3)
    for write in transaction.writes:  # what was taken can be written
        field[(transaction.rows.unsqueeze(1), *write.index)] = write.value
