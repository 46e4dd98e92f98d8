"""Checkpoints: complete, atomic, rotated, refused whole."""

from __future__ import annotations

import copy
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

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


def test_a_resumed_run_goes_on_bit_for_bit_from_fresh_episodes(session, differing):
    straight = session()
    counters = straight.train(TICKS)
    resumed = session(seed=1)
    resumed_counters = resumed.checkpointer.load()

    # Episodes are not part of a checkpoint: both begin them anew, from the same seed.
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
def test_a_replay_buffer_goes_on_with_the_n_step_that_filled_it(session, before, then):
    session(n_step=before).train(TICKS)
    other = session(seed=1, n_step=then)
    other.checkpointer.load()
    with pytest.raises(ConfigError, match=r"steps_to_next_obs.*also the same n_step"):
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
    with pytest.raises(CheckpointError, match=r"holds no complete checkpoint.*start a new one"):
        session().checkpointer.load()


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"task": "cartpole_swingup"}, "task is 'pendulum_swingup' there and 'cartpole_swingup'"),
        ({"obs_groups": {"obs": 4}}, "obs_groups.obs is 3 there and 4 here"),
        ({"critic_obs": "critic"}, "critic_obs is 'obs' there and 'critic' here"),
        ({"checkpoint_version": 2}, "checkpoint_version is 1 there and 2 here"),
        ({"actor_semantics": {"action_dim": 2}}, "actor_semantics.action_dim is 1 there and 2"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_whole(session, differing, identity, message):
    session().train(TICKS)
    other = session(seed=1, **identity)
    before = other.state()
    with pytest.raises(CheckpointError, match=message):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


def test_a_checkpoint_without_identity_is_refused(session, tmp_path):
    run = session()
    nameless = Checkpointer(tmp_path / "checkpoints", {"learner": run.learner}, identity={})
    nameless.save(Counters(frames=1))
    with pytest.raises(CheckpointError, match=r"checkpoint_version is missing there and 1 here"):
        run.checkpointer.load()


@pytest.mark.parametrize(
    ("width", "message"),
    [
        ("hidden_dim", r"actor_semantics.kwargs.hidden_dim is 8 there and 16 here"),
        ("critic_dim", r"has shape \[.*\] there and \[.*\] here"),
        ("v_max", r"support is that of v_min=-5, v_max=5 in the checkpoint, of v_min=-5, v_max=16"),
    ],
)
def test_networks_of_other_settings_are_refused_whole(session, differing, width, message):
    session().train(TICKS)
    wider = session(seed=1, **{width: 16})
    before = wider.state()
    with pytest.raises(CheckpointError, match=message):
        wider.checkpointer.load()
    assert differing(before, wider.state()) == []


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
    with pytest.raises(CheckpointError, match=f"{path} is damaged.*from the one before"):
        run.checkpointer.load()
    assert differing(before, run.state()) == []


def test_after_a_damaged_one_is_removed_the_one_before_continues(session):
    run = session()
    run.train(TICKS, checkpoint_interval=4 * TICKS // 2)
    shutil.rmtree(run.checkpointer.latest())
    assert session(seed=1).checkpointer.load().frames == 4 * TICKS // 2


class _RunsCode:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def test_a_file_that_carries_code_is_refused_and_the_code_does_not_run(session, tmp_path):
    run = session()
    run.train(TICKS)
    (file,) = run.checkpointer.latest().glob("components/*-learner/state.pt")
    marker = tmp_path / "code-ran"
    torch.save(_RunsCode(marker), file)
    with pytest.raises(CheckpointError, match="is damaged"):
        session(seed=1).checkpointer.load()
    assert not marker.exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"version": 2, "control_steps": 5}, "must have version 1"),
        ({"version": 1, "control_steps": -1}, "must be a non-negative integer, got -1"),
        ({"version": 1, "control_steps": True}, "must be a non-negative integer, got True"),
        ({"version": 1, "control_steps": 2.0}, "must be a non-negative integer, got 2.0"),
        ({}, "must have version 1, got {}"),
    ],
)
def test_a_wrong_env_training_state_is_refused_whole(session, differing, state, message):
    run = session()
    run.env.export_training_state = lambda: state
    run.checkpointer.save(Counters(frames=1))
    other = session(seed=1)
    before = other.state()
    with pytest.raises(CheckpointError, match=message):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


class Constant:
    """A component that says one thing, whatever is loaded."""

    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state

    def load_state_dict(self, state: object) -> None:
        torch.rand(1)  # as one that builds what it loads into


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
def test_counters_that_are_none_are_refused_before_anything_is_loaded(
    session, differing, counters, monkeypatch
):
    run = session()
    monkeypatch.setattr(checkpoint.dataclasses, "asdict", lambda counters_: counters)
    run.checkpointer.save(Counters(frames=1))
    monkeypatch.undo()
    other = session(seed=1)
    before = other.state()
    with pytest.raises(
        CheckpointError, match=r"counters.* (there|expected|differs).*Nothing was loaded"
    ):
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
    ("change", "message"),
    [
        (tensor(WEIGHT, torch.Tensor.long), "mean_head.weight has .*int64.* there and .*float32"),
        (tensor(WEIGHT, torch.Tensor.double), "mean_head.weight has .*float64"),
        (tensor(WEIGHT, lambda w: w + 0j), "mean_head.weight has .*complex64"),
        (tensor(WEIGHT, torch.Tensor.to_sparse), "mean_head.weight has .*sparse"),
        (tensor(WEIGHT, lambda w: w * torch.nan), "mean_head.weight holds NaN or infinity"),
        (tensor(WEIGHT, lambda w: "w"), "mean_head.weight is str there and a tensor here"),
        (tensor(MOMENT, lambda m: m[:1]), r"moments.0.exp_avg has shape \[1\] there"),
        (tensor(MOMENT, lambda m: m / 0), "moments.0.exp_avg holds NaN or infinity"),
        (tensor("update_count", lambda n: -3), "counts are .*'update_count': -3.* at least 0"),
        (tensor("update_count", lambda n: "x"), "update_count is str there and int here"),
        (tensor("schedules/actor", lambda n: -1), "counts are .*'actor': -1.* at least 0"),
        (tensor("schedules", lambda s: None), "schedules is NoneType there and a mapping here"),
        (tensor("loss", lambda s: None), "loss is NoneType there and a mapping here"),
        (tensor("optimizers", lambda s: "a"), "optimizers is str there and a mapping here"),
    ],
)
def test_a_learner_state_of_wrong_kind_is_refused_before_anything_is_loaded(
    session, differing, change, message
):
    run = session()
    run.train(TICKS)
    state = copy.deepcopy(run.learner.state_dict())
    change(state)
    run.learner.state_dict = lambda: state
    run.checkpointer.save(Counters(frames=1000))
    other = session(seed=1)
    before = other.state()
    with pytest.raises(CheckpointError, match=f"does not fit this run: .*{message}.*Nothing was"):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


def test_a_state_unlike_any_of_its_kind_is_refused(session, differing):
    run = session()
    run.checkpointer._components["replay"] = Constant([1])
    run.checkpointer.save(Counters(frames=1))
    other = session(seed=1)
    before = other.state()
    with pytest.raises(CheckpointError, match=r"replay is no state of its kind .*Nothing was load"):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


@pytest.mark.parametrize("state", [{"n": np.float64(3)}, {"n": threading.Lock()}, Counters()])
def test_what_nothing_could_load_again_is_not_saved(tmp_path, state):
    checkpointer = Checkpointer(tmp_path, {"gait": Constant(state)}, identity={})
    with pytest.raises(
        CheckpointError, match=r"no checkpoint written.*gait holds more than tensors"
    ):
        checkpointer.save(Counters(frames=1))
    assert list(tmp_path.iterdir()) == []


def test_the_random_generators_are_restored_last(tmp_path):
    checkpointer = Checkpointer(tmp_path, {"a": Constant(1), "z": Constant(1)}, identity={})
    checkpointer.save(Counters(frames=1))
    expected = torch.rand(3)
    checkpointer.load()
    assert torch.equal(torch.rand(3), expected)


def test_a_component_that_refuses_its_state_leaves_all_as_they_were(session, differing):
    session().train(TICKS)
    other = session(seed=1)
    before = other.state()

    take = other.env.import_training_state

    def refuse_once(state):
        other.env.import_training_state = take
        raise ValueError("not these counters")

    # Restored after learner and rewards, which have taken their new states by then.
    other.env.import_training_state = refuse_once
    with pytest.raises(CheckpointError, match=r"not these counters.*as it was before"):
        other.checkpointer.load()
    assert differing(before, other.state()) == []


def test_a_component_that_cannot_be_put_back_is_named(session):
    session().train(TICKS)
    other = session(seed=1)

    def refuse(state):
        raise ValueError("not these counters")

    other.env.import_training_state = refuse
    with pytest.raises(CheckpointError, match=r"not these counters.*env did not take the state"):
        other.checkpointer.load()


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    checkpointer = Checkpointer(tmp_path / "file" / "checkpoints", {}, identity={})
    with pytest.raises(CheckpointError, match=r"no checkpoint written to .*none yet"):
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
