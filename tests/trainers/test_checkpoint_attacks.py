"""ADR-0017 C21, C23 and C24 under attack: files cut, flipped, planted; disks full or read-only."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tensordict
import torch
from reference.disk import largest_file
from tensordict import NonTensorData, TensorDict

from unilab.errors import CheckpointError
from unilab.trainers import Counters


def files(checkpoint: Path) -> list[Path]:
    return sorted(p.relative_to(checkpoint) for p in checkpoint.rglob("*") if p.is_file())


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flip(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, flip])
def test_c21_a_file_damaged_anywhere_is_refused_whole_or_loads_whole(
    session, differing, trained, tmp_path, damage
):
    path, state = trained
    other = session(seed=1)
    before = other.state()
    broken, rng = tmp_path / "broken", random.Random(0)
    assert len(files(path)) == 13  # a file and a digest for each component, and the manifest
    refused = 0
    for file in files(path):
        # The manifest has the most ways to be wrong and still readable.
        for _ in range(40 if file.name == "manifest.json" else 6):
            shutil.copytree(path, broken)
            (broken / file).write_bytes(damage((path / file).read_bytes(), rng))
            try:
                other.checkpointer.load(broken)
            except CheckpointError:
                refused += 1
                assert differing(before, other.state()) == [], file
            else:
                # A value that is not loaded, such as the date.
                assert file.name == "manifest.json"
                assert differing(state, other.state()) == []
                other = session(seed=1)
                before = other.state()
            shutil.rmtree(broken)
    assert refused >= 6 * 12


class RunsCode:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def torch_file(folder, code):
    torch.save(code, folder / "state.pt")


def bare_pickle(folder, code):
    (folder / "state.pt").write_bytes(pickle.dumps(code))


def tensordict_folder(folder, code):
    (folder / "state.pt").unlink()
    tensordict.save(TensorDict({"a": NonTensorData(code)}, []), folder / "state")
    (folder / "state.json").write_text('{"kind": "tensor", "key": "a"}')


@pytest.mark.parametrize("plant", [torch_file, bare_pickle, tensordict_folder])
def test_c24_planted_code_does_not_run_even_with_a_digest_that_fits(
    refused, trained, tmp_path, plant
):
    path, _ = trained
    (file,) = path.glob("components/*-learner/state.pt")
    marker = tmp_path / "code-ran"
    plant(file.parent, RunsCode(marker))
    if file.exists():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        (file.parent / "state.sha256").write_text(digest)
    refused(r"is damaged(?!.*`weights_only`)")  # PyTorch's advice would run the code
    assert not marker.exists()


@pytest.mark.parametrize("size", [0, 5_000])
def test_c23_a_disk_full_while_saving_leaves_the_last_good_checkpoint(
    session, differing, trained, size
):
    path, state = trained
    run = session()
    run.train(4, save=False)
    with largest_file(size), pytest.raises(CheckpointError, match=str(path)):
        run.checkpointer.save(Counters(frames=1000))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    run.checkpointer.load()
    assert differing(state, run.state()) == []


@contextmanager
def unprivileged() -> Iterator[None]:
    """Not as root, who may write anywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_c23_a_read_only_folder_is_one_clear_error_and_can_still_be_loaded(
    session, differing, trained
):
    path, state = trained
    run = session(seed=1)
    for folder in path.parents:
        if Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o755)
    path.parent.chmod(0o555)
    try:
        with unprivileged():
            with pytest.raises(CheckpointError, match=str(path.parent)):
                run.checkpointer.save(Counters(frames=1000))
            run.checkpointer.load()
    finally:
        path.parent.chmod(0o755)
    assert differing(state, run.state()) == []
