"""What may act: a TensorDictModule, or a function of a TensorDict."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import nn

from unilab.errors import ConfigError

__all__ = ["Policy", "check_policy", "device_of"]

Policy = Callable[[TensorDictBase], TensorDictBase]


def check_policy(policy: Policy | None) -> None:
    """Confirm that a policy can be given a TensorDict; None draws random actions.

    Raises:
        ConfigError: it cannot be called, or is a module of tensors.
    """
    if policy is None:
        return
    name = type(policy).__name__
    if not callable(policy):
        raise ConfigError(
            f"policy is a {name}: expected a TensorDictModule, a function from TensorDict to "
            "TensorDict, or None for random actions"
        )
    if not isinstance(policy, nn.Module) or hasattr(policy, "in_keys"):
        return
    # TorchRL's collector knows modules of TensorDicts by these names as well.
    if list(inspect.signature(policy.forward).parameters) in (["tensordict"], ["td"]):
        return
    raise ConfigError(
        f"policy is a {name} without in_keys, so what it reads is unknown: wrap it, as "
        "TensorDictModule(policy, in_keys=['obs'], out_keys=['action']); if it takes a "
        "TensorDict, derive it from TensorDictModuleBase"
    )


def device_of(policy: Policy | None) -> torch.device:
    """Where a policy's parameters are; the CPU if it has none."""
    if isinstance(policy, nn.Module):
        for parameter in policy.parameters():
            return parameter.device
    return torch.device("cpu")
