"""What events write: staged whole, checked whole, written once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unilab.backends import SimBackend
from unilab.envs.nonfinite import bad_rows, is_finite
from unilab.errors import ConfigError, NonFiniteError


@dataclass(frozen=True)
class StagedWrite:
    """Values for some columns of a tensor that has a row an environment."""

    target: Tensor
    index: tuple[Tensor | int, ...]
    """What follows the rows."""
    value: Tensor
    """``[n, ...]``."""
    what: str
    """For messages: the field's name."""
    derives: bool
    """Whether other fields of the model follow from it."""


@dataclass
class Transaction:
    """The rows of an open transaction and what will be written to them."""

    rows: Tensor
    """``[n]`` int64, on the CPU."""
    qpos: Tensor
    """``[n, nq]`` float64."""
    qvel: Tensor
    """``[n, nv]`` float64."""
    reset: bool
    """Whether a new episode begins."""
    writes: list[StagedWrite] = field(default_factory=list)
    """Model parameters and the like."""

    def stage(self, write: StagedWrite) -> None:
        """Add a write.

        Raises:
            ConfigError: its index or the shape of its values does not fit.
        """
        columns = write.target.shape[1 : 1 + len(write.index)]
        if len(columns) < len(write.index):
            raise ConfigError(
                f"{write.what} was written with {len(write.index)} indices: "
                f"it has {write.target.ndim - 1}"
            )
        places = 1
        for index, size in zip(write.index, columns, strict=True):
            at = _places(write.what, index)
            if at and not -size <= min(at) <= max(at) < size:
                raise ConfigError(
                    f"{write.what} was written at {at}: expected indices below {size}"
                )
            if len(at) != 1:
                if places not in (1, len(at)):
                    raise ConfigError(
                        f"{write.what} was written at {len(at)} and {places} indices: give as many"
                    )
                places = len(at)
        shape = (self.rows.shape[0], places, *write.target.shape[1 + len(write.index) :])
        if tuple(write.value.shape) != shape:
            raise ConfigError(
                f"{write.what} was written with values of shape {tuple(write.value.shape)}: "
                f"expected {shape}"
            )
        self.writes.append(write)

    def validate(self, writer: str) -> None:
        """Check the whole payload before anything is written.

        Args:
            writer: what staged it, for messages.

        Raises:
            NonFiniteError: a staged value is not finite; nothing was written.
        """
        for write in self.writes:
            if not is_finite(write.value):
                bad = self.rows[bad_rows(write.value)]
                raise NonFiniteError(
                    f"{writer} staged non-finite {write.what} for rows {bad.tolist()}: "
                    "nothing was written",
                    bad.tolist(),
                )
        if is_finite(self.qpos) and is_finite(self.qvel):
            return
        bad = self.rows[bad_rows(torch.cat((self.qpos, self.qvel), dim=1))]
        raise NonFiniteError(
            f"{writer} staged non-finite state for rows {bad.tolist()}: nothing was written",
            bad.tolist(),
        )

    def commit(
        self, backend: SimBackend, before_write: Callable[[StagedWrite, Tensor], None] | None
    ) -> None:
        """Write everything.

        Args:
            backend: whose state is written, and whose model's derived fields follow.
            before_write: told of every write to a model parameter and of its rows.
        """
        for write in self.writes:
            rows = self.rows.to(write.target.device)
            if before_write is not None:
                before_write(write, rows)
            write.target[(rows.unsqueeze(1), *write.index)] = write.value.to(write.target)
        if any(write.derives for write in self.writes):
            backend.set_const(self.rows)
        backend.set_state_tensor(self.rows, self.qpos, self.qvel, reset=self.reset)


def _places(what: str, index: Tensor | int) -> list[int]:
    """The columns that an index names, as numbers: reductions of short tensors are slow."""
    if isinstance(index, int) and not isinstance(index, bool):
        return [index]
    integers = (torch.int32, torch.int64)
    if not isinstance(index, Tensor) or index.dtype not in integers or index.ndim > 1:
        raise ConfigError(f"{what} was written at {index}: expected indices [m]")
    return index.reshape(-1).tolist()
