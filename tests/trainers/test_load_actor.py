"""ADR-0017 C25, and C19 to C21 on the way to play."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from reference import actors
from reference.actors import PlainActor
from torch import nn

from unilab.errors import ActorContractError, CheckpointError
from unilab.modules import FlashSACActorSpec, actor_semantics, build_actor
from unilab.record import RunFolder
from unilab.trainers import Counters, load_actor, load_play_actor
from unilab.trainers.checkpoint_files import read_identity

OBS = torch.linspace(-1.0, 1.0, 15).reshape(5, 3)


def plain(**kwargs: object) -> nn.Module:
    spec = FlashSACActorSpec(builder="reference.actors:PlainActor", kwargs=kwargs)
    return build_actor(spec, obs_dim=3, action_dim=1)


def weights(change):
    """A learner's state with the actor's first weights changed."""

    def changed(state: dict) -> dict:
        loss = dict(state["loss"])
        loss["actor.mean.weight"] = change(loss["actor.mean.weight"])
        return {**state, "loss": loss}

    return changed


@pytest.fixture
def trained(session, tmp_path: Path):
    """Trains a custom actor; its run's folder is the test's."""
    run = session(actor=plain(low=-0.5))
    run.train(12)
    return run


@pytest.mark.parametrize("custom", [False, True])
def test_c25_a_run_or_checkpoint_gives_the_ready_actor(session, tmp_path, custom):
    run = session(actor=plain(low=-0.5) if custom else None)
    run.train(12, checkpoint_interval=24)
    want = run.actor.explore(OBS, deterministic=True)
    rng = torch.get_rng_state()
    for path in (tmp_path, str(run.checkpointer.latest())):
        actor = load_play_actor(path)
        assert type(actor) is type(run.actor)
        assert not actor.training
        assert {p.device.type for p in actor.parameters()} == {"cpu"}
        assert actor_semantics(actor) == actor_semantics(run.actor)
        assert torch.equal(actor.explore(OBS, deterministic=True), want)
        assert all(torch.equal(v, run.actor.state_dict()[k]) for k, v in actor.state_dict().items())
    first = sorted((tmp_path / "checkpoints").iterdir())[0]
    assert first != run.checkpointer.latest()
    assert not torch.equal(load_play_actor(first).explore(OBS, deterministic=True), want)
    assert rng.shape == torch.get_rng_state().shape


def edit_manifest(checkpoint: Path, change) -> None:
    file = checkpoint / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest["metadata"]["identity"])
    file.write_text(json.dumps(manifest))


def field(**changes: object):
    return lambda identity: identity["actor_semantics"].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.pop("actor_semantics"), "cannot be played: it has no actor_semantics"),
        (lambda i: i.update(actor_semantics=None), "it has no actor_semantics.*train again"),
        (field(schema_version=9), "schema_version 9, this version of unilab reads 1"),
        (field(kwargs={}), r"actor_semantics\.kwargs\.low is -0.5 there and missing here"),
        (field(obs_dim=4), r"actor_semantics\.obs_dim is 3 there and 4 here"),
        (field(builder="os:abort"), r"builder is 'reference.actors:PlainActor' there and 'os:abo"),
    ],
)
def test_c19_c20_a_manifest_that_says_otherwise_is_refused_before_the_builder_is_called(
    trained, tmp_path, monkeypatch, change, message
):
    edit_manifest(trained.checkpointer.latest(), change)
    monkeypatch.setattr(actors, "PlainActor", None)
    with pytest.raises(CheckpointError, match=message):
        load_play_actor(tmp_path)


def test_c19_a_checkpoint_of_another_run_in_this_runs_folder_is_refused(trained, tmp_path):
    identity, _ = read_identity(trained.checkpointer.latest())
    RunFolder(tmp_path).write_config({}, **identity)
    load_play_actor(tmp_path)
    for change, message in (
        ({"actor_semantics": actor_semantics(plain(low=-0.7))}, r"\.low is -0.5 there and -0.7"),
        (
            {"actor_semantics": None},
            r"run_config.json differs: .*actor_semantics is .* there and None",
        ),
        ({"task": "cartpole_swingup"}, "task is 'pendulum_swingup' there and 'cartpole_swingup'"),
        ({"obs_groups": {"obs": 3, "critic": 4}}, "critic is missing there and 4 here"),
    ):
        RunFolder(tmp_path).write_config({}, **{**identity, **change})
        with pytest.raises(CheckpointError, match=message):
            load_play_actor(tmp_path)
    RunFolder(tmp_path).write_config({"task": "cartpole_swingup"}, **identity)
    with pytest.raises(CheckpointError, match="task is 'pendulum_swingup' there and 'cartpole_sw"):
        load_play_actor(tmp_path)
    RunFolder(tmp_path).write_config({})
    with pytest.raises(CheckpointError, match=r"actor_semantics is .* there and missing"):
        load_play_actor(tmp_path)


def test_c19_a_checkpoint_is_compared_with_its_run_however_it_is_named(
    trained, tmp_path, monkeypatch
):
    path = trained.checkpointer.latest()
    identity, _ = read_identity(path)
    RunFolder(tmp_path).write_config({}, **{**identity, "task": "cartpole_swingup"})
    (tmp_path / "link").symlink_to(path)
    monkeypatch.chdir(path.parent)
    for name in (Path(path.name), tmp_path / "link"):
        with pytest.raises(CheckpointError, match=r"run_config.json differs: task is"):
            load_play_actor(name)


def test_c21_a_newest_checkpoint_with_a_damaged_manifest_is_not_passed_over(session, tmp_path):
    run = session()
    run.train(12, checkpoint_interval=24)
    newest = run.checkpointer.latest()
    assert len(list(newest.parent.iterdir())) == 2
    for text in ((newest / "manifest.json").read_text()[:50], "[" * 100_000):
        (newest / "manifest.json").write_text(text)
        with pytest.raises(CheckpointError, match=f"{newest.name} is damaged.*from the one before"):
            load_play_actor(tmp_path)
        with pytest.raises(CheckpointError, match=f"{newest.name} is damaged.*from the one before"):
            run.checkpointer.load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: [s], "it has no actor_semantics"),
        (lambda s: s.pop("loss") and s, "does not fit the actor that .*Missing key"),
        (lambda s: {**s, "loss": None}, "does not fit the actor that .*Missing key"),
        (lambda s: {**s, "loss": {3: torch.zeros(1)}}, "does not fit the actor .*Missing key"),
        (weights(lambda w: None), "does not fit the actor that"),
        (weights(lambda w: w.long()), r"actor\.mean\.weight has .*int64.* there and .*float32"),
        (weights(lambda w: w.to_sparse()), r"actor\.mean\.weight has .*sparse"),
        (weights(lambda w: w * torch.nan), r"actor\.mean\.weight holds NaN or infinity"),
    ],
)
def test_c21_a_state_that_is_no_learners_is_refused(trained, tmp_path, change, message):
    state = change(trained.learner.state_dict())
    trained.learner.state_dict = lambda: state
    trained.checkpointer.save(Counters(frames=1000))
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        load_play_actor(tmp_path)


def test_a_run_that_replaces_its_only_checkpoint_meanwhile_is_played(
    session, tmp_path, monkeypatch
):
    run = session(keep=1)
    run.checkpointer.save(Counters(frames=1))
    read = load_actor.read_states

    def replaced_while_reading(path, names):
        if path.name.endswith("001"):
            run.checkpointer.save(Counters(frames=2))
        return read(path, names)

    monkeypatch.setattr(load_actor, "read_states", replaced_while_reading)
    load_play_actor(tmp_path)

    def always(path, names):
        run.checkpointer.save(Counters(frames=int(path.name.split("-")[1]) + 1))
        return read(path, names)

    monkeypatch.setattr(load_actor, "read_states", always)
    with pytest.raises(CheckpointError, match="changes faster than it can be read: give one"):
        load_play_actor(tmp_path)


def test_c19_a_builder_whose_actions_mean_something_else_now_is_refused(
    trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(PlainActor, "action_transform_id", "clip")
    with pytest.raises(CheckpointError, match="action_transform is 'tanh_affine' there and 'clip'"):
        load_play_actor(tmp_path)


def test_c21_a_builder_that_makes_other_networks_now_is_refused(trained, tmp_path, monkeypatch):
    class Wider(PlainActor):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            self.more = nn.Linear(1, 1)

    monkeypatch.setattr(actors, "PlainActor", Wider)
    with pytest.raises(CheckpointError, match=r"(?s)does not fit the actor that .*more\.weight"):
        load_play_actor(tmp_path)


def test_c25_a_builder_that_is_gone_is_named(trained, tmp_path, monkeypatch):
    monkeypatch.delattr(actors, "PlainActor")
    with pytest.raises(ActorContractError, match=r"'reference.actors:PlainActor'.*has no 'PlainAc"):
        load_play_actor(tmp_path)


def test_c25_an_actor_of_unknown_builder_can_be_resumed_but_not_played(session, tmp_path):
    torch.manual_seed(0)
    session(actor=PlainActor(3, 1)).train(12)
    assert session(actor=PlainActor(3, 1)).checkpointer.load().frames == 48
    with pytest.raises(CheckpointError, match="builder"):
        load_play_actor(tmp_path)


def test_c21_a_damaged_checkpoint_is_refused(trained, tmp_path):
    (file,) = trained.checkpointer.latest().glob("components/*-learner/state.pt")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_play_actor(tmp_path)


def test_a_path_that_holds_nothing_to_play_is_named(session, tmp_path):
    with pytest.raises(
        CheckpointError, match="gone does not exist: give a run's folder or a check"
    ):
        load_play_actor(tmp_path / "gone")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="holds no complete checkpoint: wait for the run's"):
        load_play_actor(tmp_path)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_play_actor(tmp_path / "checkpoints")


def test_a_run_is_played_from_a_folder_that_cannot_be_written(session, tmp_path):
    run = session()
    run.checkpointer.save(Counters(frames=1))
    for folder in (tmp_path / "checkpoints", tmp_path):
        folder.chmod(0o555)
    try:
        load_play_actor(tmp_path)
    finally:
        for folder in (tmp_path, tmp_path / "checkpoints"):
            os.chmod(folder, 0o755)
