"""Ranks of a data-parallel training: mean gradients, and decisions that all take together."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrl import timeit

from unilab.errors import ActorContractError, NonFiniteError, RankError, first_line

if TYPE_CHECKING:
    from unilab.trainers.checkpoint import Stateful

_Result = TypeVar("_Result")
SyncGradients = Callable[[Sequence[nn.Parameter], Mapping[str, Tensor]], None]
"""Hook of a learner between backward and step: its parameters, and the losses by name."""


class Ranks:
    """This process among those that train together, the default group of ``torch.distributed``.

    A process without a group is alone: rank 0 of 1, and every method returns at once.

    Each rank has its own environments, replay buffer, exploration and normalisers, on its own
    device. The ranks share weights and optimizers: they start from those of rank 0
    (:meth:`broadcast`) and then take the same steps, of mean gradients (:meth:`average_gradients`).

    Every method but :attr:`is_first` must be called by all ranks, in the same order. If another
    rank has ended, they raise a :class:`~unilab.errors.RankError`.

    Attributes:
        rank: of this process, from 0.
        size: number of ranks.

    Examples:
        >>> ranks = Ranks()
        >>> ranks.rank, ranks.size, ranks.max(3)
        (0, 1, 3)
    """

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.size = dist.get_world_size() if joined else 1

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that logs, evaluates and saves."""
        return self.rank == 0

    def average_gradients(
        self, parameters: Sequence[nn.Parameter], losses: Mapping[str, Tensor]
    ) -> None:
        """Replace gradients by their means over all ranks, in one all-reduce.

        It is the ``sync_gradients`` of a learner; ``torchrl.timeit("sync")`` has the time.

        Args:
            parameters: their gradients exist after this; a missing one counts as 0.
            losses: that the gradients are of, by name. If one is not finite, or the names differ
                between ranks, all ranks raise the same error, which names the rank.
        """
        if self.size == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        # Each rank fills its own row, so that the sum has what every rank says of its losses.
        says = grads[0].new_zeros(self.size, 2)
        names = ",".join(sorted(losses)).encode()
        says[self.rank, 0] = zlib.crc32(names) % 2**20  # exact in float32
        for loss in losses.values():
            says[self.rank, 1] += ~loss.detach().isfinite().all()
        flat = torch.cat([says.flatten(), *(grad.flatten() for grad in grads)])
        with timeit("sync"), self._with_others():
            dist.all_reduce(flat)
        (digest, *others), invalid = flat[: says.numel()].view_as(says).T.tolist()
        if any(invalid) or any(other != digest for other in others):
            self._refuse(losses)
        parts = flat[says.numel() :].div_(self.size).split([p.numel() for p in trained])
        for parameter, part in zip(trained, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)

    def _refuse(self, losses: Mapping[str, Tensor]) -> None:
        """Raise the error of losses that differ in names between ranks, or are not finite."""
        everyone = self.gather({name: float(loss.detach()) for name, loss in losses.items()})
        for rank, theirs in enumerate(everyone):
            if set(theirs) != set(everyone[0]):
                differing = ", ".join(sorted(set(theirs) ^ set(everyone[0])))
                raise ActorContractError(
                    f"losses must have the same names in all ranks, but {differing} is only in one "
                    f"of rank 0 and rank {rank}: return 0 for a loss that is off"
                )
        for rank, theirs in enumerate(everyone):
            for name, value in theirs.items():
                if not math.isfinite(value):
                    raise NonFiniteError(
                        f"{name} is {value} in rank {rank} of {self.size}, and no rank has taken "
                        "this step: look for NaN or huge numbers in the batch, or for a division "
                        "or a logarithm in the actor"
                    )

    def broadcast(self, part: Stateful) -> None:
        """Load rank 0's ``state_dict`` in all others, e.g. of a learner at the start."""
        if self.size == 1:
            return
        file = io.BytesIO()
        if self.is_first:
            torch.save(part.state_dict(), file)
        state = self.from_first(file.getvalue)
        if not self.is_first:
            part.load_state_dict(torch.load(io.BytesIO(state), "cpu", weights_only=True))

    def from_first(self, work: Callable[[], _Result]) -> _Result:
        """What ``work`` returns in rank 0, the only one that calls it."""
        result: list[Any] = [work() if self.is_first else None]
        if self.size > 1:
            with self._with_others():
                dist.broadcast_object_list(result)
        return result[0]

    def gather(self, value: _Result) -> list[_Result]:
        """The values of all ranks, by rank."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            with self._with_others():
                dist.all_gather_object(values, value)
        return values

    def max(self, value: int) -> int:
        """The largest value of all ranks; waits for them."""
        if self.size == 1:
            return value
        largest = torch.tensor(value)
        with self._with_others():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    @contextmanager
    def _with_others(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self.size} lost another one ({first_line(error)}): see the "
                "error of the rank that failed"
            ) from error
