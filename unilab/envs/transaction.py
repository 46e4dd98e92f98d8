"""Transactions: the staged write of a reset or an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unilab.envs.nonfinite import bad_rows, is_finite
from unilab.errors import ConfigError, NonFiniteError

State = tuple[Tensor, Tensor]
"""``qpos [n, nq]`` and ``qvel [n, nv]``, float64."""


@dataclass(frozen=True)
class StagedWrite:
    """Values for some columns of a tensor with one row for each environment."""

    target: Tensor
    index: tuple[Tensor | int, ...]
    """Index after the row."""
    value: Tensor
    """``[n, ...]``."""
    what: str
    """The field's name, for messages."""
    derives: bool
    """Whether other fields of the model are computed from it."""
    changes_state: bool = True
    """Whether what physics computes from the state changes with it."""

    def commit(self, rows: Tensor) -> None:
        """Write to the rows ``[n]``, on the target's device."""
        self.target[(rows.unsqueeze(1), *self.index)] = self.value.to(self.target)


@dataclass(frozen=True)
class Payload:
    """A transaction that has been checked, on the physics' device."""

    rows: Tensor
    state: State
    writes: list[StagedWrite]
    """Each on its target's device."""
    changes_state: bool
    """Whether the state must be written, or computed again."""


class Transaction:
    """Rows to write and their new values: staged and checked whole, then written once.

    Terms stage tensors of the environment's device. :meth:`validate` copies all that goes to
    physics on the CPU in one piece.

    Args:
        rows: ``[n]`` int64.
        physics: the physics' device, the rows' own or the CPU.
        read: reads the current state of rows, on the physics' device.
        home: the state that new episodes start from; None stages the current state, which is read
            when a term asks for it.
    """

    payload: Payload
    """What :meth:`validate` checked last."""

    def __init__(
        self,
        rows: Tensor,
        physics: torch.device,
        read: Callable[[Tensor], State],
        *,
        home: State | None,
    ) -> None:
        self.rows = rows
        self._physics = physics
        self.reset = home is not None
        """Whether new episodes begin."""
        self._read = read
        self._state = home
        self._writes: list[StagedWrite] = []

    @property
    def qpos(self) -> Tensor:
        """``[n, nq]`` float64, to write to."""
        return self._staged_state()[0]

    @property
    def qvel(self) -> Tensor:
        """``[n, nv]`` float64, to write to."""
        return self._staged_state()[1]

    def _staged_state(self) -> State:
        if self._state is None:
            qpos, qvel = self._read(self.rows.to(self._physics))
            if self.rows.device.type != self._physics.type:
                packed = torch.cat((qpos, qvel), 1).to(self.rows.device)
                qpos, qvel = packed.tensor_split((qpos.shape[1],), 1)
            self._state = qpos, qvel
        return self._state

    def stage(self, write: StagedWrite) -> None:
        """Add a write to a model parameter or another tensor."""
        counts = [i.numel() if isinstance(i, Tensor) else 1 for i in write.index]
        shape = (self.rows.shape[0], max(counts), *write.target.shape[1 + len(counts) :])
        fits = len(counts) < write.target.ndim and all(n in (1, max(counts)) for n in counts)
        if not fits or write.value.shape != shape:
            raise _misfit(write)
        self._writes.append(write)

    def validate(self, writer: str) -> None:
        """Check that indices are in range and values finite; errors name ``writer``."""
        staged = [self.rows, *(self._state or ())]
        for write in self._writes:
            staged += [write.value, *(i for i in write.index if isinstance(i, Tensor))]
        resident = self._physics.type == self.rows.device.type
        there = iter(staged if resident else _on_host(staged))
        rows = next(there)
        state = (next(there), next(there)) if self._state else self._read(rows)
        moved, writes = [], []
        for write in self._writes:
            value = next(there)
            index = tuple(next(there) if isinstance(i, Tensor) else i for i in write.index)
            moved.append(replace(write, index=index, value=value))
            here = write.target.device.type == rows.device.type
            writes.append(moved[-1] if here else write)
        if rows.device.type == "cpu" or not _all_good(moved, state):
            _check(moved, state, rows, writer)
        changes_state = self.reset or self._state is not None
        changes_state = changes_state or any(write.changes_state for write in writes)
        self.payload = Payload(rows, state, writes, changes_state)


def _check(writes: Sequence[StagedWrite], state: State, rows: Tensor, writer: str) -> None:
    for write in writes:
        if not _in_range(write):
            raise _misfit(write)
    named = zip(("state (qpos)", "state (qvel)"), state, strict=True)
    for what, value in (*((write.what, write.value) for write in writes), *named):
        if not is_finite(value):
            bad = rows[bad_rows(value)].tolist()
            raise NonFiniteError(
                f"{writer} staged non-finite {what} for rows {bad}: nothing was written", bad
            )


def _all_good(writes: Sequence[StagedWrite], state: State) -> bool:
    """Whether :func:`_check` would pass, with one wait for the device."""
    good = [value.isfinite().all() for value in (*(write.value for write in writes), *state)]
    for write in writes:
        for size, index in zip(write.target.shape[1:], write.index, strict=False):
            if isinstance(index, Tensor):
                good.append(((index >= -size) & (index < size)).all())
            elif not -size <= index < size:
                return False
    # Terms may have made some of them on the CPU.
    return bool(torch.stack([each.to(state[0].device) for each in good]).all())


def _on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the CPU; those of an accelerator are copied in one piece."""
    away = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    if not away:
        return list(tensors)
    # float64 holds float32 and indices as they are.
    packed = torch.cat([tensor.reshape(-1).double() for tensor in away]).cpu()
    parts = iter(packed.split([tensor.numel() for tensor in away]))
    return [
        tensor
        if tensor.device.type == "cpu"
        else next(parts).reshape(tensor.shape).to(tensor.dtype)
        for tensor in tensors
    ]


def _in_range(write: StagedWrite) -> bool:
    sizes = write.target.shape[1:]
    for size, index in zip(sizes, write.index, strict=False):
        # Lists, because reductions of short tensors are slow.
        at = [index] if isinstance(index, int) else index.reshape(-1).tolist()
        if at and not (-size <= min(at) and max(at) < size):
            return False
    return True


def _misfit(write: StagedWrite) -> ConfigError:
    index = [i.tolist() if isinstance(i, Tensor) else i for i in write.index]
    return ConfigError(
        f"{write.what} must be written at indices below {tuple(write.target.shape[1:])} with "
        f"values [n, *indices, *the rest], got {tuple(write.value.shape)} at {index}"
    )
