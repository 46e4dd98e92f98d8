"""The learner's update made faster: compiled, or captured as CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import CudaGraphModule
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from unilab.errors import ConfigError
from unilab.objectives import FlashSACLoss

__all__ = ["CompiledOrEager", "Step", "captured", "matmul_dtype", "use_cuda_graph"]

Step = Callable[[TensorDictBase], dict[str, Tensor]]

BF16_UNITS = ("amx_bf16", "avx512_bf16")
"""What PyTorch calls the units of CPUs that multiply bfloat16 and add in float32."""


def matmul_dtype(amp_dtype: str | None, *, device: torch.device) -> torch.dtype | None:
    """In which precision linear layers multiply; None: their own.

    Args:
        amp_dtype: the setting; "auto" is bfloat16 on a CPU that has units for it, where it is
            known to train as well and faster.
        device: where the learner is.

    Raises:
        ConfigError: no such setting.
    """
    if amp_dtype not in (None, "bfloat16", "auto"):
        raise ConfigError(f"amp_dtype={amp_dtype!r}: expected None, 'bfloat16' or 'auto'")
    if amp_dtype == "auto":
        has = torch.cpu.get_capabilities() if device.type == "cpu" else {}
        amp_dtype = "bfloat16" if any(has.get(unit, False) for unit in BF16_UNITS) else None
    return torch.bfloat16 if amp_dtype else None


def use_cuda_graph(wanted: bool | None, *, device: torch.device, custom: bool) -> bool:
    """Whether updates are captured (ADR-0017 C26).

    Args:
        wanted: the setting; None: on NVIDIA.
        device: where the learner is.
        custom: whether the actor is anybody's.

    Raises:
        ConfigError: they would be, and cannot.
    """
    on_nvidia = device.type == "cuda" and torch.version.hip is None
    if wanted is None:
        wanted = on_nvidia
    if wanted and custom:
        raise ConfigError(
            "use_whole_cycle_cuda_graph with a custom actor, whose code may do what a graph cannot "
            "repeat: set use_whole_cycle_cuda_graph=false (on NVIDIA it is on by default)"
        )
    if wanted and not on_nvidia:
        raise ConfigError(
            f"use_whole_cycle_cuda_graph with the learner on {device}: it needs an NVIDIA device; "
            "leave it null to have it where there is one"
        )
    return wanted


def captured(step: Step, loss: FlashSACLoss) -> Step:
    """A part of an update that is recorded once and then replayed on new batches.

    Args:
        step: tensors in, detached tensors out, and every change made in place.
        loss: says which entries of a batch are read.
    """
    graph = CudaGraphModule(step)

    def replay(tensordict: TensorDictBase) -> dict[str, Tensor]:
        # A graph copies what it is given: give it only what is read.
        keys = (*loss.in_keys, loss.tensor_keys.steps_to_next_obs)
        return graph(tensordict.select(*keys, strict=False))

    return replay


class CompiledOrEager:
    """A compiled function that turns into the plain one, with a warning, if it does not compile."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._eager = function
        # fullgraph: it compiles whole, before anything ran, or it does not. So a failure has
        # moved no running statistics when the plain function takes over.
        self._call = torch.compile(function, fullgraph=True, dynamic=False)

    def __call__(self, *args: Tensor) -> Any:
        try:
            return self._call(*args)
        except TorchDynamoException as error:
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"torch.compile does not work here ({cause}): updates run eagerly, with the same "
                "results. Install a C++ compiler, or pass compile=False to silence this",
                RuntimeWarning,
                stacklevel=4,
            )
            self._call = self._eager
        return self._eager(*args)
