"""Checkpoints: complete, atomic, rotated, refused whole."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torchrl.checkpoint import GlobalRNGState

from unilab.errors import CheckpointError
from unilab.trainers import Checkpointer, Counters
from unilab.trainers.checkpoint import as_checkpoint, read_identity, read_states

TICKS = 20


def test_c22_a_loaded_state_is_bit_for_bit_the_saved_one(session, differing, trained):
    _, state = trained
    loaded = session(seed=1)
    assert differing(state, loaded.state())
    counters = loaded.checkpointer.load()
    assert differing(state, loaded.state()) == []
    assert counters.frames == 4 * TICKS
    assert counters.minutes > 0.0


def test_without_replay_contents_the_rest_is_restored(session, differing):
    saved = session(save_replay=False)
    saved.train(TICKS)
    loaded = session(seed=1, save_replay=True)
    assert loaded.checkpointer.load().frames == 4 * TICKS
    different = differing(saved.state(), loaded.state())
    assert len(loaded.buffer) == 0
    assert all(path.startswith(".replay.") for path in different)


@pytest.mark.parametrize(("before", "then"), [(1, 3), (3, 1)])
def test_a_replay_buffer_of_another_n_step_is_refused(session, before, then):
    session(n_step=before).train(TICKS)
    other = session(seed=1, n_step=then)
    with pytest.raises(CheckpointError, match="n_step"):
        other.checkpointer.load()


def test_the_newest_checkpoints_are_kept_and_the_newest_left_is_loaded(session, tmp_path):
    run = session(keep=2)
    for frames in (10, 20, 30):
        run.checkpointer.save(Counters(frames=frames))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert [int(name.split("-")[1]) for name in names] == [20, 30]
    shutil.rmtree(run.checkpointer.latest())
    assert run.checkpointer.load().frames == 20


def test_an_empty_folder_is_refused(refused):
    refused("no complete checkpoint")


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"task": "cartpole_swingup"}, "task"),
        ({"obs_groups": {"obs": 4}}, "obs_groups.obs"),
        ({"critic_obs": "critic"}, "critic_obs"),
        ({"checkpoint_version": 2}, "checkpoint_version"),
        ({"checkpoint_version": 1.0}, "checkpoint_version"),
        ({"checkpoint_version": True}, "checkpoint_version"),
        ({"hidden_dim": 16}, "actor_semantics.kwargs.hidden_dim"),
        ({"critic_dim": 16}, "shape"),
        ({"v_max": 16.0}, "v_max"),
    ],
)
def test_c21_a_checkpoint_of_another_run_or_network_is_refused_whole(
    refused, trained, changed, name
):
    refused(name, **changed)


@pytest.mark.parametrize("version", [True, 1.0, 9])
def test_c20_a_manifest_of_unknown_semantics_is_refused_as_in_play(refused, trained, version):
    file = trained[0] / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["metadata"]["identity"]["actor_semantics"]["schema_version"] = version
    file.write_text(json.dumps(manifest))
    refused(f"schema_version {version!r}, this version of unilab reads 1: train again")


@pytest.mark.parametrize("damage", ["truncated", "emptied", "removed"])
def test_c21_a_damaged_file_is_refused_whole(refused, trained, damage):
    path, _ = trained
    (file,) = path.glob("components/*-learner/state.pt")
    if damage == "removed":
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"")
    refused(f"{path} is damaged")


def at(path: str, change):
    """Changes one value in nested dicts."""
    *keys, last = path.split("/")

    def changed(state):
        node = state
        for key in keys:
            node = node[int(key) if key.isdigit() else key]
        node[last] = change(node[last])
        return state

    return changed


def to(value):
    return lambda _: value


def negated(tensor):
    return -1.0 - tensor.abs()


def without_first(moments):
    return {i: each for i, each in moments.items() if i}


WEIGHT, ADAM = "loss/actor.mean_head.weight", "optimizers/actor/0"


@pytest.mark.parametrize(
    ("component", "change", "name"),
    [
        ("learner", at(WEIGHT, torch.Tensor.double), "mean_head.weight"),
        ("learner", at(WEIGHT, torch.Tensor.to_sparse), "mean_head.weight"),
        ("learner", at(WEIGHT, lambda w: w * math.nan), "mean_head.weight"),
        ("learner", at(WEIGHT, to(None)), "mean_head.weight"),
        ("learner", at("loss/actor.embedder.norm.running_var", negated), "running_var.*negative"),
        ("learner", at("loss", to({})), "loss"),
        ("learner", at(f"{ADAM}/exp_avg", lambda m: m[:1]), "exp_avg"),
        ("learner", at(f"{ADAM}/exp_avg", lambda m: m / 0), "exp_avg"),
        ("learner", at(f"{ADAM}/exp_avg_sq", negated), "exp_avg_sq.*negative"),
        ("learner", at(f"{ADAM}/exp_avg_sq", to(None)), "exp_avg_sq"),
        ("learner", at(f"{ADAM}/step", lambda n: n + 1), r"optimizers\.actor.*steps"),
        ("learner", at(f"{ADAM}/step", lambda n: n - 0.5), r"optimizers\.actor.*steps"),
        ("learner", at("optimizers/actor", without_first), r"optimizers\.actor"),
        ("learner", at("optimizers/critic", to({})), r"optimizers\.critic"),
        ("learner", at("optimizers/alpha", to({0: {}})), r"optimizers\.alpha.*steps"),
        ("learner", at("update_count", to(-3)), "update_count"),
        ("learner", at("update_count", float), "update_count"),
        ("learner", at("schedules/actor", to(-1)), "actor"),
        ("learner", at("schedules/critic", lambda n: n + 1), "update_count"),
        ("learner", at("actor_metrics", to({})), "actor_metrics"),
        ("learner", at("actor_metrics/entropy", to("a")), "actor_metrics"),
        ("learner", at("schedules", to(None)), "schedules"),
        ("learner", at("optimizers", to("a")), "optimizers"),
        ("learner", at("actor_semantics", to(None)), "actor_semantics"),
        ("env", to({"version": 2, "control_steps": 5}), "version"),
        ("env", to({"version": 1, "control_steps": -1}), "control_steps"),
        ("env", to({"version": 1, "control_steps": True}), "control_steps"),
        ("rewards", at("var", negated), r"rewards\.var"),
        ("rewards", at("count", negated), r"rewards\.count"),
        ("rewards", at("returns", lambda r: r / 0), r"rewards\.returns"),
        ("rewards", at("returns", to("a")), r"rewards\.returns"),
        ("rewards", to({}), "rewards"),
        ("replay", to([1]), "replay"),
        ("replay", at("capacity", to(7)), "capacity"),
        ("replay", at("capacity", float), r"replay\.capacity"),
        ("replay", at("length", float), r"replay\.length"),
        ("replay", at("writer/_cursor", to(-1)), "cursor"),
        ("replay", at("writer", to([])), "writer"),
        ("counters", to([1, 2]), "counters"),
        ("counters", to(None), "counters"),
        ("counters", to({"frames": 1}), "counters"),
        ("counters", at("frames", to(True)), "counters"),
        ("counters", at("frames", to(-5)), "counters"),
        ("counters", at("minutes", to(math.nan)), "counters"),
        ("gait", to({}), "gait"),
    ],
)
def test_c21_an_invalid_state_of_a_component_is_refused_whole(
    refused, trained, component, change, name
):
    path, _ = trained
    identity, names = read_identity(path)
    states = read_states(path, names)
    states[component] = change(states.get(component))
    shutil.rmtree(path)
    as_checkpoint(states).save(path, metadata={"identity": identity})
    refused(name)


class Constant:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        torch.rand(1)  # as a component that initialises weights


@pytest.mark.parametrize("state", [{"n": np.float64(3)}, {"n": threading.Lock()}, Counters()])
def test_c24_a_state_that_could_not_be_loaded_is_not_saved(tmp_path, state):
    checkpointer = Checkpointer(tmp_path, {"gait": Constant(state)}, identity={})
    with pytest.raises(CheckpointError, match="gait"):
        checkpointer.save(Counters(frames=1))
    assert list(tmp_path.iterdir()) == []


def test_c22_generators_of_a_device_that_is_not_here_are_left_out(tmp_path):
    states = {"rng": GlobalRNGState().state_dict() | {"torch_cuda": [torch.zeros(16).byte()]}}
    states["counters"] = {"frames": 1, "minutes": 0.0}
    path = tmp_path / "checkpoint"
    as_checkpoint(states).save(path, metadata={"identity": {}})
    expected = torch.rand(3)
    Checkpointer(tmp_path, {}, identity={}).load(path)
    assert torch.equal(torch.rand(3), expected)


def test_the_random_generators_are_restored_last(tmp_path):
    checkpointer = Checkpointer(tmp_path, {"a": Constant(1), "z": Constant(1)}, identity={})
    checkpointer.save(Counters(frames=1))
    expected = torch.rand(3)
    checkpointer.load()
    assert torch.equal(torch.rand(3), expected)


def test_c21_a_component_that_refuses_its_state_leaves_all_unchanged(session, differing, trained):
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


_KILLED_WHILE_SAVING = """
import os, shutil, signal, sys, torch
from unilab.trainers import Checkpointer, Counters

net = torch.nn.Linear(2, 2)
checkpointer = Checkpointer(sys.argv[1], {"net": net}, identity={}, keep=1)
checkpointer.save(Counters(frames=1))
kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
write = torch.save
if sys.argv[2] == "writing":
    torch.save = lambda *args: (write(*args), kill())
else:
    shutil.rmtree = kill
checkpointer.save(Counters(frames=2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["writing", "removing"])
def test_c23_a_kill_while_saving_leaves_the_checkpoint_before_it_usable(tmp_path, when):
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED_WHILE_SAVING, str(tmp_path), when],
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    checkpointer = Checkpointer(tmp_path, {"net": torch.nn.Linear(2, 2)}, identity={})
    assert checkpointer.load().frames == (1 if when == "writing" else 2)
    assert list(tmp_path.glob(".*"))  # the one written or removed
    checkpointer.save(Counters(frames=3))
    assert checkpointer.load().frames == 3
    assert not list(tmp_path.glob(".*"))
