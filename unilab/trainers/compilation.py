"""Faster updates: precision of matrix products, torch.compile, and CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import CudaGraphModule
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from unilab.errors import ConfigError, first_line
from unilab.modules.layers import Block, Embedder, UnitLinear
from unilab.objectives import FlashSACLoss
from unilab.trainers.ranks import Ranks

Step = Callable[[TensorDictBase], dict[str, Tensor]]

#: PyTorch's names of the CPU units that multiply bfloat16 and add in float32.
BF16_UNITS = ("amx_bf16", "avx512_bf16")


def matmul_dtype(amp_dtype: str | None, *, device: torch.device) -> torch.dtype | None:
    """The dtype in which hidden layers multiply; None keeps the parameters' dtype.

    ``"auto"`` is bfloat16 on a CPU that has units for it, where training is as good and faster.
    """
    if amp_dtype not in (None, "bfloat16", "auto"):
        raise ConfigError(f"amp_dtype must be None, 'bfloat16' or 'auto', got {amp_dtype!r}")
    if amp_dtype == "auto":
        has = torch.cpu.get_capabilities() if device.type == "cpu" else {}
        amp_dtype = "bfloat16" if any(has.get(unit, False) for unit in BF16_UNITS) else None
    return torch.bfloat16 if amp_dtype else None


@contextmanager
def product_precision(
    networks: nn.Module, dtype: torch.dtype | None, *, allow_tf32: bool
) -> Iterator[None]:
    """Reduced precision of matrix products inside; layers and PyTorch's settings are restored.

    Args:
        dtype: of the products in embedders and blocks; None keeps the parameters' dtype. Heads and
            everything else keep it always.
        allow_tf32: PyTorch's setting of that name for CUDA's float32 products. False does not
            touch it.
    """
    hidden = [
        layer
        for part in (networks.modules() if dtype else ())
        if isinstance(part, Embedder | Block)
        for layer in part.children()
        if isinstance(layer, UnitLinear)
    ]
    cuda = torch.backends.cuda.matmul
    before = cuda.fp32_precision
    set_tf32 = allow_tf32 and before != "tf32"
    try:
        for layer in hidden:
            layer.matmul_dtype = dtype
        if set_tf32:
            cuda.allow_tf32 = True  # sets fp32_precision as well; Inductor needs both to agree
        yield
    finally:
        for layer in hidden:
            layer.matmul_dtype = None
        if set_tf32:
            cuda.allow_tf32 = False
            cuda.fp32_precision = before


def use_cuda_graph(wanted: bool | None, *, device: torch.device, custom: bool) -> bool:
    """Whether updates are captured as CUDA graphs (ADR-0017 C26); by default on NVIDIA.

    Not with several ranks, whose check of each other's losses a replay would skip.
    """
    on_nvidia = device.type == "cuda" and torch.version.hip is None
    alone = Ranks().size == 1
    if wanted is None:
        wanted = on_nvidia and alone
    if wanted and not alone:
        raise ConfigError("use_whole_cycle_cuda_graph must be False, or None, with several devices")
    if wanted and custom:
        raise ConfigError(
            "use_whole_cycle_cuda_graph must be False with a custom actor, whose code a graph may "
            "not be able to replay (the default is True on NVIDIA)"
        )
    if wanted and not on_nvidia:
        raise ConfigError(
            f"use_whole_cycle_cuda_graph needs an NVIDIA device, got {device}: leave it None to "
            "use it where there is one"
        )
    return wanted


def capture(step: Step, loss: FlashSACLoss) -> Step:
    """A part of an update that is recorded once as a CUDA graph and replayed on new batches.

    It must return detached tensors and make every change in place.
    """
    graph = CudaGraphModule(step)

    def replay(tensordict: TensorDictBase) -> dict[str, Tensor]:
        optional = (loss.tensor_keys.steps_to_next_obs, loss.tensor_keys.priority_weight)
        return graph(tensordict.select(*loss.in_keys, *optional, strict=False))

    return replay


class CompiledOrEager:
    """A compiled function; if it cannot be compiled, the function itself, with a warning."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._eager = function
        # With fullgraph, a failure to compile comes before anything ran: no running statistics
        # have moved when the eager function takes over.
        self._call = torch.compile(function, fullgraph=True, dynamic=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of a method, a copy calls the copied object.
        return CompiledOrEager, (self._eager,)

    def __call__(self, *args: Tensor) -> Any:
        try:
            return self._call(*args)
        except TorchDynamoException as error:
            warnings.warn(
                f"torch.compile failed ({first_line(error)}): updates run eagerly, with the same "
                "results. Install a C++ compiler, or pass compile=False to silence this",
                RuntimeWarning,
                stacklevel=4,
            )
            self._call = self._eager
        return self._eager(*args)
