"""One checkpoint on disk: a file for each component, read back as tensors or not at all."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torchrl.checkpoint import Checkpoint, CheckpointAdapter
from torchrl.checkpoint import CheckpointError as TorchRLCheckpointError

from unilab.errors import CheckpointError, why_unreadable

__all__ = ["as_checkpoint", "newest", "read_identity", "read_states"]

_UNREADABLE = (
    TorchRLCheckpointError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
)


class _Payload:
    """A state on its way to or from disk: keeps what is read away from the live objects."""

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
        try:
            torch.save(component.state, path / "state.pt")
            # Mapped, so that the tensors in it are not read again.
            torch.load(path / "state.pt", map_location="cpu", mmap=True, weights_only=True)
        except (pickle.PickleError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"no checkpoint written, for nothing could load it again: {path.name} holds more "
                "than tensors, numbers and strings in lists and dicts; change what its state_dict "
                "returns (of a module also get_extra_state)"
            ) from error
        (path / "state.sha256").write_text(_sha256(path / "state.pt"))

    def load(self, component: _Payload, path: Path, *, map_location: Any, **_: Any) -> Any:
        if (path / "state.sha256").read_text() != _sha256(path / "state.pt"):
            raise ValueError(f"{path / 'state.pt'} is not what was written")
        component.state = torch.load(
            path / "state.pt", map_location=map_location, weights_only=True
        )


def as_checkpoint(states: Mapping[str, Any]) -> Checkpoint:
    """The states as a TorchRL checkpoint, ready to be saved.

    Args:
        states: name -> tensors, numbers and strings, nested in dicts, lists and tuples.
    """
    return _bind({name: _Payload(state) for name, state in states.items()})


def newest(directory: Path) -> Path | None:
    """The checkpoint of the most frames in a run's ``checkpoints/``, damaged or not."""
    found = directory.glob("checkpoint-*") if directory.is_dir() else ()
    steps = {path: path.name.partition("-")[2] for path in found}
    return max(
        (path for path, step in steps.items() if step.isdecimal()),
        key=lambda path: int(steps[path]),
        default=None,
    )


def read_identity(path: Path) -> tuple[Any, set[str]]:
    """The identity that a checkpoint was saved with, and the names of its components.

    Raises:
        CheckpointError: it is damaged or is no checkpoint.
    """
    try:
        manifest = Checkpoint.manifest(path)
        return manifest["metadata"].get("identity"), set(manifest["components"])
    except _UNREADABLE as error:
        raise _damaged(path, error) from error


def read_states(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Components of a checkpoint, with their tensors on the CPU.

    Args:
        path: the checkpoint.
        names: the components to read.

    Raises:
        CheckpointError: it is damaged, lacks one of them, or carries code.
    """
    payloads = {name: _Payload() for name in names}
    try:
        _bind(payloads).load(path, map_location="cpu")
    except _UNREADABLE as error:
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
        f"checkpoint {path} is damaged or is no checkpoint ({why_unreadable(error)}): remove it to "
        "continue from the one before, if there is one; otherwise start a new run"
    )
