"""Checkpoints of a run: written at once or not at all, loaded whole or refused whole."""

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

__all__ = ["Checkpointer", "Counters", "EnvTrainingState", "ReplayContents"]

_OPTIONAL = ("replay",)


class Stateful(Protocol):
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
        """What is wrong with saved counters, or ``""``."""
        problem = state_problem(state, dataclasses.asdict(Counters()), "counters")
        if problem:
            return problem
        fine = state and state["frames"] >= 0 and 0.0 <= state["minutes"] < math.inf
        return "" if fine else f"counters are {state}, expected frames and minutes of at least 0"


class Checkpointer:
    """Writes and restores the complete state of a run.

    A checkpoint is staged beside its destination and renamed into place, so an interrupted write
    leaves the earlier ones as they were. Loading reads everything (``weights_only=True``: no code
    in the file runs), compares it with the live objects, and only then touches them; if one of
    them still refuses its state, all are put back.

    Args:
        directory: the run's ``checkpoints/``.
        components: name -> object with ``state_dict``/``load_state_dict``. The counters of the run
            and the global random generators of Python, NumPy and torch are saved beside them. A
            component named ``replay`` may be absent from a checkpoint.
        identity: JSON values that must agree between checkpoint and run, such as the task and the
            widths of observations and actions.
        keep: newest checkpoints to keep.
    """

    def __init__(
        self,
        directory: str | Path,
        components: Mapping[str, Stateful],
        *,
        identity: Mapping[str, Any],
        keep: int = 3,
    ) -> None:
        # The random generators come last: restoring another component must not advance them.
        self._components: dict[str, Any] = {**components, "rng": GlobalRNGState()}
        self._identity = dict(identity)
        self._rotation = CheckpointRotation(directory, keep_last=keep)

    def save(self, counters: Counters) -> Path:
        """Writes a checkpoint and drops the oldest ones.

        Args:
            counters: how far the run is; the frames name and order the checkpoints.

        Raises:
            CheckpointError: it could not be written; the earlier ones are untouched.
        """
        states = {name: part.state_dict() for name, part in self._components.items()}
        states["counters"] = dataclasses.asdict(counters)
        metadata = {"identity": self._identity}
        try:
            for stage in self._rotation.directory.glob(".*.stage-*"):  # of one that was killed
                shutil.rmtree(stage)
            return self._rotation.save(
                as_checkpoint(states), step=counters.frames, metadata=metadata
            )
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                f"no checkpoint written to {self._rotation.directory} ({error}): free space or fix "
                "its permissions; the last complete one is "
                f"{self._rotation.latest() or 'none yet'}"
            ) from error

    def latest(self) -> Path:
        """The newest checkpoint.

        Raises:
            CheckpointError: there is none.
        """
        latest = newest(self._rotation.directory)
        if latest is None:
            raise CheckpointError(
                f"{self._rotation.directory} holds no complete checkpoint: this run cannot be "
                "continued, start a new one"
            )
        return latest

    def load(self, path: str | Path | None = None) -> Counters:
        """Restores every component, or none.

        Args:
            path: a checkpoint; the newest one by default.

        Returns:
            How far the run was.

        Raises:
            CheckpointError: the checkpoint is damaged, is of another run or network, or was
                refused by a component. Nothing has changed then.
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
            raise CheckpointError(
                f"checkpoint {path} is of another run: {differences(identity, self._identity)}. "
                "Nothing was loaded; resume with the configuration that the run was started with"
            )
        unknown = names - {*self._components, *_OPTIONAL, "counters"}
        if unknown:
            raise CheckpointError(
                f"checkpoint {path} does not fit this run: it holds {', '.join(sorted(unknown))} "
                "as well, which nothing here takes up"
            )
        wanted = [n for n in self._components if n not in _OPTIONAL or n in names]
        return read_states(path, [*wanted, "counters"])

    def _compare(self, path: Path, states: Mapping[str, Any]) -> None:
        live = {**self._components, "counters": Counters()}
        for name, state in states.items():
            check = getattr(live[name], "check_state", None)
            try:
                problem = (
                    check(state)
                    if check is not None
                    else state_problem(state, live[name].state_dict(), name)
                )
            except Exception as error:  # it looked for what every state of its kind has
                problem = f"{name} is no state of its kind ({type(error).__name__}: {error})"
            if problem:
                raise CheckpointError(
                    f"checkpoint {path} does not fit this run: {problem}. Nothing was loaded; "
                    "resume with the configuration that the run was started with"
                )

    def _apply(self, path: Path, states: Mapping[str, Any]) -> None:
        # The replay buffer is large and checks its state itself, so it is not copied for rollback.
        before = {
            name: copy.deepcopy(self._components[name].state_dict())
            for name in states
            if name not in _OPTIONAL
        }
        try:
            for name in self._components:
                if name in states:
                    self._components[name].load_state_dict(states[name])
        except Exception as error:
            stuck = [name for name, state in before.items() if not self._put_back(name, state)]
            after = (
                f"{', '.join(stuck)} did not take the state before either: start anew"
                if stuck
                else "Everything is as it was before"
            )
            raise CheckpointError(f"checkpoint {path} was refused ({error}). {after}") from error

    def _put_back(self, name: str, state: Any) -> bool:
        try:
            self._components[name].load_state_dict(state)
        except Exception:
            # The error that matters is the one that made this necessary.
            return False
        return True


class EnvTrainingState:
    """The part of an environment that outlives a run: its control-step counter.

    Physics and episodes are not part of it; a resumed run starts with fresh episodes.

    Args:
        env: publishes ``export_training_state`` and ``import_training_state``.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def state_dict(self) -> dict[str, int]:
        """``{"version": 1, "control_steps": n}``."""
        return dict(self._env.export_training_state())

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Hands the counters back to the environment."""
        self._env.import_training_state(dict(state))

    def check_state(self, state: Any) -> str:
        """What is wrong with a saved state, or ``""``."""
        if not isinstance(state, Mapping) or state.get("version") != 1:
            return f"env training state must have version 1, got {state!r}"
        steps = state.get("control_steps")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            return f"env control_steps must be a non-negative integer, got {steps!r}"
        return ""


class ReplayContents:
    """The filled rows of a TorchRL replay buffer with its cursor and sampling generator.

    ``ReplayBuffer.dumps`` writes the storage at full capacity and may pickle; this writes the rows
    that exist, as tensors, at the positions that they had, so that sampling continues exactly.

    Args:
        buffer: a buffer on a tensor storage, without prefetch.
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
        """Puts the rows back where they were."""
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
        """What is wrong with a saved state, or ``""``."""
        capacity = self._buffer.storage.max_size
        if state["capacity"] != capacity:
            return f"replay capacity {state['capacity']} in the checkpoint, {capacity} here"
        lengths = {len(t) for t in (state["rows"] or {}).values()}
        if lengths - {state["length"]}:
            return f"replay rows of lengths {sorted(lengths)}, expected {state['length']}"
        return ""
