"""A TorchRL collector whose environment steps in another process while the caller learns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from textwrap import indent
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.collectors import BaseCollector
from torchrl.data import ReplayBuffer, TensorStorage
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.collectors.carried import Carried
from unilab.collectors.placement import Placement, resolve_collector_tensor_placement
from unilab.collectors.policy import Policy, check_policy, device_of
from unilab.collectors.process import EnvProcess, Interrupted, Interruptor
from unilab.collectors.ring import Ring, pin
from unilab.collectors.spans import LEARNER_SPANS, Spans
from unilab.errors import CollectorError, ConfigError

__all__ = ["PipelinedCollector"]


_STATE = ("frames", "iter", "env_state_dict", "env_training_state", "next_traj_id")


class PipelinedCollector(BaseCollector):
    """Collects with the environment in a process of its own and the policy in this one.

    At tick ``t`` the observation lies in shared memory; the policy infers the action here and
    publishes it; then the environment steps there while the caller's loop body runs here::

        learner    act 0           act 1 | body 0        act 2 | body 1        act 3 | ...
        collector        step 0          | step 1              | step 2              | ...

    So the action of tick ``t + 1`` comes from the policy before the loop body of the batch that
    ends with tick ``t``: one update of lag in the usual loop, and as many updates a frame as with
    TorchRL's synchronous :class:`~torchrl.collectors.Collector`. The first action of a batch is the
    only one that is late. With batches of one tick the data are, bit for bit, those of a
    ``Collector`` over the same environment with :class:`~torchrl.envs.InitTracker` whose caller
    runs each loop body one batch late, random numbers included; with larger batches those of one
    whose caller runs it after the first tick of the next batch. A policy's own entries come back
    at the next tick and begin anew with the episode, where those of a ``Collector`` may not:
    docs/guide/runtime.md has the cases.

    Args:
        make_env: makes the environment, any TorchRL one; or an :class:`EnvProcess` that has it.
            Where it has no ``is_init``, an ``InitTracker`` is put around it.
        policy: a ``TensorDictModule`` or function from TensorDict to TensorDict; None draws
            actions uniformly from their spec.

    Keyword Args:
        frames_per_batch: steps of a batch, all environments together; rounded up to whole ticks.
        total_frames: steps in all; -1 or None for no end.
        init_random_frames: steps at the beginning with actions drawn from their spec.
        placement: where environment, ring and policy live; data are handed out on the learner's
            device. By default the ring is on the CPU and the policy where its parameters are.
        exploration_type: under which the policy acts.
        postproc: applied to each batch.
        replay_buffer: extended with each batch, straight from shared memory where its storage
            copies what it is given; None is yielded then.
        return_same_td: hand out the shared memory itself, valid until the next batch is asked
            for, instead of a copy.
        track_traj_ids: number the episodes, in ``("collector", "traj_ids")``.
        interruptor: asked while waiting for the environment; iteration ends when it says so, and
            can be taken up again.
        num_threads: torch's threads in the collector process, 1 by default.
        step_timeout_s: seconds after which a step counts as hung, 120 by default. Both are an
            :class:`EnvProcess`'s own where one is given.

    Attributes:
        env: the :class:`EnvProcess`.
        spans: the time that inference and waiting for the environment take here.

    Raises:
        ConfigError: frames_per_batch is below 1, ``make_env`` no function, the policy none that
            takes a TensorDict, or the placement no :class:`Placement`; or num_threads or
            step_timeout_s is given beside an EnvProcess.
        PlacementError: the environment is not where the placement says.
        CollectorError: the environment could not be made or sent, or has a collector already.
            While iterating: the process died, raised or hangs; the message has its traceback.

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
        num_threads: int | None = None,
        step_timeout_s: float | None = None,
    ) -> None:
        super().__init__()
        if frames_per_batch < 1:
            raise ConfigError(f"frames_per_batch={frames_per_batch}: expected at least 1")
        check_policy(policy)
        if not isinstance(placement, Placement | None):
            raise ConfigError(
                f"placement={placement!r}: expected a Placement, such as "
                "resolve_collector_tensor_placement('auto', learner_device)"
            )
        asked = {"num_threads": num_threads, "step_timeout_s": step_timeout_s}
        process: dict[str, Any] = {
            name: value for name, value in asked.items() if value is not None
        }
        if not isinstance(make_env, EnvProcess):
            make_env = EnvProcess(make_env, **process)
        elif process:
            raise ConfigError(
                f"{' and '.join(process)} given beside an EnvProcess, which runs already: give "
                "them to EnvProcess(...)"
            )
        self.env = make_env
        self.env.take()
        self.interruptor = interruptor
        self.spans = Spans(LEARNER_SPANS)
        self.policy = policy
        frames = -1 if total_frames is None else total_frames
        self.total_frames = float("inf") if frames < 0 else frames
        self.init_random_frames = init_random_frames or 0
        self.exploration_type = exploration_type
        self.postproc = postproc
        self.replay_buffer = replay_buffer
        self.return_same_td = return_same_td
        self.track_traj_ids = track_traj_ids
        layout = self.env.description.layout
        self._action_specs = list(self.env.description.action_spec.items(True, True))
        self._n_envs = layout.batch_size.numel()
        self.frames_per_batch = -(-frames_per_batch // self._n_envs)
        self.requested_frames_per_batch = self.frames_per_batch * self._n_envs
        self._frames = 0
        self._iter = -1
        # Ticks so far: action published, result arrived, handed to the caller.
        self._asked = self._arrived = self._handed = 0
        self._carried = Carried(layout)
        self._beside: dict[int, TensorDictBase] = {}
        self._prepared: TensorDictBase | None = None
        self._traj_ids = torch.arange(self._n_envs).view(layout.batch_size)
        self._next_traj_id = self._n_envs
        self.placement = placement or resolve_collector_tensor_placement("cpu", device_of(policy))
        try:
            self.placement.check_env(self.env.description.device)
            self._make_rings(self.placement)
        except BaseException:
            self.env.close(0.0)
            raise

    def __repr__(self) -> str:
        fields = {
            "env": self.env,
            "policy": self.policy,
            "frames": self._frames,
            "total_frames": self.total_frames,
            "frames_per_batch": self.requested_frames_per_batch,
            "exploration_type": self.exploration_type,
        }
        lines = ",\n".join(indent(f"{name}={value}", "    ") for name, value in fields.items())
        return f"{type(self).__name__}(\n{lines})"

    @property
    def interruptor(self) -> Interruptor | None:
        """Asked while waiting for the environment."""
        return self.env.interruptor

    @interruptor.setter
    def interruptor(self, value: Interruptor | None) -> None:
        self.env.interruptor = value

    def iterator(self) -> Iterator[TensorDictBase | None]:
        """The batches; another iteration goes on where this one was left."""
        while self._frames < self.total_frames:
            if self.pre_collect_hook is not None:
                self.pre_collect_hook()
            try:
                batch = self._collect()
            except Interrupted:
                return
            if self.postproc is not None:
                batch = self.postproc(batch)
            if not self._in_place:
                batch = batch.clone()
            if self.post_collect_hook is not None:
                self.post_collect_hook(batch)
            if self.replay_buffer is None:
                yield batch
            else:
                self.replay_buffer.extend(batch)
                yield None

    @property
    def _in_place(self) -> bool:
        """Whether whoever gets the batches may have the ring's own memory."""
        if self.replay_buffer is None:
            return self.return_same_td
        # Other storages, of lists above all, keep what they are given.
        return isinstance(self.replay_buffer.storage, TensorStorage)

    def shutdown(
        self,
        timeout: float | None = None,
        close_env: bool = True,
        raise_on_error: bool = True,
    ) -> None:
        """End the collector process and free the shared memory; a second call does nothing.

        Args:
            timeout: seconds for the process to close its environment, 5 by default.
            close_env: has no effect: the environment ends with its process.
            raise_on_error: has no effect: nothing is raised.
        """
        self.env.close(5.0 if timeout is None else timeout)
        # Batches that were handed out in place keep the memory for as long as they are held.
        self.__dict__.pop("_shared", None)
        self.__dict__.pop("_ring", None)
        self._roots.clear()
        self._batches.clear()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment, after its first reset, as a ``Collector`` does.

        Returns:
            the seed that the environment would give the next one.
        """
        with self.env.uninterrupted():
            self._begin()
        return self.env.call("set_seed", seed, static_seed=static_seed)

    def _maybe_fallback_update(
        self, policy_or_weights: Any = None, *, model_id: str | None = None
    ) -> None:
        # What update_policy_weights_ comes to: the policy is the caller's own, nothing is sent.
        if policy_or_weights is not None:
            self.receive_weights(policy_or_weights)

    def state_dict(self) -> OrderedDict:
        """Frames, batches, episodes, and of the environment its training state and transforms.

        The transforms' state is that after the step under way.
        """
        return OrderedDict(
            frames=self._frames,
            iter=self._iter,
            env_state_dict=self.env.call("state_dict"),
            env_training_state=self.env.export_training_state(),
            next_traj_id=self._next_traj_id,
        )

    def load_state_dict(self, state_dict: OrderedDict) -> None:
        """Continue counting where another collector stopped; episodes begin anew.

        Raises:
            ConfigError: it is not the state of a PipelinedCollector; nothing was loaded.
        """
        missing = [key for key in _STATE if key not in state_dict]
        if missing:
            raise ConfigError(
                f"this state has no {', '.join(missing)}: expected what state_dict() of a "
                f"PipelinedCollector returns, with {', '.join(_STATE)}; that of another collector "
                "cannot be taken over"
            )
        self._frames = state_dict["frames"]
        self._iter = state_dict["iter"]
        if state_dict["env_state_dict"]:
            self.env.call("load_state_dict", state_dict["env_state_dict"])
        if state_dict["env_training_state"]:
            self.env.import_training_state(state_dict["env_training_state"])
        if not self._asked:
            first = state_dict["next_traj_id"]
            self._traj_ids = torch.arange(first, first + self._n_envs).view_as(self._traj_ids)
            self._next_traj_id = first + self._n_envs

    def _make_rings(self, placement: Placement) -> None:
        """The ring that is shared and, where the policy is elsewhere, the one beside it."""
        layout, ticks = self.env.description.layout, self.frames_per_batch
        # Being handed out, being stepped, and the first observation after that; whole batches, so
        # that none crosses the ring's end.
        num_slots = ticks * max(2, -(-(ticks + 2) // ticks))
        nbytes = num_slots * layout.slot_bytes
        self._shared = Ring(self.env.share(nbytes, placement.ring_device), layout, num_slots)
        self._ring = self._shared
        if placement.staging == "pinned":
            pin(self._shared.memory)
            memory = torch.empty(nbytes, dtype=torch.uint8, device=placement.learner_device)
            self._ring = Ring(memory, layout, num_slots)
        self._roots = [slot.select(*layout.root_keys) for slot in self._ring.slots]
        self._batches = {
            first: self._ring.batch(first, ticks) for first in range(0, num_slots, ticks)
        }
        self._begin_asked = self._began = False

    def _begin(self) -> None:
        """Have the first observation in the ring; the environment resets for it."""
        if self._began:
            return
        if not self._begin_asked:
            self.env.send("begin", self._ring.num_slots)
            self._begin_asked = True
        with self.spans.span("ring wait", 0):
            self.env.receive("began")
        self.env.timings()  # The first reset belongs to no tick.
        self._take(-1)
        self._began = True

    def _collect(self) -> TensorDictBase:
        """The next batch, in place, with the action of the tick after it published."""
        self.env.require_open()
        self._begin()
        first, last = self._handed, self._handed + self.frames_per_batch
        while self._arrived < last:
            self._ask(self._frames)
            self._receive()
        frames = self._frames + self.requested_frames_per_batch
        if frames < self.total_frames:
            # Ctrl-C here, in the policy above all, leaves the batch to be had by iterating again.
            # What the policy itself raises ends the collector, as it does TorchRL's.
            self._ask(frames)
        # Only now that the environment is busy again.
        batch = self._batches[first % self._ring.num_slots].copy()
        beside = [self._beside[tick] for tick in range(first, last)]
        if not all(entries.is_empty() for entries in beside):
            batch.update(_stacked(beside))
        for tick in range(first, last):
            del self._beside[tick]
        self._handed, self._frames, self._iter = last, frames, self._iter + 1
        return batch

    @torch.no_grad()
    def _ask(self, frames: int) -> None:
        """Infer the action for the newest observation and let the environment step."""
        if self._asked > self._arrived:
            return
        tick = self._asked
        if tick not in self._beside:
            self._act(tick, frames)
        # Interrupted from here on, it is sent again; a step that was done is not done again.
        self.env.send("step", tick)
        self._asked += 1

    def _act(self, tick: int, frames: int) -> None:
        """Put the action of a tick into the ring."""
        carrier, self._prepared = self._prepared, None
        if carrier is None:
            carrier = self._root(tick).copy()
        if self.track_traj_ids:
            carrier.set(("collector", "traj_ids"), self._traj_ids)
        self._carried.enter(carrier)
        if self.policy is None or frames < self.init_random_frames:
            acted = carrier
            for key, spec in self._action_specs:
                acted.set(key, spec.rand())
        else:
            with self.spans.span("inference", tick), set_exploration_type(self.exploration_type):
                acted = self.policy(carrier)
        layout = self._ring.layout
        self._ring.write(tick, acted, layout.action_keys, "the policy")
        if self._shared is not self._ring:
            self._shared.write(tick, acted, layout.action_keys, "the policy")
        self._shared.flush()
        beside = self._carried.leave(acted)
        if self.track_traj_ids:
            beside.set(("collector", "traj_ids"), self._traj_ids)
        self._beside[tick] = beside

    def _root(self, tick: int) -> TensorDictBase:
        """The observation of a tick, in place."""
        return self._roots[tick % self._ring.num_slots]

    def _receive(self) -> None:
        # While there is time: nobody else waits for it now, as the environment does later.
        self._prepared = self._root(self._arrived + 1).copy()
        with self.spans.span("ring wait", self._arrived):
            tick = self.env.receive_step()
            while tick < self._arrived:  # of a step that was sent twice
                tick = self.env.receive_step()
        if tick != self._arrived:
            raise CollectorError(f"tick {tick} arrived where {self._arrived} was due")
        self._take(tick)
        self._arrived += 1
        if self.track_traj_ids or self._carried.anything:
            ended = self._ended(self._ring.slot(tick))
            if self.track_traj_ids:
                self._number_episodes(ended)
            if self._carried.anything:
                self._carried.advance(self._root(self._arrived), ended)

    def _take(self, tick: int) -> None:
        if self._ring is not self._shared:
            self._ring.copy_published(tick, self._shared)

    def _ended(self, transition: TensorDict) -> Tensor:
        """``[*batch]`` bool, which environments were just reset."""
        ended = torch.zeros_like(self._traj_ids, dtype=torch.bool)
        for key in self.env.description.done_keys:
            done = transition.get(("next", key) if isinstance(key, str) else ("next", *key))
            ended |= done.reshape(*ended.shape, -1).any(-1).to(ended.device)
        return ended

    def _number_episodes(self, ended: Tensor) -> None:
        """Give the environments that were just reset new episode numbers."""
        count = int(ended.sum())
        if count:
            self._traj_ids = self._traj_ids.clone()
            self._traj_ids[ended] = torch.arange(self._next_traj_id, self._next_traj_id + count)
            self._next_traj_id += count


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
