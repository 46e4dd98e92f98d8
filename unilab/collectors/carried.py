"""What a policy writes for itself: a recurrent state, the noise of the tick before."""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor

from unilab.collectors.ring import Layout

__all__ = ["Carried"]


class Carried:
    """The policy's own entries, from one tick to the next.

    The environment, in its process, never sees them, but for what its ``state_spec`` names. As in
    TorchRL's step, what the policy wrote at the root is there again at the next tick, what it wrote
    under ``"next"`` comes to the root, and an episode that begins starts from zeros, or from the
    environment's value where that has one (a ``TensorDictPrimer``).

    Args:
        layout: of what the environment reads and writes.
    """

    def __init__(self, layout: Layout) -> None:
        self._environment = layout.root_keys
        self._ring = frozenset((*layout.root_keys, *layout.input_keys))
        self._empty = TensorDict({}, layout.batch_size)
        self._written = self._current = self._empty

    def enter(self, carrier: TensorDictBase) -> None:
        """Put the entries of the tick before where the policy reads them."""
        if not self._current.is_empty():
            carrier.update(self._current)

    def leave(self, acted: TensorDictBase) -> TensorDictBase:
        """Take the policy's entries.

        Args:
            acted: what the policy returned; its ``"next"`` has none of the environment's entries.

        Returns:
            those that belong to the transition, beside the ring's; private ones do not.
        """
        own = [
            key for key in acted.keys(True, True) if key not in self._ring and key[0] != "collector"
        ]
        if not own:  # as ever with a policy that only acts
            self._written = self._empty
            return self._empty.copy()
        self._written = acted.select(*own)
        ahead = self._written.get("next", self._empty)
        for key in ahead.keys(True, True):
            # Nothing has come to the root yet, in the first tick: the transitions have one form.
            if acted.get(key, None) is None:
                self._written.set(key, torch.zeros_like(ahead.get(key)))
        for key in self._environment:
            if key in self._current.keys(True) or key in ahead.keys(True):
                self._written.set(key, acted.get(key))
        private = [key for key in self._written.keys(True, True) if _last(key).startswith("_")]
        # Copies: it may write into the same tensors at the next tick.
        return self._written.exclude(*private).clone()

    @property
    def anything(self) -> bool:
        """Whether :meth:`advance` has anything to do."""
        return not self._written.is_empty()

    def advance(self, begun: TensorDictBase, ended: Tensor) -> None:
        """Make them those of the next tick.

        Args:
            begun: the environment's root entries of that tick.
            ended: ``[*batch]`` bool, where its episode begins.
        """
        values = self._written.exclude("next")
        values.update(self._written.get("next", self._empty))
        for key in list(values.keys(True, True)):
            value = values.get(key)
            rows = ended.reshape(*ended.shape, *(1,) * (value.ndim - ended.ndim)).to(value.device)
            start = begun.get(key) if key in self._environment else torch.zeros_like(value)
            values.set(key, torch.where(rows, start, value))
        self._current = values


def _last(key: NestedKey) -> str:
    return key if isinstance(key, str) else key[-1]
