"""PyTorch's own CPU threads, which small batches are better off without."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

PARALLEL_GRAIN = 32768
"""Elements below which PyTorch runs elementwise operations on one CPU thread (at::GRAIN_SIZE)."""


class OneThread(AbstractContextManager[None]):
    """PyTorch on one CPU thread.

    MKL's vector functions (exp, sin, ...) start threads for far smaller tensors than PyTorch does.
    On cores that physics, a learner or a neighbour also uses, waiting for such a thread costs
    up to a scheduler's time slice, thousands of times the work.
    """

    _outside = 1

    def __enter__(self) -> None:
        self._outside = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *exc: object) -> None:
        torch.set_num_threads(self._outside)
