"""Policy-owned entries (recurrent state, held noise) from tick to tick."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from unilab.collectors.ring import Layout


class PolicyEntries:
    """Entries that the policy adds to the environment's.

    As in TorchRL's step: what the policy wrote at the root is there again at the next tick, what
    it wrote under ``"next"`` moves to the root, and at a reset it is zeros, or the environment's
    value if that has one (a ``TensorDictPrimer``).
    """

    def __init__(self, layout: Layout) -> None:
        self._env_keys = layout.root_keys
        self._ring_keys = frozenset((*layout.root_keys, *layout.input_keys))
        self._empty = TensorDict({}, layout.transition.batch_size)
        self._written = self._current = self._empty

    def __bool__(self) -> bool:
        """Whether the policy wrote any."""
        return not self._written.is_empty()

    def read(self, carrier: TensorDictBase) -> None:
        """Put the entries of the last tick where the policy reads them."""
        if not self._current.is_empty():
            carrier.update(self._current)

    def take(self, acted: TensorDictBase) -> TensorDictBase:
        """Keep the policy's entries; returns a copy without private ones (``"_..."``)."""
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
            if acted.get(key, None) is None:  # in the first tick nothing was moved to the root yet
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
        """Continue with the next tick, whose environment entries are ``root``."""
        values = self._written.exclude("next")
        values.update(self._written.get("next", self._empty))
        for key in list(values.keys(True, True)):
            value = values.get(key)
            rows = reset.reshape(reset.shape + (1,) * (value.ndim - reset.ndim)).to(value.device)
            start = root.get(key) if key in self._env_keys else torch.zeros_like(value)
            values.set(key, torch.where(rows, start, value))
        self._current = values
