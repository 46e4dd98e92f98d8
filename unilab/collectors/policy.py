"""Policies of a collector: type check, and the entries that they carry from tick to tick."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from unilab.collectors.ring import Layout
from unilab.errors import ConfigError

__all__ = ["CarriedEntries", "Policy", "check_policy", "device_of"]

Policy = Callable[[TensorDictBase], TensorDictBase]


def check_policy(policy: Policy | None) -> None:
    """Refuse a policy that does not take a TensorDict; None draws random actions."""
    if policy is None or (callable(policy) and not isinstance(policy, nn.Module)):
        return
    # TorchRL's collector recognises modules of TensorDicts by these names as well.
    names = (["tensordict"], ["td"])
    if isinstance(policy, nn.Module) and (
        hasattr(policy, "in_keys") or list(inspect.signature(policy.forward).parameters) in names
    ):
        return
    raise ConfigError(
        f"policy must be a TensorDictModule or a function of a TensorDict, got "
        f"{type(policy).__name__}: wrap a module of tensors as "
        "TensorDictModule(policy, in_keys=['obs'], out_keys=['action'])"
    )


def device_of(policy: Policy | None) -> torch.device:
    """Device of a policy's parameters; the CPU if it has none."""
    if isinstance(policy, nn.Module):
        for parameter in policy.parameters():
            return parameter.device
    return torch.device("cpu")


class CarriedEntries:
    """Policy-owned entries (recurrent state, held noise), carried from one tick to the next.

    As in TorchRL's step: what the policy wrote at the root is there again at the next tick, what
    it wrote under ``"next"`` comes to the root, and at a reset it is zeros, or the environment's
    value if that has one (a ``TensorDictPrimer``).

    Args:
        layout: of the environment's entries.
    """

    def __init__(self, layout: Layout) -> None:
        self._env_keys = layout.root_keys
        self._ring_keys = frozenset((*layout.root_keys, *layout.input_keys))
        self._empty = TensorDict({}, layout.batch_size)
        self._written = self._current = self._empty

    def __bool__(self) -> bool:
        """Whether the policy wrote any."""
        return not self._written.is_empty()

    def enter(self, carrier: TensorDictBase) -> None:
        """Put the entries of the last tick where the policy reads them."""
        if not self._current.is_empty():
            carrier.update(self._current)

    def leave(self, acted: TensorDictBase) -> TensorDictBase:
        """Take the policy's entries from what it returned.

        Returns:
            a copy of those that belong into the batch: all but private ones (``"_..."``).
        """
        own = [
            key
            for key in acted.keys(True, True)
            if key not in self._ring_keys and key[0] != "collector"
        ]
        if not own:
            self._written = self._empty
            return self._empty.copy()
        self._written = acted.select(*own)
        ahead = self._written.get("next", self._empty)
        for key in ahead.keys(True, True):
            if acted.get(key, None) is None:  # in the first tick nothing has come to the root yet
                self._written.set(key, torch.zeros_like(ahead.get(key)))
        for key in self._env_keys:
            if key in self._current.keys(True) or key in ahead.keys(True):
                self._written.set(key, acted.get(key))
        private = [
            key
            for key in self._written.keys(True, True)
            if (key if isinstance(key, str) else key[-1]).startswith("_")
        ]
        # A copy: the policy may write into the same tensors at the next tick.
        return self._written.exclude(*private).clone()

    def advance(self, root: TensorDictBase, reset: Tensor) -> None:
        """Move on to the next tick.

        Args:
            root: the environment's entries of that tick.
            reset: ``[*batch]`` bool, environments that were just reset.
        """
        values = self._written.exclude("next")
        values.update(self._written.get("next", self._empty))
        for key in list(values.keys(True, True)):
            value = values.get(key)
            rows = reset.reshape(*reset.shape, *(1,) * (value.ndim - reset.ndim)).to(value.device)
            start = root.get(key) if key in self._env_keys else torch.zeros_like(value)
            values.set(key, torch.where(rows, start, value))
        self._current = values
