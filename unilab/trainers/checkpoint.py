"""Checkpoints of a run: written atomically, loaded whole or refused whole."""

from __future__ import annotations

import copy
import dataclasses
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tensordict import TensorDict
from torchrl.checkpoint import CheckpointRotation, GlobalRNGState
from torchrl.data import ReplayBuffer

from unilab.errors import CheckpointError
from unilab.trainers.checkpoint_files import as_checkpoint, newest, read_identity, read_states
from unilab.trainers.state_check import differences, state_problem

__all__ = ["Checkpointer", "Counters", "EnvTrainingState", "ReplayContents", "Stateful"]

_OPTIONAL = ("replay",)


class Stateful(Protocol):
    """A component of a checkpoint.

    Optionally with ``check_state(state) -> str``, which returns the reason why it cannot load a
    state, or ``""``. By default a state is compared with the live one.
    """

    def state_dict(self) -> Any:
        """Tensors, numbers and strings, nested in dicts, lists and tuples."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Continues from a state."""
        ...


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
        components: name -> object with ``state_dict`` and ``load_state_dict``. The counters of the
            run and the global random generators of Python, NumPy and torch are saved as well. A
            component named ``replay`` may be absent from a checkpoint.
        identity: JSON values that must agree between checkpoint and run, such as the task and the
            widths of observations and actions.
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
        self._components: dict[str, Any] = {**components, "rng": GlobalRNGState()}
        self._identity = dict(identity)
        self._rotation = CheckpointRotation(directory, keep_last=keep)

    def save(self, counters: Counters) -> Path:
        """Writes a checkpoint and deletes the oldest ones.

        Args:
            counters: how far the run is; the frames name and order the checkpoints.

        Raises:
            CheckpointError: it could not be written; the earlier ones are unchanged.
        """
        states = {name: part.state_dict() for name, part in self._components.items()}
        states["counters"] = dataclasses.asdict(counters)
        metadata = {"identity": self._identity}
        directory = self._rotation.directory
        try:
            for stage in directory.glob(".*.stage-*"):  # left by a killed process
                shutil.rmtree(stage)
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
        """Restores every component, or none.

        Args:
            path: a checkpoint; the newest one by default.

        Returns:
            How far the run was.

        Raises:
            CheckpointError: the checkpoint is damaged, is of another run or network, or a component
                refused it. Nothing has changed then.
        """
        path = Path(path) if path is not None else self.latest()
        states = self._read(path)
        self._compare(path, states)
        counters = states.pop("counters")
        self._apply(path, states)
        return Counters(**counters)

    def _read(self, path: Path) -> dict[str, Any]:
        identity, names = read_identity(path)
        if identity != self._identity:
            raise _unfit(path, differences(identity, self._identity))
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
    """The saved part of an environment: its control-step counter.

    Physics and episodes are not saved; a resumed run starts new episodes.

    Args:
        env: publishes ``export_training_state`` and ``import_training_state``.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def state_dict(self) -> dict[str, int]:
        """``{"version": 1, "control_steps": n}``."""
        return dict(self._env.export_training_state())

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Hands the counter to the environment, which checks it."""
        self._env.import_training_state(dict(state))


class ReplayContents:
    """The filled rows of a TorchRL replay buffer, its cursor and its sampling generator.

    ``ReplayBuffer.dumps`` writes the storage at full capacity and may pickle. This writes only the
    filled rows, as tensors, at their positions, so that sampling continues exactly.

    Args:
        buffer: a buffer with a tensor storage and without prefetch.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def state_dict(self) -> dict[str, Any]:
        """Rows, writer, sampler and generator."""
        state = self._buffer.state_dict()
        rows = self._buffer.storage[: len(self._buffer)] if len(self._buffer) else None
        return {
            "rows": None if rows is None else rows.cpu().flatten_keys("/").to_dict(),
            "length": len(self._buffer),
            "capacity": self._buffer.storage.max_size,
            "writer": state["_writer"],
            "sampler": state["_sampler"],
            "generator": state["_rng"],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restores the rows at their positions."""
        length = saved["length"]
        self._buffer.empty()
        if length:
            rows = TensorDict(saved["rows"], batch_size=[length]).unflatten_keys("/")
            self._buffer.storage.set(range(length), rows)
        state = self._buffer.state_dict()
        state["_writer"] = saved["writer"]
        state["_sampler"] = saved["sampler"]
        state["_rng"] = saved["generator"]
        self._buffer.load_state_dict(state)

    def check_state(self, state: Any) -> str:
        """The reason why a saved state is invalid, or ``""``."""
        capacity = self._buffer.storage.max_size
        if state["capacity"] != capacity:
            return f"replay capacity {state['capacity']} in the checkpoint, {capacity} here"
        lengths = {len(t) for t in (state["rows"] or {}).values()}
        if lengths - {state["length"]}:
            return f"replay rows of lengths {sorted(lengths)}, expected {state['length']}"
        return ""
