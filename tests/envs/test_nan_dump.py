"""Dumps of the NaN guard and their replay, for failures in each part of a step."""

import re

import pytest
import torch
from envs.tables import act, drive, twins_cfg
from envs.test_nan_guard import fail, guarded

from unilab.envs import (
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    writes,
)
from unilab.envs.nan_guard import load_dump, replay_dump
from unilab.errors import ConfigError, NonFiniteError


@writes("body_mass")
def weigh(env, env_ids):
    """Another mass at every call, and NaN once it has been told to."""
    mass = env.scene.nominal("body_mass")[2] * (1.0 + env.common_step_counter + env_ids.double())
    mass[env_ids == getattr(env, "spoilt", -1)] = torch.nan
    env.scene.write_field("body_mass", (torch.tensor([2]),), mass.unsqueeze(1))


def test_a_reset_that_stages_nan_names_its_event_leaves_a_dump_and_writes_nothing(tmp_path):
    def lie_down(env, env_ids):
        env.scene["twins"].write_joint_state(*torch.zeros(2, len(env_ids), 2))

    events = {
        "lie_down": EventTermCfg(func=lie_down, mode="reset"),
        "weigh": EventTermCfg(func=weigh, mode="reset"),
    }
    env, twin = guarded(tmp_path, events=events), guarded(tmp_path, events=events)
    for each in (env, twin):
        drive(each, 3)
        each.reset(env_ids=torch.tensor([0, 4]))  # which writes new masses
    env.spoilt = 4
    with pytest.raises(NonFiniteError, match="body_mass") as caught:
        env.reset(env_ids=torch.tensor([1, 4]))
    path = tmp_path / "dumps" / "nan_dump_3.pt"
    assert "'weigh'" in caught.value.__notes__[0]
    assert f"unilab replay-dump {path}" in caught.value.__notes__[1]
    report = replay_dump(path).report.splitlines()
    assert report[1].startswith("row 4: physics is finite after the last step, the same as then")
    env.spoilt = -1
    for field in ("body_mass", "dof_invweight0"):  # what is written, and what follows from it
        assert torch.equal(env.backend.expand(field), twin.backend.expand(field))
    assert torch.equal(env.generator.get_state(), twin.generator.get_state())
    assert (env.reset()["obs"] == twin.reset()["obs"]).all()


@pytest.mark.parametrize("mode", ["interval", "reset"])
def test_a_step_is_repeated_as_it_was_whatever_wrote_to_its_rows_since(tmp_path, mode):
    """Positions, velocities and a mass are written after the step's physics."""

    def elsewhere(env, env_ids):
        value = torch.full((len(env_ids), 2), 0.1)
        env.scene["twins"].write_joint_state(value, value)
        weigh(env, env_ids)

    period = (0.02, 0.02) if mode == "interval" else None
    event = EventTermCfg(func=writes("body_mass")(elsewhere), mode=mode, interval_range_s=period)

    def spoilt(env):  # in the step with the write, or in the observation after the reset
        at = env.common_step_counter == 5 and (mode == "interval" or not env.episode_length.any())
        return torch.full((env.num_envs, 1), torch.nan if at else 0.0)

    terms = dict(twins_cfg(tmp_path).observations["obs"].terms)
    terms["spoilt"] = ObservationTermCfg(func=spoilt)
    env = guarded(
        tmp_path,
        events={"elsewhere": event},
        observations={"obs": ObservationGroupCfg(terms=terms)},
    )
    with pytest.raises(NonFiniteError, match="obs"):
        drive(env, 6)
    path = tmp_path / "dumps" / "nan_dump_5.pt"
    for line in replay_dump(path).report.splitlines()[1:]:
        assert ": physics is finite after the last step, the same as then, bit for bit" in line
        assert "; an event or a reset wrote to it since, and it was finite; " in line
    dump = load_dump(path)
    dump["models"].reverse()  # so the mass does matter
    torch.save(dump, path)
    assert "NOT the same as then" in replay_dump(path).report


def test_a_failure_before_the_first_step_is_told_as_one(tmp_path):
    def spoilt(env):
        return torch.full((env.num_envs, 1), getattr(env, "spoilt", 0.0))

    terms = {"spoilt": ObservationTermCfg(func=spoilt)}
    env = guarded(tmp_path, observations={"obs": ObservationGroupCfg(terms=terms)})
    env.spoilt = torch.nan
    with pytest.raises(NonFiniteError):
        env.reset()
    report = replay_dump(tmp_path / "dumps" / "nan_dump_0.pt").report.splitlines()
    assert report[1].startswith("row 0: it had taken no step")


def test_the_largest_values_say_what_they_are(tmp_path):
    env = guarded(tmp_path)
    root = act(env, env.reset())
    env.step(root)
    env.backend.get_state_views()["qvel"][3, 1] = -1e4
    env.step(root)
    env.backend.get_state_views()["qpos"][3, 0] = torch.inf
    with pytest.raises(NonFiniteError):
        env.step(root)
    line = replay_dump(tmp_path / "dumps" / "nan_dump_2.pt").report.splitlines()[1]
    told = line.partition("; largest value of each of the last states before it: ")[2].split(", ")
    assert told[1:] == ["qvel[1] -1e+04", "qpos[0] inf"]
    assert re.fullmatch(r"qvel\[[01]\] \S+", told[0])


def test_a_damaged_dump_is_refused_with_its_row(tmp_path):
    fail(guarded(tmp_path), [5])
    path = tmp_path / "dumps" / "nan_dump_3.pt"
    dump = torch.load(path)
    dump["models"] = [dump["models"][0][:100]]
    torch.save(dump, path)
    with pytest.raises(ConfigError, match=r"nan_dump_3.pt: row 5"):
        replay_dump(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ConfigError, match=str(path)):
        replay_dump(path)


def test_a_dump_that_cannot_be_written_does_not_hide_the_error(tmp_path):
    (tmp_path / "dumps").write_text("a file in the place of the folder")
    assert fail(guarded(tmp_path), [5]).rows == [5]
