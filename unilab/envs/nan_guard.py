"""NaN guard: the last states of an environment that became non-finite, and their replay."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unilab.backends import MujocoBackend, SimBackend
from unilab.checks import check_fields
from unilab.envs.transaction import StagedWrite
from unilab.errors import ConfigError, NonFiniteError, why_unreadable

DUMP_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class NanGuardCfg:
    """What is kept, and where it is written once a value is not finite.

    Raises:
        ConfigError: a number that is no integer of at least 1, or a folder that is no path.
    """

    output_dir: str | Path
    """Folder for the dump, below the one that the environment writes to."""
    buffer_size: int = 100
    """Control steps that are kept."""
    max_envs_to_dump: int = 5
    """Environments in a dump."""

    def __post_init__(self) -> None:
        check_fields(self, "nan_guard")
        for name in ("buffer_size", "max_envs_to_dump"):
            if getattr(self, name) < 1:
                raise ConfigError(f"nan_guard {name} is {getattr(self, name)}: give at least 1")


class _Overwritten:
    """What a model parameter was in the last step, in rows that were written to since."""

    def __init__(self, write: StagedWrite) -> None:
        self._write = write
        self.values = torch.empty_like(write.target)
        self.rows = torch.zeros(len(self.values), dtype=torch.bool, device=self.values.device)

    def swap(self, backend: SimBackend) -> None:
        """Exchange it for what it is now: twice changes nothing."""
        now = self._write.target[self.rows]
        self._write.target[self.rows] = self.values[self.rows]
        self.values[self.rows] = now
        if self._write.derives and self.rows.any():
            backend.set_const(self.rows.nonzero().flatten().cpu())


class NanGuard:
    """Keeps the last states, actions and controls of every environment.

    Args:
        cfg: what is kept.
        backend: the physics.
        action_dim: columns of an action.
    """

    def __init__(self, cfg: NanGuardCfg, backend: SimBackend, action_dim: int) -> None:
        self.parent = Path()
        """What the configured folder is relative to."""
        self._cfg = cfg
        self._backend = backend
        self._state = backend.get_replay_state()
        self._states = self._state.new_zeros(cfg.buffer_size, *self._state.shape)
        self._actions = torch.zeros(cfg.buffer_size, backend.num_envs, action_dim)
        self._ctrls = torch.zeros(cfg.buffer_size, backend.num_envs, len(backend.actuators))
        self._after = torch.zeros_like(self._state)
        self._stepped = False
        self._recorded = 0
        self._overwritten: dict[int, _Overwritten] = {}

    def record(self, action: Tensor, ctrl: Tensor) -> None:
        """Keep the state before a step, its actions and its controls ``[num_envs, nu]``."""
        at = self._recorded % self._cfg.buffer_size
        self._states[at].copy_(self._state)
        self._actions[at].copy_(action)
        self._ctrls[at].copy_(ctrl)
        self._recorded += 1
        self._stepped = False
        for field in self._overwritten.values():
            field.rows.fill_(False)

    def record_after(self) -> None:
        """Keep the state that physics left, before events and resets write to it."""
        self._after.copy_(self._state)
        self._stepped = True

    def record_write(self, write: StagedWrite, rows: Tensor) -> None:
        """Keep what a write to a model parameter is about to replace."""
        field = self._overwritten.get(id(write.target))
        if field is None:
            field = self._overwritten[id(write.target)] = _Overwritten(write)
        first = rows[~field.rows[rows]]
        field.values[first] = write.target[first]
        field.rows[first] = True

    def dump(self, error: NonFiniteError, *, control_steps: int, nstep: int, seed: int) -> Path:
        """Write the kept states of the rows that the error names, and leave all as it is.

        Args:
            error: what was found.
            control_steps: when.
            nstep: physics substeps of a control step.
            seed: of the environment's random generator.

        Returns:
            The file.
        """
        rows = error.rows[: self._cfg.max_envs_to_dump]
        kept = min(self._recorded, self._cfg.buffer_size)
        order = [i % self._cfg.buffer_size for i in range(self._recorded - kept, self._recorded)]
        with self._last_models():
            models = [bytearray(self._backend.get_model_bytes(row)) for row in rows]
        content = {
            "version": DUMP_VERSION,
            "backend": type(self._backend).__name__,
            "message": str(error),
            "seed": seed,
            "control_steps": control_steps,
            "nstep": nstep,
            "rows": rows,
            "fields": self._fields(),
            "states": self._states[order][:, rows].clone(),
            "actions": self._actions[order][:, rows].clone(),
            "ctrls": self._ctrls[order][:, rows].clone(),
            "stepped": self._stepped,
            "after": self._after[rows].clone(),
            "last": self._state[rows].clone(),
            "models": [torch.frombuffer(model, dtype=torch.uint8) for model in models],
        }
        folder = self.parent / self._cfg.output_dir
        folder.mkdir(parents=True, exist_ok=True)
        again = (f"_{number}" if number > 1 else "" for number in count(1))
        paths = (folder / f"nan_dump_{control_steps}{suffix}.pt" for suffix in again)
        path = next(path for path in paths if not path.exists())
        whole = path.with_suffix(".tmp")
        try:
            torch.save(content, whole)
            os.replace(whole, path)
        finally:
            whole.unlink(missing_ok=True)
        return path

    @contextmanager
    def _last_models(self) -> Iterator[None]:
        """Let the models be what they were in the last step."""
        fields = list(self._overwritten.values())
        for field in fields:
            field.swap(self._backend)
        try:
            yield
        finally:
            for field in fields:
                field.swap(self._backend)

    def _fields(self) -> dict[str, list[int]]:
        """First and last column of each state field that is part of what is kept."""
        memory = self._state.untyped_storage().data_ptr()
        return {
            name: [first, first + view.shape[1]]
            for name, view in self._backend.get_state_views().items()
            if view.untyped_storage().data_ptr() == memory and view.stride() == self._state.stride()
            for first in [int(view.storage_offset() - self._state.storage_offset())]
        }


_KINDS: dict[str, type] = {
    "backend": str,
    "message": str,
    "seed": int,
    "control_steps": int,
    "nstep": int,
    "rows": list,
    "fields": dict,
    "states": Tensor,
    "actions": Tensor,
    "ctrls": Tensor,
    "stepped": bool,
    "after": Tensor,
    "last": Tensor,
    "models": list,
}


def load_dump(path: str | Path) -> dict[str, Any]:
    """Read a dump.

    Raises:
        ConfigError: it is missing, or no dump of this version.
    """
    try:
        content = torch.load(path, weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no dump at {path}") from error
    except Exception as error:
        raise ConfigError(f"{path} is no dump of the NaN guard: {why_unreadable(error)}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != DUMP_VERSION:
        raise ConfigError(f"{path} is a dump of version {version!r}: expected {DUMP_VERSION}")
    wrong = [f"{name} is missing" for name in _KINDS if name not in content]
    wrong += [
        f"{name} is {type(content[name]).__name__}: expected {kind.__name__}"
        for name, kind in _KINDS.items()
        if name in content and not isinstance(content[name], kind)
    ]
    wrong = wrong or [
        f"{name} has shape {tuple(value.shape)}: expected {[*shape, '...']}"
        for name, shape in _shapes(content).items()
        for value in [content[name]]
        if tuple(value.shape[: len(shape)]) != shape or value.ndim != len(shape) + 1
    ]
    if not wrong and len(content["models"]) != len(content["rows"]):
        wrong = [f"{len(content['models'])} models for {len(content['rows'])} rows"]
    if wrong:
        raise ConfigError(
            f"{path} is an incomplete dump ({'; '.join(wrong)}): copy it again, or let the failure "
            "leave another"
        )
    return content


def _shapes(dump: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """What the shapes of a dump's tensors begin with."""
    kept, rows = len(dump["states"]) if dump["states"].ndim else 0, len(dump["rows"])
    steps = dict.fromkeys(("states", "actions", "ctrls"), (kept, rows))
    return {**steps, "after": (rows,), "last": (rows,)}


@dataclass(frozen=True)
class DumpReplay:
    """What the repetition of a dump's steps came to."""

    report: str
    """What was found then and now; a line for each row."""
    same: bool
    """Whether every row that took its step ended as it did then, bit for bit."""


def replay_dump(path: str | Path, backend: type[SimBackend] = MujocoBackend) -> DumpReplay:
    """Repeat the last control step of every row of a dump.

    Args:
        path: the file.
        backend: the physics that left it.

    Raises:
        ConfigError: the file cannot be read or replayed, or other physics left it.
    """
    dump = load_dump(path)
    if dump["backend"] != backend.__name__:
        raise ConfigError(
            f"{path} was left by {dump['backend']}: replay it with "
            f"unilab.envs.nan_guard.replay_dump(path, {dump['backend']})"
        )
    lines = [
        f"after {dump['control_steps']} control steps with seed {dump['seed']}: {dump['message']}"
    ]
    if not dump["rows"]:
        lines.append("the error names no environments: there is nothing to repeat")
    same = True
    for i, row in enumerate(dump["rows"]):
        try:
            found, repeats = _repeated(dump, i, backend)
        except Exception as error:  # whatever a simulator raises
            raise ConfigError(f"{path}: row {row} cannot be replayed: {error}") from error
        lines.append(f"row {row}: {found}")
        same &= repeats
    return DumpReplay("\n".join(lines), same)


def _repeated(dump: dict[str, Any], i: int, backend: type[SimBackend]) -> tuple[str, bool]:
    """What the repetition of a row's last step comes to and what led to it; whether it repeats."""
    states, last = dump["states"][:, i], dump["last"][i]
    if not len(states):
        return f"it had taken no step; its state was {_finite(last)}", True
    ctrl, same = dump["ctrls"][-1, i], True
    if dump["stepped"]:
        after = backend.replay(
            dump["models"][i].numpy().tobytes(), states[-1], ctrl.double(), dump["nstep"]
        )
        same = _same(after, dump["after"][i])
        verdict = "the same" if same else "NOT the same"
        found = f"physics is {_finite(after)} after the last step, {verdict} as then, bit for bit"
        if not _same(last, dump["after"][i]):
            found += f"; an event or a reset wrote to it since, and it was {_finite(last)}"
    else:
        values = " ".join(f"{value:.3g}" for value in ctrl)
        found = f"physics did not take the last step, whose controls are {_finite(ctrl)}: {values}"
    largest = ", ".join(_largest(state, dump["fields"]) for state in states[-5:])
    return f"{found}; largest value of each of the last states before it: {largest}", same


def _largest(state: Tensor, fields: dict[str, list[int]]) -> str:
    """The largest value of a state's fields, time aside, with the field and column that hold it."""
    named = {
        at: f"{name}[{at - start}]"
        for name, (start, stop) in fields.items()
        if name != "time"
        for at in range(start, stop)
    } or {at: f"state[{at}]" for at in range(len(state))}
    sizes = state.abs().nan_to_num(math.inf)
    at = max(named, key=lambda at: float(sizes[at]))
    return f"{named[at]} {state[at]:.3g}"


def _finite(value: Tensor) -> str:
    return "finite" if bool(value.isfinite().all()) else "not finite"


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two states are equal, NaN for NaN."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
