"""ADR-0017 C25, and C19 to C21 for play."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from reference import actors
from reference.actors import PlainActor
from torch import nn

from unilab.errors import ActorContractError, CheckpointError
from unilab.modules import FlashSACActor, FlashSACActorSpec, actor_semantics, build_actor
from unilab.record import RunFolder
from unilab.trainers import Counters, load_actor, load_play_actor
from unilab.trainers.checkpoint import read_identity

OBS = torch.linspace(-1.0, 1.0, 15).reshape(5, 3)


def plain(**kwargs: object) -> nn.Module:
    spec = FlashSACActorSpec(builder="reference.actors:PlainActor", kwargs=kwargs)
    return build_actor(spec, obs_dim=3, action_dim=1)


@pytest.fixture
def saved(session):
    """A checkpoint of a custom actor; its run's folder is the test's."""
    run = session(actor=plain(low=-0.5))
    run.checkpointer.save(Counters(frames=1))
    return run


def test_c02_a_played_checkpoint_names_what_it_imports_and_calls_builders_only(
    session, tmp_path, monkeypatch, capsys
):
    notes, module = tmp_path / "notes.txt", tmp_path / "noisy.py"
    notes.write_text("kept")
    module.write_text("print('imported')\ndef make(**kwargs): print('called')")
    monkeypatch.syspath_prepend(tmp_path)
    actor = plain()
    for builder in ("\x1b[2J:no path", "logging:basicConfig", "noisy:make"):
        kwargs = {"filename": str(notes), "filemode": "w"}
        actor._built_as = {**actor._built_as, "builder": builder, "kwargs": kwargs}
        run = session(actor=actor)
        run.checkpointer.save(Counters(frames=1))
        with pytest.raises(ActorContractError, match=re.escape(repr(builder))):
            load_play_actor(tmp_path)
        assert notes.read_text() == "kept"
    said = capsys.readouterr().out.split()
    assert said == ["Actor", "logging:basicConfig", "Actor", "noisy:make", "imported"]


@pytest.mark.parametrize(
    ("custom", "amp_dtype"), [(False, None), (False, "bfloat16"), (True, None)]
)
def test_c25_a_run_or_checkpoint_gives_the_ready_actor(session, tmp_path, custom, amp_dtype):
    run = session(actor=plain(low=-0.5) if custom else None, amp_dtype=amp_dtype)
    run.train(12, checkpoint_interval=24)
    want = run.actor.explore(OBS, deterministic=True)
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


def field(**changes: object):
    return lambda identity: identity["actor_semantics"].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.pop("actor_semantics"), "actor_semantics"),
        (field(schema_version=9), "schema_version 9"),
        (field(schema_version=1.0), r"schema_version 1\.0"),
        (field(schema_version=True), "schema_version True"),
        (field(obs_dim=3.0), r"obs_dim.*3\.0"),
        (field(kwargs={}), r"kwargs\.low"),
        (field(obs_dim=4), "obs_dim is 3 .* 4"),
        (field(builder="os:abort"), "builder.*'os:abort'"),
    ],
)
def test_c19_c20_a_manifest_that_differs_is_refused_before_the_builder_is_called(
    saved, tmp_path, monkeypatch, change, message
):
    file = saved.checkpointer.latest() / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest["metadata"]["identity"])
    file.write_text(json.dumps(manifest))
    monkeypatch.setattr(actors, "PlainActor", None)
    with pytest.raises(CheckpointError, match=message):
        load_play_actor(tmp_path)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ({}, {"actor_semantics": {"kind": "flashsac"}}, "actor_semantics.kind"),
        ({}, {"task": "cartpole_swingup"}, "task is 'pendulum_swingup' .* 'cartpole_swingup'"),
        ({}, {"obs_groups": {"obs": 3, "critic": 4}}, "obs_groups.critic"),
        ({"task": "cartpole_swingup"}, {}, "task"),
    ],
)
def test_c19_a_checkpoint_of_another_run_is_refused(
    saved, tmp_path, monkeypatch, config, change, message
):
    path = saved.checkpointer.latest()
    identity, _ = read_identity(path)
    RunFolder(tmp_path).write_config({}, **identity)
    load_play_actor(tmp_path)
    RunFolder(tmp_path).write_config(config, **{**identity, **change})
    monkeypatch.chdir(path.parent)
    for given in (tmp_path, Path(path.name)):
        with pytest.raises(CheckpointError, match=message):
            load_play_actor(given)


def weights(change):
    """A learner's state with the actor's first weights changed."""

    def changed(state: dict) -> dict:
        loss = dict(state["loss"])
        loss["actor.mean.weight"] = change(loss["actor.mean.weight"])
        return {**state, "loss": loss}

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: [s], "actor_semantics"),
        (lambda s: s.pop("loss") and s, "mean.weight"),
        (lambda s: {**s, "loss": {3: torch.zeros(1)}}, "mean.weight"),
        (weights(lambda w: None), "mean.weight"),
        (weights(lambda w: w.to_sparse()), r"mean\.weight.*sparse"),
        (weights(lambda w: w * torch.nan), r"mean\.weight.*NaN"),
    ],
)
def test_c21_a_state_that_does_not_fit_is_refused(saved, tmp_path, change, message):
    state = change(saved.learner.state_dict())
    saved.learner.state_dict = lambda: state
    saved.checkpointer.save(Counters(frames=1000))
    with pytest.raises(CheckpointError, match=rf"(?s){message}"):
        load_play_actor(tmp_path)


@pytest.mark.parametrize("text", ['{"format', "[" * 100_000])
def test_c21_a_damaged_newest_checkpoint_is_not_skipped(saved, tmp_path, text):
    saved.checkpointer.save(Counters(frames=2))
    newest = saved.checkpointer.latest()
    (newest / "manifest.json").write_text(text)
    for load in (lambda: load_play_actor(tmp_path), saved.checkpointer.load):
        with pytest.raises(CheckpointError, match=newest.name):
            load()


def test_c19_weights_with_another_action_range_are_not_played(session, tmp_path):
    run = session()
    state = run.learner.state_dict()
    state["loss"] = {**state["loss"], "actor.action_scale": torch.tensor([5.0])}
    run.learner.state_dict = lambda: state
    run.checkpointer.save(Counters(frames=1))
    with pytest.raises(CheckpointError, match=r"action_scale is \[5\.0\] there and \[1\.0\]"):
        load_play_actor(tmp_path)


class Wider(PlainActor):
    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.more = nn.Linear(1, 1)


class Clipped(PlainActor):
    action_transform_id = "clip"


@pytest.mark.parametrize(
    ("now", "error", "message"),
    [
        (Clipped, CheckpointError, "action_transform is 'tanh_affine' .* 'clip'"),
        (Wider, CheckpointError, r"(?s)reference.actors:PlainActor.*more\.weight"),
        (None, ActorContractError, "reference.actors:PlainActor"),
    ],
)
def test_c19_c21_a_builder_that_has_changed_is_refused(
    saved, tmp_path, monkeypatch, now, error, message
):
    monkeypatch.setattr(actors, "PlainActor", now)
    with pytest.raises(error, match=message):
        load_play_actor(tmp_path)


class Bolder(FlashSACActor):
    max_noise_steps = 4


def test_c25_a_subclass_of_the_built_in_actor_is_played(session, tmp_path):
    run = session(actor=Bolder(3, 1, hidden_dim=8, num_blocks=1, action_low=-2.0))
    run.checkpointer.save(Counters(frames=1))
    actor = load_play_actor(tmp_path)
    assert type(actor) is Bolder
    assert actor_semantics(actor)["kind"] == "custom"
    want = run.actor.explore(OBS, deterministic=True)
    assert torch.equal(actor.explore(OBS, deterministic=True), want)


def test_c25_an_actor_of_unknown_builder_can_be_resumed_but_not_played(session, tmp_path):
    with pytest.warns(RuntimeWarning, match=r"PlainActor.*build_actor"):
        session(actor=PlainActor(3, 1)).checkpointer.save(Counters(frames=48))
    assert session(actor=PlainActor(3, 1)).checkpointer.load().frames == 48
    with pytest.raises(CheckpointError, match="builder"):
        load_play_actor(tmp_path)


def test_a_path_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="gone does not exist"):
        load_play_actor(tmp_path / "gone")
    (tmp_path / "checkpoints").mkdir()
    for path in (tmp_path, tmp_path / "checkpoints"):
        with pytest.raises(CheckpointError, match="checkpoints"):
            load_play_actor(path)


def test_a_checkpoint_that_a_running_training_replaces_is_read_again(
    session, tmp_path, monkeypatch
):
    run = session(keep=1)
    run.checkpointer.save(Counters(frames=1))
    read = load_actor.read_states
    replacements = iter([2])

    def replaced_while_reading(path, names):
        for frames in replacements:
            run.checkpointer.save(Counters(frames=frames))
        return read(path, names)

    monkeypatch.setattr(load_actor, "read_states", replaced_while_reading)
    load_play_actor(tmp_path)
