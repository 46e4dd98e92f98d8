"""Collector whose environment steps in another process while the caller learns."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.collectors import BaseCollector, Collector
from torchrl.data import ReplayBuffer
from torchrl.envs import EnvBase, InitTracker, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.collectors.base import ProcessCollector
from unilab.collectors.placement import Placement
from unilab.collectors.policy_entries import PolicyEntries
from unilab.collectors.process import EnvProcess, Interrupted, Interruptor
from unilab.collectors.ring import Ring, pin
from unilab.errors import CollectorError

Policy = Callable[[TensorDictBase], TensorDictBase]


class PipelinedCollector(ProcessCollector):
    """Collects with the environment in a separate process and the policy in this one.

    At tick ``t`` the observation is in shared memory; the policy infers the action in this process
    and publishes it; then the environment steps in the other one while the caller's loop body runs
    in this one::

        learner      act 0           act 1 | body 0        act 2 | body 1        act 3 | ...
        environment        step 0          | step 1              | step 2              | ...

    So the action of tick ``t + 1`` comes from the policy before the loop body of the batch that
    ends with tick ``t``: at most one update of lag, and as many updates per frame as with TorchRL's
    synchronous :class:`~torchrl.collectors.Collector`. The data are, bit for bit, those of a
    ``Collector`` over the same environment with :class:`~torchrl.envs.InitTracker` whose caller
    runs each loop body after the first tick of the next batch. One thread at a time may use it; any
    may shut it down.

    Args:
        make_env: makes the environment, any TorchRL one; or an :class:`EnvProcess` that has it,
            for other than its default settings. An ``InitTracker`` is added where it has no
            ``is_init``.
        policy: a ``TensorDictModule`` or function from TensorDict to TensorDict; None draws
            actions uniformly from their spec.
        frames_per_batch: steps of a batch, all environments together; rounded up to whole ticks.
        total_frames: steps in all; -1 or None: no end.
        init_random_frames: steps at the beginning with actions drawn from their spec.
        placement: devices of environment, ring and policy; data are yielded on the learner's
            device. By default the ring is on the CPU and the policy where its parameters are.
        exploration_type: under which the policy acts.
        postproc: applied to each batch.
        replay_buffer: extended with each batch; None is yielded then.
        return_same_td: yield the shared memory itself, valid until the next batch is asked for,
            instead of a copy. A replay buffer must copy what it is given then, as those of
            :func:`~unilab.data.make_replay_buffer` do; lists and ``MultiStepTransform`` keep it.
        track_traj_ids: number the episodes, in ``("collector", "traj_ids")``.
        interruptor: asked at each tick and while waiting for the environment; iteration ends when
            it says so, and can be continued later.

    Attributes:
        env: the :class:`EnvProcess`.

    Examples:
        >>> import unilab
        >>> from unilab.collectors import PipelinedCollector
        >>> make_env = unilab.registry.factory("pendulum_swingup", num_envs=4, seed=0)
        >>> collector = PipelinedCollector(make_env, frames_per_batch=8, total_frames=16)
        >>> for data in collector:
        ...     print(tuple(data["next", "reward"].shape))
        (4, 2, 1)
        (4, 2, 1)
        >>> collector.shutdown()
    """

    def __init__(
        self,
        make_env: Callable[[], EnvBase] | EnvProcess,
        policy: Policy | None = None,
        *,
        frames_per_batch: int,
        total_frames: int | None = -1,
        init_random_frames: int | None = None,
        placement: Placement | None = None,
        exploration_type: ExplorationType = ExplorationType.RANDOM,
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
        replay_buffer: ReplayBuffer | None = None,
        return_same_td: bool = False,
        track_traj_ids: bool = True,
        interruptor: Interruptor | None = None,
    ) -> None:
        super().__init__(
            make_env,
            policy,
            frames_per_batch=frames_per_batch,
            total_frames=total_frames,
            placement=placement,
            return_same_td=return_same_td,
            interruptor=interruptor,
        )
        self.init_random_frames = init_random_frames or 0
        self.exploration_type = exploration_type
        self.postproc = postproc
        self.replay_buffer = replay_buffer
        self.track_traj_ids = track_traj_ids
        self._action_specs = dict(self.env.description.action_spec.items(True, True))
        # Ticks whose action was published, whose result is here, and which were yielded.
        self._asked = self._arrived = self._yielded = 0
        self._first_reset: int | None = None
        self._started = False
        self._traj_ids: Tensor
        self._next_episode: Tensor
        with self._closing_on_error():
            self._number_episodes_from(0)
            self._make_ring()

    def iterator(self) -> Iterator[TensorDictBase | None]:
        """The batches; another iteration continues where this one stopped."""
        while self._frames < self.total_frames:
            if self.pre_collect_hook is not None:
                self.pre_collect_hook()
            try:
                batch = self._collect()
            except Interrupted:
                return
            if self.postproc is not None:
                batch = self.postproc(batch)
            if not self.return_same_td:
                batch = batch.clone()
            if self.post_collect_hook is not None:
                self.post_collect_hook(batch)
            if self.replay_buffer is None:
                yield batch
            else:
                self.replay_buffer.extend(batch)
                yield None

    def _free_memory(self) -> None:
        self._unpin()
        # Batches that were yielded in place keep the ring for as long as they are held.
        for name in ("_shared", "_ring", "_carrier"):
            self.__dict__.pop(name, None)
        self._roots.clear()
        self._batches.clear()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment after its first reset; returns the seed for the next one."""
        with self.env.uninterrupted():
            self._start()
        return self.env.call("set_seed", seed, static_seed=static_seed)

    def _maybe_fallback_update(
        self, policy_or_weights: Any = None, *, model_id: str | None = None
    ) -> None:
        # Called by update_policy_weights_. The policy is the caller's own: nothing is sent.
        if policy_or_weights is not None:
            self.receive_weights(policy_or_weights)

    def state_dict(self) -> OrderedDict:
        """Counters, and the environment's training state and transforms.

        The state of the transforms is that after the step under way.
        """
        return OrderedDict(
            frames=self._frames,
            iter=self._iter,
            env_state_dict=self.env.call("state_dict"),
            env_training_state=self.env.export_training_state(),
            next_traj_id=int(self._next_episode),
        )

    def load_state_dict(self, state_dict: OrderedDict) -> None:
        """Continue counting where another collector stopped; episodes restart."""
        next_traj_id = state_dict["next_traj_id"]  # first, as a Collector's state has none
        if state_dict["env_state_dict"]:
            self.env.call("load_state_dict", state_dict["env_state_dict"])
        if state_dict["env_training_state"]:
            self.env.import_training_state(state_dict["env_training_state"])
        self._frames = state_dict["frames"]
        self._iter = state_dict["iter"]
        if not self._asked:
            self._number_episodes_from(next_traj_id)

    def _make_ring(self) -> None:
        layout, length = self.env.description.layout, self.frames_per_batch
        # The batch yielded, the tick being stepped, and the observation after it; whole batches, so
        # that no batch crosses the end of the ring.
        num_slots = length * max(2, -(-(length + 2) // length))
        nbytes = num_slots * layout.size(layout.keys)
        memory = self.env.share(nbytes, self.placement.ring_device)
        self._unpin: Callable[[], Any] = lambda: None
        self._ring = self._shared = Ring(memory, layout, num_slots)
        if self.placement.staging == "pinned":
            self._unpin = weakref.finalize(self, pin(memory))
            copy = torch.empty(nbytes, dtype=torch.uint8, device=self.placement.learner_device)
            self._ring = Ring(copy, layout, num_slots)
        self._batches = {
            first: self._ring.batch(first, length) for first in range(0, num_slots, length)
        }
        self._roots: dict[int, TensorDictBase] = {}
        self._carrier: TensorDictBase | None = None
        self._acted: TensorDictBase | None = None
        self._policy_entries = PolicyEntries(layout)
        self._own_entries: dict[int, TensorDictBase] = {}

    def _collect(self) -> TensorDictBase:
        self.env.require_open()
        self._start()
        while self._arrived < self._yielded + self.frames_per_batch:
            self.env.check_interrupt()
            self._act_and_step(self._frames)
            self._receive()
        frames = self._frames + self.requested_frames_per_batch
        if frames < self.total_frames:
            # Ctrl-C in here leaves the batch to the next iteration.
            self._act_and_step(frames)
        # Only now that the environment is busy again.
        batch = self._batches[self._yielded % self._ring.num_slots].copy()
        ticks = range(self._yielded, self._yielded + self.frames_per_batch)
        own = [self._own_entries[tick] for tick in ticks]
        if not all(entries.is_empty() for entries in own):
            batch.update(torch.stack(own, dim=-1))
        for tick in ticks:
            del self._own_entries[tick]
        self._yielded += self.frames_per_batch
        self._frames, self._iter = frames, self._iter + 1
        return batch

    def _start(self) -> None:
        if self._started:
            return
        if self._first_reset is None:
            self._first_reset = self.env.send("begin", self._ring.num_slots)
        self.env.receive(self._first_reset)
        self._copy_published(-1)
        self._started = True

    @torch.no_grad()
    def _act_and_step(self, frames: int) -> None:
        """Publish an action and have the environment step; once a tick, also after an interrupt."""
        if self._asked > self._arrived:
            return
        tick = self._asked
        if self._acted is None:
            self._acted = self._act(tick, frames)
        self._request = self.env.send("step", tick)
        self._asked += 1
        self._keep_entries(tick)

    def _act(self, tick: int, frames: int) -> TensorDictBase:
        carrier, self._carrier = self._carrier, None
        if carrier is None:
            carrier = self._root(tick).copy()
        if self.track_traj_ids:
            carrier.set(("collector", "traj_ids"), self._traj_ids)
        self._policy_entries.read(carrier)
        if self.policy is None or frames < self.init_random_frames:
            acted = self._draw(carrier)
        else:
            with set_exploration_type(self.exploration_type):
                acted = self.policy(carrier)
        if not isinstance(acted, TensorDictBase):
            raise CollectorError(
                "policy must return the TensorDict with the action in it, got "
                f"{type(acted).__name__}"
            )
        keys = self._ring.layout.input_keys
        self._ring.write(tick, acted, keys, "the policy", convert=True)
        if self._shared is not self._ring:
            self._shared.write(tick, acted, keys, "the policy", convert=True)
        self._shared.flush()
        return acted

    def _draw(self, carrier: TensorDictBase) -> TensorDictBase:
        for key, mask in self.env.description.action_masks:
            spec = self._action_specs[key]
            spec.update_mask(carrier.get(mask).to(spec.device))
        for key, spec in self._action_specs.items():
            carrier.set(key, spec.rand())
        return carrier

    def _keep_entries(self, tick: int) -> None:
        """Keep what else the policy wrote; the environment does not wait for this."""
        if self._acted is None:
            return
        # A policy may replace an observation, by a normalised one for example.
        entries = self._root(tick).items(True, True)
        replaced = tuple(k for k, value in entries if self._acted.get(k, value) is not value)
        self._ring.write(tick, self._acted, replaced, "the policy")
        own = self._policy_entries.take(self._acted)
        if self.track_traj_ids:
            own.set(("collector", "traj_ids"), self._traj_ids)
        self._own_entries[tick] = own
        self._acted = None

    def _receive(self) -> None:
        self._keep_entries(self._arrived)  # if that was interrupted
        self._carrier = self._root(self._arrived + 1).copy()  # while waiting anyway
        self.env.receive_step(self._request)
        self._copy_published(self._arrived)
        self._arrived += 1
        if not self.track_traj_ids and not self._policy_entries:
            return
        reset = self._was_reset(self._ring.slot(self._arrived - 1))
        if self._policy_entries:
            self._policy_entries.advance(self._root(self._arrived), reset)
        if self.track_traj_ids:  # without a look at the values, which would wait for the device
            begun = reset.reshape(-1).cumsum(0)
            numbers = (self._next_episode + begun - 1).view(reset.shape)
            self._traj_ids = torch.where(reset, numbers, self._traj_ids)
            self._next_episode = self._next_episode + begun[-1]

    def _root(self, tick: int) -> TensorDictBase:
        """Root entries of a tick, in place."""
        place = tick % self._ring.num_slots
        if place not in self._roots:
            self._roots[place] = self._ring.slot(place).select(*self._ring.layout.root_keys)
        return self._roots[place]

    def _copy_published(self, tick: int) -> None:
        if self._ring is not self._shared:
            self._ring.copy_published(tick, self._shared)

    def _was_reset(self, transition: TensorDictBase) -> Tensor:
        """``[*batch]`` bool."""
        reset = torch.zeros_like(self._traj_ids, dtype=torch.bool)
        for key in self.env.description.done_keys:
            done = transition.get(("next", key) if isinstance(key, str) else ("next", *key))
            reset |= done.reshape(*reset.shape, -1).any(-1)
        return reset

    def _number_episodes_from(self, first: int) -> None:
        shape, device = self.env.description.layout.transition.shape, self.placement.learner_device
        self._traj_ids = torch.arange(first, first + shape.numel(), device=device).view(shape)
        self._next_episode = torch.tensor(first + shape.numel(), device=device)


class _OpenCollector(Collector):
    """TorchRL's collector, whose environment stays open after the last batch, to be saved."""

    def _increment_frames(self, numel: int) -> bool:
        self._frames += numel
        return self._frames >= self.total_frames


def make_collector(
    env: EnvBase | EnvProcess | Callable[[], EnvBase],
    policy: TensorDictModuleBase,
    *,
    placement: Placement,
    pipelined: bool = False,
    **settings: Any,
) -> BaseCollector:
    """Collector whose batches are valid until the next one is asked for.

    Args:
        env: an environment, which steps in turns with the caller (TorchRL's ``Collector``); an
            :class:`EnvProcess`, which steps while the caller learns (:class:`PipelinedCollector`);
            or a function that makes an environment, for either.
        policy: acts on the learner's device.
        placement: devices of environment, ring and learner.
        pipelined: where ``env`` is a function: step while the caller learns.
        settings: ``frames_per_batch``, ``total_frames``, ``init_random_frames`` and whatever else
            both collectors take.
    """
    settings = {"track_traj_ids": False, "return_same_td": True} | settings
    if not isinstance(env, EnvBase | EnvProcess):
        env = EnvProcess(env) if pipelined else env()
    if isinstance(env, EnvProcess):
        return PipelinedCollector(env, policy, placement=placement, **settings)
    placement.check_env(env.device)
    return _OpenCollector(
        TransformedEnv(env, InitTracker()),  # exploration noise restarts at resets
        policy,
        policy_device=placement.learner_device,
        env_device=placement.env_device,
        storing_device=placement.learner_device,
        trust_policy=True,
        use_buffers=False,
        no_cuda_sync=True,  # else updates run on a stream that nothing after the loop waits for
        **settings,
    )
