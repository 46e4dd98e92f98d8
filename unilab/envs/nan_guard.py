"""NaN guard: a dump of the last states before an environment became non-finite, and its replay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unilab.backends import MujocoBackend, SimBackend
from unilab.checks import Count, check_fields
from unilab.envs.transaction import StagedWrite
from unilab.errors import ConfigError, NonFiniteError, why_unreadable

DUMP_VERSION = 4


@dataclass(frozen=True, kw_only=True)
class NanGuardCfg:
    """Size and folder of the dump."""

    output_dir: str | Path
    """Folder for the dump, below the environment's output folder."""
    buffer_size: Count = 100
    """Control steps in the dump."""
    max_envs_to_dump: Count = 5
    """Environments in the dump."""

    def __post_init__(self) -> None:
        check_fields(self, "nan_guard")


class _Overwritten:
    """The values of a model parameter in the last step, of rows that were written since."""

    def __init__(self, write: StagedWrite) -> None:
        self._write = write
        self.values = torch.empty_like(write.target)
        self.rows = torch.zeros(len(self.values), dtype=torch.bool, device=self.values.device)

    def swap(self, backend: SimBackend) -> None:
        """Swap the current and the saved values."""
        now = self._write.target[self.rows]
        self._write.target[self.rows] = self.values[self.rows]
        self.values[self.rows] = now
        if self._write.derives and self.rows.any():
            backend.set_const(self.rows.nonzero().flatten())


class NanGuard:
    """Ring buffer of the last states, actions and controls of every environment."""

    def __init__(
        self, cfg: NanGuardCfg, backend: SimBackend, action_dim: int, device: torch.device
    ) -> None:
        self.parent = Path()
        """Folder that ``output_dir`` is relative to."""
        self._cfg = cfg
        self._backend = backend
        self._state = backend.get_replay_state()
        self._states = self._state.new_zeros(cfg.buffer_size, *self._state.shape)
        shape = cfg.buffer_size, backend.num_envs
        self._actions = torch.zeros(*shape, action_dim, device=device)
        self._ctrls = torch.zeros(*shape, len(backend.actuators), device=device)
        self._after = torch.zeros_like(self._state)
        self._recorded = 0
        self._overwritten: dict[int, _Overwritten] = {}

    def record(self, action: Tensor, ctrl: Tensor) -> None:
        """Save the state before a step, its actions and its controls ``[num_envs, nu]``."""
        at = self._recorded % self._cfg.buffer_size
        self._states[at].copy_(self._state)
        self._actions[at].copy_(action)
        self._ctrls[at].copy_(ctrl)
        self._recorded += 1
        for field in self._overwritten.values():
            field.rows.fill_(False)

    def record_after(self) -> None:
        """Save the state after physics, before events and resets write to it."""
        self._after.copy_(self._state)

    def record_write(self, write: StagedWrite, rows: Tensor) -> None:
        """Save the values of a model parameter that a write is about to replace."""
        field = self._overwritten.get(id(write.target))
        if field is None:
            field = self._overwritten[id(write.target)] = _Overwritten(write)
        first = rows[~field.rows[rows]]
        field.values[first] = write.target[first]
        field.rows[first] = True

    def dump(self, error: NonFiniteError, *, control_steps: int, nstep: int, seed: int) -> Path:
        """Write the last states of the rows that the error names, and return the file."""
        rows = error.rows[: self._cfg.max_envs_to_dump]
        kept = min(self._recorded, self._cfg.buffer_size)
        order = [i % self._cfg.buffer_size for i in range(self._recorded - kept, self._recorded)]
        self._swap_models()  # to those of the last step, and back
        models = [bytearray(self._backend.get_model_bytes(row)) for row in rows]
        self._swap_models()
        content = {
            "version": DUMP_VERSION,
            "backend": type(self._backend).__name__,
            "message": str(error),
            "seed": seed,
            "control_steps": control_steps,
            "nstep": nstep,
            "rows": rows,
            "fields": self._fields(),
            "states": self._states[order][:, rows].cpu(),
            "actions": self._actions[order][:, rows].cpu(),
            "ctrls": self._ctrls[order][:, rows].cpu(),
            "after": self._after[rows].cpu(),
            "last": self._state[rows].cpu(),
            "models": [torch.frombuffer(model, dtype=torch.uint8) for model in models],
        }
        folder = self.parent / self._cfg.output_dir
        folder.mkdir(parents=True, exist_ok=True)
        suffixes = (f"_{number}" if number > 1 else "" for number in count(1))
        paths = (folder / f"nan_dump_{control_steps}{suffix}.pt" for suffix in suffixes)
        path = next(path for path in paths if not path.exists())
        torch.save(content, path)
        return path

    def _swap_models(self) -> None:
        for field in self._overwritten.values():
            field.swap(self._backend)

    def _fields(self) -> dict[str, list[int]]:
        """First and last column of each state field within the replay state."""
        memory = self._state.untyped_storage().data_ptr()
        return {
            name: [first, first + view.shape[1]]
            for name, view in self._backend.get_state_views().items()
            if view.untyped_storage().data_ptr() == memory and view.stride() == self._state.stride()
            for first in [int(view.storage_offset() - self._state.storage_offset())]
        }


def load_dump(path: str | Path) -> dict[str, Any]:
    """Read a dump."""
    try:
        content = torch.load(path, weights_only=True)
        version = content["version"]
    except Exception as error:  # torch.load raises many kinds
        raise ConfigError(f"{path} must be a NaN guard dump: {why_unreadable(error)}") from error
    if version != DUMP_VERSION:
        raise ConfigError(f"{path} must be a dump of version {DUMP_VERSION}, got {version!r}")
    return content


@dataclass(frozen=True)
class DumpReplay:
    """Report of a replay, and whether every row ends as in the dump, bit for bit."""

    report: str
    same: bool


def replay_dump(path: str | Path, backend: type[SimBackend] = MujocoBackend) -> DumpReplay:
    """Repeat the last control step of every row of a dump that ``backend`` wrote."""
    dump = load_dump(path)
    if dump["backend"] != backend.__name__:
        raise ConfigError(
            f"{path} was written by {dump['backend']}: replay it with "
            f"unilab.envs.nan_guard.replay_dump(path, {dump['backend']})"
        )
    lines = [
        f"after {dump['control_steps']} control steps with seed {dump['seed']}: {dump['message']}"
    ]
    same = True
    for i, row in enumerate(dump["rows"]):
        try:
            found, repeats = _replay_row(dump, i, backend)
        except Exception as error:  # the simulator may raise anything for a damaged file
            raise ConfigError(f"{path}: row {row} cannot be replayed: {error}") from error
        lines.append(f"row {row}: {found}")
        same &= repeats
    return DumpReplay("\n".join(lines), same)


def _replay_row(dump: dict[str, Any], i: int, backend: type[SimBackend]) -> tuple[str, bool]:
    states, last = dump["states"][:, i], dump["last"][i]
    if not len(states):
        return f"it had taken no step; its state was {_finite(last)}", True
    model, ctrl = dump["models"][i].numpy().tobytes(), dump["ctrls"][-1, i].double()
    after = backend.replay(model, states[-1], ctrl, dump["nstep"])
    same = _same(after, dump["after"][i])
    verdict = "the same" if same else "NOT the same"
    found = f"physics is {_finite(after)} after the last step, {verdict} as then, bit for bit"
    if not _same(last, dump["after"][i]):
        found += f"; an event or a reset wrote to it since, and it was {_finite(last)}"
    largest = ", ".join(_largest(state, dump["fields"]) for state in states[-5:])
    return f"{found}; largest value of each of the last states before it: {largest}", same


def _largest(state: Tensor, fields: dict[str, list[int]]) -> str:
    """The largest value of a state but its time, with field and column."""
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
    return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
