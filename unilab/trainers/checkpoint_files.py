"""One checkpoint on disk: a file and its SHA-256 for each component."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torchrl.checkpoint import Checkpoint, CheckpointAdapter

from unilab.errors import CheckpointError, why_unreadable

__all__ = ["as_checkpoint", "newest", "read_identity", "read_states"]


class _Payload:
    """A state to write or one that was read, apart from the live objects."""

    def __init__(self, state: Any = None) -> None:
        self.state = state


class _TorchFile(CheckpointAdapter):
    """One ``torch.save`` file and its SHA-256.

    TorchRL's own adapter also reads tensordict directories, whose non-tensor leaves are pickles,
    and torch does not check the checksums in its files.
    """

    adapter_id = "unilab.torch_file"

    def save(self, component: _Payload, path: Path, **_: Any) -> Any:
        path.mkdir(parents=True)
        file = path / "state.pt"
        try:
            torch.save(component.state, file)
            # Can it be loaded? Memory-mapped, so that the tensors are not read again.
            torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        except (pickle.PickleError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"state_dict of {path.name} must hold only tensors, numbers and strings in dicts, "
                "lists and tuples, or no checkpoint could be loaded again: change what it returns "
                "(of a module also get_extra_state)"
            ) from error
        (path / "state.sha256").write_text(_sha256(file))

    def load(self, component: _Payload, path: Path, *, map_location: Any, **_: Any) -> Any:
        file = path / "state.pt"
        if (path / "state.sha256").read_text() != _sha256(file):
            raise ValueError(f"{file} differs from its SHA-256")
        component.state = torch.load(file, map_location=map_location, weights_only=True)


def as_checkpoint(states: Mapping[str, Any]) -> Checkpoint:
    """States by component name as a TorchRL checkpoint, ready to be saved."""
    return _bind({name: _Payload(state) for name, state in states.items()})


def newest(directory: Path) -> Path | None:
    """The checkpoint of the most frames in a run's ``checkpoints/``.

    ``CheckpointRotation.latest`` would silently pass over a damaged one.
    """
    found = sorted(directory.glob("checkpoint-" + 12 * "[0-9]"))
    return found[-1] if found else None


def read_identity(path: Path) -> tuple[Any, set[str]]:
    """The identity that a checkpoint was saved with, and the names of its components."""
    try:
        manifest = Checkpoint.manifest(path)
        return manifest["metadata"].get("identity"), set(manifest["components"])
    except Exception as error:
        raise _damaged(path, error) from error


def read_states(path: Path, names: Collection[str]) -> dict[str, Any]:
    """States by component name, with their tensors on the CPU."""
    payloads = {name: _Payload() for name in names}
    try:
        _bind(payloads).load(path, map_location="cpu")
    except Exception as error:
        raise _damaged(path, error) from error
    return {name: payload.state for name, payload in payloads.items()}


def _bind(payloads: Mapping[str, _Payload]) -> Checkpoint:
    checkpoint = Checkpoint(strict="error")
    for name, payload in payloads.items():
        checkpoint.register(name, payload, adapter=_TorchFile())
    return checkpoint


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _damaged(path: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is damaged or not a checkpoint ({why_unreadable(error)}): remove it to "
        "continue from the one before, if there is one; otherwise start a new run"
    )
