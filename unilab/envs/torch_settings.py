"""PyTorch's settings while an environment computes."""

from __future__ import annotations

from contextlib import ContextDecorator

import torch

PARALLEL_GRAIN = 32768
"""Elements below which PyTorch runs elementwise operations on one CPU thread (at::GRAIN_SIZE)."""


class TorchSettings(ContextDecorator):
    """Default dtype float32, and one CPU thread for a small batch; the caller's are restored.

    Args:
        one_thread: whether the batch is too small for more CPU threads. MKL's vector functions
            (exp, sin, ...) start threads for far smaller tensors than PyTorch does. On busy cores
            the wait for such a thread costs thousands of times the work.
    """

    def __init__(self, one_thread: bool = False) -> None:
        self._one_thread = one_thread

    def _recreate_cm(self) -> TorchSettings:
        return TorchSettings(self._one_thread)  # a decorated function may call itself

    def __enter__(self) -> None:
        self._outside = torch.get_default_dtype(), torch.get_num_threads()
        if self._outside[0] != torch.float32:
            torch.set_default_dtype(torch.float32)
        if self._one_thread:
            torch.set_num_threads(1)

    def __exit__(self, *exc: object) -> None:
        dtype, num_threads = self._outside
        if dtype != torch.float32:
            torch.set_default_dtype(dtype)
        if self._one_thread:
            torch.set_num_threads(num_threads)
