"""Checkpoints: complete, atomic, rotated, refused whole."""

from __future__ import annotations

import copy
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from unilab.errors import CheckpointError, ConfigError
from unilab.trainers import Checkpointer, Counters, checkpoint

TICKS = 20


def test_after_loading_everything_is_bit_for_bit_what_was_saved(session, differing):
    saved = session()
    counters = saved.train(TICKS)
    assert saved.learner.update_count > 0
    state = saved.state()

    loaded = session(seed=1)
    assert differing(state, loaded.state())
    back = loaded.checkpointer.load()

    assert differing(state, loaded.state()) == []
    assert back == counters
    assert back.frames == 4 * TICKS


def test_a_resumed_run_continues_bit_for_bit_with_new_episodes(session, differing):
    straight = session()
    counters = straight.train(TICKS)
    resumed = session(seed=1)
    resumed_counters = resumed.checkpointer.load()

    # Episodes are not saved: both start new ones, from the same seed.
    states = []
    for run, at in ((straight, counters), (resumed, resumed_counters)):
        resumed_rng = torch.get_rng_state()
        run.env.set_seed(7)
        run.train(TICKS, at, save=False)
        states.append(run.state())
        torch.set_rng_state(resumed_rng)

    assert states[0][".learner.update_count"] > TICKS
    assert differing(*states) == []


def test_without_replay_contents_the_rest_is_restored(session, differing):
    saved = session(save_replay=False)
    saved.train(TICKS)
    loaded = session(seed=1, save_replay=False)
    loaded.checkpointer.load()
    different = differing(saved.state(), loaded.state())
    assert len(loaded.buffer) == 0
    assert all(path.startswith(".replay.") for path in different)


def test_replay_contents_may_be_absent_from_a_checkpoint(session):
    session(save_replay=False).train(TICKS)
    loaded = session(seed=1, save_replay=True)
    assert loaded.checkpointer.load().frames == 4 * TICKS
    assert len(loaded.buffer) == 0


@pytest.mark.parametrize(("before", "then"), [(1, 3), (3, 1)])
def test_a_replay_buffer_of_another_n_step_is_refused(session, before, then):
    session(n_step=before).train(TICKS)
    other = session(seed=1, n_step=then)
    other.checkpointer.load()
    with pytest.raises(ConfigError, match="n_step"):
        other.train(TICKS)


def test_only_the_newest_are_kept(session, tmp_path):
    run = session(keep=2)
    for frames in (10, 20, 30):
        run.checkpointer.save(Counters(frames=frames))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert [int(name.split("-")[1]) for name in names] == [20, 30]
    assert run.checkpointer.latest().name == names[-1]


def test_saving_twice_at_one_step_replaces_the_checkpoint(session):
    run = session()
    run.checkpointer.save(Counters(frames=10, minutes=1.0))
    run.checkpointer.save(Counters(frames=10, minutes=2.0))
    assert run.checkpointer.load().minutes == 2.0


def test_an_empty_folder_cannot_be_continued(session):
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        session().checkpointer.load()


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"task": "cartpole_swingup"}, "task"),
        ({"obs_groups": {"obs": 4}}, "obs_groups.obs"),
        ({"critic_obs": "critic"}, "critic_obs"),
        ({"checkpoint_version": 2}, "checkpoint_version"),
        ({"hidden_dim": 16}, "actor_semantics.kwargs.hidden_dim"),
        ({"critic_dim": 16}, "shape"),
        ({"v_max": 16.0}, "v_max"),
    ],
)
def test_a_checkpoint_of_another_run_or_network_is_refused_whole(session, differing, changed, name):
    session().train(TICKS)
    other = session(seed=1, **changed)
    before = other.state()
    with pytest.raises(CheckpointError, match=name):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


def test_a_checkpoint_without_identity_is_refused(session, tmp_path):
    run = session()
    Checkpointer(tmp_path / "checkpoints", {"learner": run.learner}, identity={}).save(Counters())
    with pytest.raises(CheckpointError, match="checkpoint_version"):
        run.checkpointer.load()


@pytest.mark.parametrize(
    ("component", "damage"),
    [
        *((name, "truncated") for name in ("learner", "rewards", "env", "replay", "rng")),
        ("counters", "truncated"),
        ("learner", "emptied"),
        ("learner", "removed"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_loaded(session, differing, component, damage):
    run = session()
    run.train(TICKS)
    path = run.checkpointer.latest()
    (file,) = path.glob(f"components/*-{component}/state.pt")
    if damage == "removed":
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"")
    before = run.state()
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        run.checkpointer.load()
    assert differing(before, run.state()) == []


def test_the_checkpoint_before_a_removed_one_is_loaded(session):
    run = session()
    run.train(TICKS, checkpoint_interval=4 * TICKS // 2)
    shutil.rmtree(run.checkpointer.latest())
    assert session(seed=1).checkpointer.load().frames == 4 * TICKS // 2


@pytest.mark.parametrize(
    "state",
    [
        {"version": 2, "control_steps": 5},
        {"version": 1, "control_steps": -1},
        {"version": 1, "control_steps": True},
        {"version": 1, "control_steps": 2.0},
        {"version": 1},
    ],
)
def test_a_wrong_env_training_state_is_refused_whole(session, differing, state):
    run = session()
    run.env.export_training_state = lambda: state
    run.checkpointer.save(Counters(frames=1))
    other = session(seed=1)
    before = other.state()
    with pytest.raises(CheckpointError, match=r"version|control_steps"):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


class Constant:
    """A component whose state never changes."""

    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state

    def load_state_dict(self, state: object) -> None:
        torch.rand(1)  # as a component that initialises weights


@pytest.mark.parametrize(
    "counters",
    [
        [1, 2],
        None,
        5,
        {},
        {"frames": 1},
        {"frames": 1, "minutes": 0.0, "hours": 1},
        {"frames": "a", "minutes": 0.0},
        {"frames": True, "minutes": 0.0},
        {"frames": -5, "minutes": 0.0},
        {"frames": 1, "minutes": float("nan")},
        {"frames": 1, "minutes": -1.0},
    ],
)
def test_invalid_counters_are_refused_before_anything_is_loaded(
    session, differing, counters, monkeypatch
):
    run = session()
    monkeypatch.setattr(checkpoint.dataclasses, "asdict", lambda counters_: counters)
    run.checkpointer.save(Counters(frames=1))
    monkeypatch.undo()
    other = session(seed=1)
    before = other.state()
    with pytest.raises(CheckpointError, match="counters"):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


def tensor(path: str, change):
    """A learner's state with one tensor of it changed."""

    def changed(state: dict) -> None:
        *keys, last = path.split("/")
        for key in keys:
            state = state[int(key) if key.isdigit() else key]
        state[last] = change(state[last])

    return changed


WEIGHT, MOMENT = "loss/actor.mean_head.weight", "optimizers/actor/0/exp_avg"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (tensor(WEIGHT, torch.Tensor.double), "mean_head.weight"),
        (tensor(WEIGHT, torch.Tensor.to_sparse), "mean_head.weight"),
        (tensor(WEIGHT, lambda w: w * torch.nan), "mean_head.weight"),
        (tensor(WEIGHT, lambda w: "w"), "mean_head.weight"),
        (tensor(MOMENT, lambda m: m[:1]), "exp_avg"),
        (tensor(MOMENT, lambda m: m / 0), "exp_avg"),
        (tensor("update_count", lambda n: -3), "update_count"),
        (tensor("update_count", lambda n: "x"), "update_count"),
        (tensor("schedules/actor", lambda n: -1), "actor"),
        (tensor("schedules", lambda s: None), "schedules"),
        (tensor("loss", lambda s: None), "loss"),
        (tensor("optimizers", lambda s: "a"), "optimizers"),
    ],
)
def test_a_wrong_learner_state_is_refused_before_anything_is_loaded(
    session, differing, change, name
):
    run = session()
    run.train(TICKS)
    state = copy.deepcopy(run.learner.state_dict())
    change(state)
    run.learner.state_dict = lambda: state
    run.checkpointer.save(Counters(frames=1000))
    other = session(seed=1)
    before = other.state()
    with pytest.raises(CheckpointError, match=f"does not fit this run: .*{name}"):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


def test_a_state_of_another_structure_is_refused(session, differing):
    run = session()
    run.checkpointer._components["replay"] = Constant([1])
    run.checkpointer.save(Counters(frames=1))
    other = session(seed=1)
    before = other.state()
    with pytest.raises(CheckpointError, match="replay"):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


def test_an_unknown_component_is_refused(session, tmp_path):
    run = session()
    more = {"learner": run.learner, "gait": torch.nn.Linear(1, 1)}
    identity = run.checkpointer._identity
    Checkpointer(tmp_path / "checkpoints", more, identity=identity).save(Counters(frames=1))
    with pytest.raises(CheckpointError, match="gait"):
        run.checkpointer.load()


@pytest.mark.parametrize("state", [{"n": np.float64(3)}, {"n": threading.Lock()}, Counters()])
def test_a_state_that_could_not_be_loaded_is_not_saved(tmp_path, state):
    checkpointer = Checkpointer(tmp_path, {"gait": Constant(state)}, identity={})
    with pytest.raises(CheckpointError, match="gait"):
        checkpointer.save(Counters(frames=1))
    assert list(tmp_path.iterdir()) == []


def test_the_random_generators_are_restored_last(tmp_path):
    checkpointer = Checkpointer(tmp_path, {"a": Constant(1), "z": Constant(1)}, identity={})
    checkpointer.save(Counters(frames=1))
    expected = torch.rand(3)
    checkpointer.load()
    assert torch.equal(torch.rand(3), expected)


def test_a_component_that_refuses_its_state_leaves_all_unchanged(session, differing):
    session().train(TICKS)
    other = session(seed=1)
    before = other.state()

    take = other.env.import_training_state

    def refuse_once(state):
        other.env.import_training_state = take
        raise ValueError("not these counters")

    # Learner and rewards have loaded their new states before the environment refuses.
    other.env.import_training_state = refuse_once
    with pytest.raises(CheckpointError, match="not these counters"):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


def test_a_folder_that_cannot_be_written_is_a_checkpoint_error(tmp_path):
    (tmp_path / "file").write_text("")
    checkpointer = Checkpointer(tmp_path / "file" / "checkpoints", {}, identity={})
    with pytest.raises(CheckpointError, match="checkpoints"):
        checkpointer.save(Counters())


_KILLED_WHILE_SAVING = """
import os, signal, sys, torch
from unilab.trainers import Checkpointer, Counters

checkpointer = Checkpointer(sys.argv[1], {"net": torch.nn.Linear(2, 2)}, identity={})
checkpointer.save(Counters(frames=1))
write = torch.save
torch.save = lambda *args, **kwargs: (write(*args, **kwargs), os.kill(os.getpid(), signal.SIGKILL))
checkpointer.save(Counters(frames=2))
"""


def test_a_kill_while_saving_leaves_the_checkpoint_before_it_usable(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED_WHILE_SAVING, str(tmp_path)], capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    checkpointer = Checkpointer(tmp_path, {"net": torch.nn.Linear(2, 2)}, identity={})
    assert checkpointer.load().frames == 1
    assert [path.name for path in tmp_path.glob(".*")]  # what it had staged
    checkpointer.save(Counters(frames=3))
    assert checkpointer.load().frames == 3
    assert not [path.name for path in tmp_path.glob(".*")]
