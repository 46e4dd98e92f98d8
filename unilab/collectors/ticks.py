"""The ticks between the learner and its environment, from observation to batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor

from unilab.collectors.carried import Carried
from unilab.collectors.placement import Placement
from unilab.collectors.process import EnvProcess
from unilab.collectors.ring import Ring, pin
from unilab.collectors.spans import Spans
from unilab.errors import CollectorError

__all__ = ["Ticks"]


class Ticks:
    """Has actions published, results received and batches handed out, each tick once.

    Whatever is interrupted can be called again: what was done is not done a second time.

    Args:
        env: steps.
        placement: where the ring is, and where the batches are handed out.
        length: ticks of a batch.

    Keyword Args:
        numbered: give the episodes numbers, in ``("collector", "traj_ids")``.
        spans: account for waiting.

    Attributes:
        asked: ticks so far whose action was published.
        arrived: those whose result is there.
        handed: those that the caller has got.
        next_episode: the number of the next one that begins.
    """

    def __init__(
        self, env: EnvProcess, placement: Placement, length: int, *, numbered: bool, spans: Spans
    ) -> None:
        layout = env.description.layout
        self.spans = spans
        self.asked = self.arrived = self.handed = 0
        self._env = env
        self._length = length
        self._carried = Carried(layout)
        self._acted: dict[int, TensorDictBase] = {}
        self._own_entries: dict[int, TensorDictBase] = {}
        self._next_carrier: TensorDictBase | None = None
        self._numbered = numbered
        self.number_from(0)
        # Being handed out, being stepped, and the first observation after that; whole batches, so
        # that none crosses the ring's end.
        num_slots = length * max(2, -(-(length + 2) // length))
        nbytes = num_slots * layout.slot_bytes
        self._shared = Ring(env.share(nbytes, placement.ring_device), layout, num_slots)
        self._ring = self._shared
        if placement.staging == "pinned":
            pin(self._shared.memory)
            memory = torch.empty(nbytes, dtype=torch.uint8, device=placement.learner_device)
            self._ring = Ring(memory, layout, num_slots)
        self._roots: dict[int, TensorDictBase] = {}
        self._observed: dict[int, dict[NestedKey, Any]] = {}
        self._batches = {
            first: self._ring.batch(first, length) for first in range(0, num_slots, length)
        }
        self._begin_asked = self._began = False

    def number_from(self, first: int) -> None:
        """Number the episodes under way, and those to come after them."""
        batch_size = self._env.description.layout.batch_size
        self.next_episode = first + batch_size.numel()
        self._traj_ids = torch.arange(first, self.next_episode).view(batch_size)

    def free(self) -> None:
        """Let go of the ring; batches that were handed out in place keep it for as long as held."""
        self.__dict__.pop("_shared", None)
        self.__dict__.pop("_ring", None)
        self._roots.clear()
        self._observed.clear()
        self._batches.clear()

    def begin(self) -> None:
        """Have the first observation in the ring; the environment resets for it."""
        if self._began:
            return
        if not self._begin_asked:
            self._env.send("begin", self._ring.num_slots)
            self._begin_asked = True
        with self.spans.span("ring wait", 0):
            self._env.receive("began")
        self._env.timings()  # The first reset belongs to no tick.
        self._copy_published(-1)
        self._began = True

    @property
    def due(self) -> bool:
        """Whether results are missing for a batch."""
        return self.arrived < self.handed + self._length

    def ask(self, act: Callable[[TensorDictBase], TensorDictBase]) -> None:
        """Have the newest observation acted on, and the environment step.

        Args:
            act: adds the action to the observation; not called where it did so before.
        """
        if self.asked > self.arrived:
            return
        tick = self.asked
        if tick not in self._acted:
            self._act(tick, act)
        # Interrupted from here on, it is sent again; a step that was done is not done again.
        self._env.send("step", tick)
        self.asked += 1
        self._keep(tick)

    def receive(self) -> None:
        """Wait for the result of the tick that was asked for."""
        self._keep(self.arrived)  # if that was interrupted
        # While there is time: nobody else waits for it now, as the environment does later.
        self._next_carrier = self._root(self.arrived + 1).copy()
        with self.spans.span("ring wait", self.arrived):
            tick = self._env.receive_step()
            while tick < self.arrived:  # of a step that was sent twice
                tick = self._env.receive_step()
        if tick != self.arrived:
            raise CollectorError(f"tick {tick} arrived where {self.arrived} was due")
        self._copy_published(tick)
        self.arrived += 1
        if self._numbered or self._carried.anything:
            ended = self._ended(self._ring.slot(tick))
            if self._numbered:
                self._number_episodes(ended)
            if self._carried.anything:
                self._carried.advance(self._root(self.arrived), ended)

    def hand_out(self) -> TensorDictBase:
        """The next batch, ``[*batch, time]``, in place."""
        first, last = self.handed, self.handed + self._length
        batch = self._batches[first % self._ring.num_slots].copy()
        own = [self._own_entries[tick] for tick in range(first, last)]
        if not all(entries.is_empty() for entries in own):
            batch.update(_stacked(own))
        for tick in range(first, last):
            del self._own_entries[tick]
        self.handed = last
        return batch

    def _act(self, tick: int, act: Callable[[TensorDictBase], TensorDictBase]) -> None:
        """Put the action of a tick into the ring."""
        carrier, self._next_carrier = self._next_carrier, None
        if carrier is None:
            carrier = self._root(tick).copy()
        if self._numbered:
            carrier.set(("collector", "traj_ids"), self._traj_ids)
        self._carried.enter(carrier)
        layout = self._ring.layout
        acted = act(carrier)
        if not isinstance(acted, TensorDictBase):
            raise CollectorError(
                f"the policy returned a {type(acted).__name__}: expected the TensorDict with the "
                "action in it"
            )
        self._ring.write(tick, acted, layout.input_keys, "the policy", convert=True)
        if self._shared is not self._ring:
            self._shared.write(tick, acted, layout.input_keys, "the policy", convert=True)
        self._shared.flush()
        self._acted[tick] = acted

    def _keep(self, tick: int) -> None:
        """Keep what else the policy wrote; the environment does not wait for that."""
        acted = self._acted.get(tick)
        if acted is None:
            return
        # A policy may put its own view of an observation, normalised say, in the place of it.
        keys = self._ring.layout.root_keys
        observed, now = self._observed[tick % self._ring.num_slots], _by_key(acted, keys)
        changed = tuple(key for key in now if now[key] is not observed[key])
        if changed:
            self._ring.write(tick, acted, changed, "the policy")
        own = self._carried.leave(acted)
        if self._numbered:
            own.set(("collector", "traj_ids"), self._traj_ids)
        self._own_entries[tick] = own
        del self._acted[tick]

    def _root(self, tick: int) -> TensorDictBase:
        """The observation of a tick, in place."""
        place = tick % self._ring.num_slots
        if place not in self._roots:
            keys = self._ring.layout.root_keys
            root = self._roots[place] = self._ring.slot(place).select(*keys)
            self._observed[place] = _by_key(root, keys)
        return self._roots[place]

    def _copy_published(self, tick: int) -> None:
        if self._ring is not self._shared:
            self._ring.copy_published(tick, self._shared)

    def _ended(self, transition: TensorDict) -> Tensor:
        """``[*batch]`` bool, which environments were just reset."""
        ended = torch.zeros_like(self._traj_ids, dtype=torch.bool)
        for key in self._env.description.done_keys:
            done = transition.get(("next", key) if isinstance(key, str) else ("next", *key))
            ended |= done.reshape(*ended.shape, -1).any(-1).to(ended.device)
        return ended

    def _number_episodes(self, ended: Tensor) -> None:
        """Give the environments that were just reset new episode numbers."""
        count = int(ended.sum())
        if count:
            self._traj_ids = self._traj_ids.clone()
            self._traj_ids[ended] = torch.arange(self.next_episode, self.next_episode + count)
            self.next_episode += count


def _by_key(tensordict: TensorDictBase, keys: tuple[NestedKey, ...]) -> dict[NestedKey, Any]:
    """The entries of these keys that are there, one step in Python for all that are not nested."""
    found: dict[NestedKey, Any] = dict(tensordict.items())
    for key in keys:
        if not isinstance(key, str):
            found[key] = tensordict.get(key, None)
    return {key: found[key] for key in keys if found.get(key) is not None}


def _stacked(ticks: list[TensorDictBase]) -> TensorDictBase:
    """What the policy wrote, as ``[*batch, time]``."""
    try:
        return torch.stack(ticks, dim=-1)
    except RuntimeError:
        seen = [set(entries.keys(True, True)) for entries in ticks]
        some = set.union(*seen) - set.intersection(*seen)
        if not some:
            raise
        raise CollectorError(
            f"the policy wrote {min(some, key=str)!r} at some ticks of a batch and not at others: "
            "have it write the same entries at each"
        ) from None
