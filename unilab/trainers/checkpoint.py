"""Checkpoints of a run: written atomically, loaded whole or refused whole."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import pickle
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torchrl.checkpoint import Checkpoint, CheckpointAdapter, CheckpointRotation, GlobalRNGState
from torchrl.data import ReplayBuffer

from unilab.errors import CheckpointError, why_unreadable
from unilab.trainers.state_check import differences, semantics_problem, state_problem

_OPTIONAL = ("replay", "episodes")


class Stateful(Protocol):
    """A component: its state is tensors, numbers and strings in dicts, lists and tuples.

    Optionally with ``check_state(state) -> str``, which returns the reason why it cannot load a
    state, or ``""``. By default a state is compared with the live one.
    """

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass
class Counters:
    """How far a run is."""

    frames: int = 0
    """Environment steps taken, all environments together."""
    minutes: float = 0.0
    """Training time."""

    @staticmethod
    def check_state(state: Any) -> str:
        """The reason why a saved state is invalid, or ``""``."""
        problem = state_problem(state, dataclasses.asdict(Counters()), "counters")
        if problem:
            return problem
        if state and state["frames"] >= 0 and 0.0 <= state["minutes"] < math.inf:
            return ""
        return f"counters must have non-negative frames and minutes, got {state}"


class Checkpointer:
    """Writes and restores the complete state of a run.

    A checkpoint is staged beside its destination and renamed into place, so an interrupted write
    keeps the earlier ones. Loading reads everything (``weights_only=True``: no code in the file
    runs) and compares it with the live objects before it changes one of them. If a component then
    still refuses its state, all are restored.

    Args:
        directory: the run's ``checkpoints/``.
        components: objects to save by name. The counters of the run and the global random
            generators of Python, NumPy and torch are saved as well. Components named ``replay`` and
            ``episodes`` may be absent from a checkpoint.
        identity: JSON values that must agree between checkpoint and run, such as the task.
        keep: number of checkpoints to keep; the oldest ones are deleted.
    """

    def __init__(
        self,
        directory: str | Path,
        components: Mapping[str, Stateful],
        *,
        identity: Mapping[str, Any],
        keep: int = 3,
    ) -> None:
        # Random generators last: restoring another component must not advance them.
        self._components: dict[str, Any] = {**components, "rng": _GlobalRandomState()}
        self._identity = dict(identity)
        self._rotation = CheckpointRotation(directory, keep_last=keep)

    def save(self, counters: Counters) -> Path:
        """Writes a checkpoint, named by its frames, and deletes the oldest ones.

        After an error the earlier ones are unchanged.
        """
        states = {name: part.state_dict() for name, part in self._components.items()}
        states["counters"] = dataclasses.asdict(counters)
        metadata = {"identity": self._identity}
        directory = self._rotation.directory
        try:
            for partial in directory.glob(".checkpoint-*"):  # left by a killed process
                shutil.rmtree(partial)
            return self._rotation.save(
                as_checkpoint(states), step=counters.frames, metadata=metadata
            )
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                f"no checkpoint written to {directory} ({error}): free space or fix its "
                f"permissions; the last complete one is {newest(directory) or 'none yet'}"
            ) from error

    def latest(self) -> Path:
        """The newest checkpoint, even if it is damaged."""
        latest = newest(self._rotation.directory)
        if latest is None:
            raise CheckpointError(
                f"{self._rotation.directory} has no complete checkpoint, so that the run cannot "
                "continue: start a new one"
            )
        return latest

    def load(self, path: str | Path | None = None) -> Counters:
        """Restores every component from a checkpoint, by default the newest one, or none."""
        path = Path(path) if path is not None else self.latest()
        states = self._read(path)
        self._compare(path, states)
        counters = states.pop("counters")
        self._apply(path, states)
        return Counters(**counters)

    def _read(self, path: Path) -> dict[str, Any]:
        identity, names = read_identity(path)
        if (
            "actor_semantics" in self._identity
            and isinstance(identity, Mapping)
            and (problem := semantics_problem(identity.get("actor_semantics")))
        ):
            raise CheckpointError(f"checkpoint {path} cannot be continued: {problem}")
        if problem := differences(identity, self._identity):
            raise _unfit(path, problem)
        unknown = names - {*self._components, *_OPTIONAL, "counters"}
        if unknown:
            raise _unfit(path, f"this run has no component {', '.join(sorted(unknown))}")
        wanted = [n for n in self._components if n not in _OPTIONAL or n in names]
        return read_states(path, [*wanted, "counters"])

    def _compare(self, path: Path, states: Mapping[str, Any]) -> None:
        live = {**self._components, "counters": Counters()}
        for name, state in states.items():
            check = getattr(live[name], "check_state", None)
            try:
                if check is not None:
                    problem = check(state)
                else:
                    problem = state_problem(state, live[name].state_dict(), name)
            except Exception as error:  # a check may index a state that has another structure
                problem = f"{name} has an invalid state ({type(error).__name__}: {error})"
            if problem:
                raise _unfit(path, problem)

    def _apply(self, path: Path, states: Mapping[str, Any]) -> None:
        # No copy of the replay buffer, which is large: it checks its state before it changes.
        before = {
            name: copy.deepcopy(part.state_dict())
            for name, part in self._components.items()
            if name not in _OPTIONAL
        }
        try:
            for name, part in self._components.items():
                if name in states:
                    part.load_state_dict(states[name])
        except Exception as error:
            for name, state in before.items():
                self._components[name].load_state_dict(state)
            raise CheckpointError(
                f"checkpoint {path} was refused ({error}); nothing was loaded"
            ) from error


def _unfit(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} does not fit this run: {problem}. Nothing was loaded; resume with the "
        "configuration that the run was started with"
    )


class EnvTrainingState:
    """An environment's training state: its control-step counter, and what its curriculum keeps."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def state_dict(self) -> dict[str, Any]:
        return dict(self._env.export_training_state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._env.import_training_state(dict(state))

    def check_state(self, state: Any) -> str:
        """The reason why a saved state is invalid, or ``""``."""
        live = self.state_dict()
        if isinstance(state, Mapping) and "curriculum" not in state:  # it kept nothing then
            live.pop("curriculum", None)
        return state_problem(state, live, "env")


class ReplayContents:
    """The filled rows of a replay buffer, its cursor, its generator and its transforms' state.

    Sampling continues exactly, and so do transitions over several steps. ``ReplayBuffer.dumps``
    writes the storage at full capacity and may pickle; this writes only the filled rows, as
    tensors.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def state_dict(self) -> dict[str, Any]:
        state = self._buffer.state_dict()
        rows = self._buffer.storage[: len(self._buffer)] if len(self._buffer) else None
        return {
            "rows": None if rows is None else rows.cpu().flatten_keys("/").to_dict(),
            "length": len(self._buffer),
            "capacity": self._buffer.storage.max_size,
            "writer": state["_writer"],
            "sampler": state["_sampler"],
            "generator": state["_rng"],
            "transforms": dict(state["_transforms"]),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        length = saved["length"]
        self._buffer.empty()
        if length:
            rows = TensorDict(saved["rows"], batch_size=[length]).unflatten_keys("/")
            self._buffer.storage.set(range(length), rows)
        state = self._buffer.state_dict()
        state["_writer"] = saved["writer"]
        state["_sampler"] = saved["sampler"]
        own, other = state["_rng"], saved["generator"]
        if own is None or other is None or own[1] == other[1]:  # else of another device
            state["_rng"] = other
        state["_transforms"] = saved.get("transforms", state["_transforms"])
        self._buffer.load_state_dict(state)

    def begin_episodes(self) -> None:
        """Drop the ticks held back, because the next ones belong to other episodes."""
        for transform in self._buffer._transform:
            if hasattr(transform, "empty"):
                transform.empty()

    def check_state(self, state: Any) -> str:
        """The reason why a saved state is invalid, or ``""``."""
        live, capacity = self._buffer.state_dict(), self._buffer.storage.max_size
        here = {"capacity": capacity, "length": 0, "writer": live["_writer"]}
        if problem := state_problem({name: state[name] for name in here}, here, "replay"):
            return problem
        if state["capacity"] != capacity:
            return f"replay capacity {state['capacity']} in the checkpoint, {capacity} here"
        lengths = {len(t) for t in (state["rows"] or {}).values()} or {0}
        if lengths != {state["length"]} or state["length"] > capacity:
            return f"replay rows of lengths {sorted(lengths)}, expected {state['length']}"
        if not 0 <= (cursor := state["writer"].get("_cursor", 0)) < capacity:
            return f"replay cursor must be in [0, {capacity}), got {cursor}"
        joined = any(live["_transforms"].values())  # only n_step > 1 has state
        if state["rows"] and ("steps_to_next_obs" in state["rows"]) != joined:
            return f"n_step is {'1' if joined else 'above 1'} in the checkpoint, but not here"
        return ""


class _GlobalRandomState(GlobalRNGState):
    """Global random generators; a run that continues on another device restarts that device's."""

    def check_state(self, state: Any) -> str:
        """The reason why a saved state is invalid, or ``""``."""
        saved, live = (
            {name: each[name] for name in ("python", "numpy", "torch_cpu")}
            for each in (state, self.state_dict())
        )
        return state_problem(saved, live, "rng")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        live = self.state_dict()
        fits = {k: v for k, v in state.items() if k in live and not state_problem(v, live[k], k)}
        super().load_state_dict(fits)


class _TorchFile(CheckpointAdapter):
    """One ``torch.save`` file and its SHA-256 for each component.

    TorchRL's own adapter also reads tensordict directories, whose non-tensor leaves are pickles,
    and torch does not check the checksums in its files.
    """

    adapter_id = "unilab.torch_file"

    def save(self, component: Any, path: Path, **_: Any) -> None:
        path.mkdir(parents=True)
        file = path / "state.pt"
        try:
            torch.save(component, file)
            # Can it be loaded? Memory-mapped, so that the tensors are not read again.
            torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        except (pickle.PickleError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"state_dict of {path.name} must hold only tensors, numbers and strings in dicts, "
                "lists and tuples, or no checkpoint could be loaded again: change what it returns "
                "(of a module also get_extra_state)"
            ) from error
        (path / "state.sha256").write_text(_sha256(file))

    def load(self, component: Any, path: Path, *, map_location: Any, **_: Any) -> Any:
        file = path / "state.pt"
        if (path / "state.sha256").read_text() != _sha256(file):
            raise ValueError(f"{file} differs from its SHA-256")
        return torch.load(file, map_location=map_location, weights_only=True)


def as_checkpoint(states: Mapping[str, Any]) -> Checkpoint:
    """States by component name as a TorchRL checkpoint, ready to be saved or loaded."""
    checkpoint = Checkpoint(strict="error")
    for name, state in states.items():
        checkpoint.register(name, state, adapter=_TorchFile())
    return checkpoint


def newest(directory: Path) -> Path | None:
    """The checkpoint of the most frames in a run's ``checkpoints/``.

    ``CheckpointRotation.latest`` would silently pass over a damaged one.
    """
    return max(directory.glob("checkpoint-" + 12 * "[0-9]"), default=None)


def read_identity(path: Path) -> tuple[Any, set[str]]:
    """The identity that a checkpoint was saved with, and the names of its components."""
    try:
        manifest = Checkpoint.manifest(path)
        return manifest["metadata"].get("identity"), set(manifest["components"])
    except Exception as error:
        raise _damaged(path, error) from error


def read_states(path: Path, names: Collection[str]) -> dict[str, Any]:
    """States by component name, with their tensors on the CPU."""
    try:
        read = as_checkpoint(dict.fromkeys(names)).load(path, map_location="cpu")
    except Exception as error:
        raise _damaged(path, error) from error
    return {name: read.values.get(name) for name in names}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _damaged(path: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is damaged or not a checkpoint ({why_unreadable(error)}): remove it to "
        "continue from the one before, if there is one; otherwise start a new run"
    )
