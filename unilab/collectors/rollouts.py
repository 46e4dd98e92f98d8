"""Collector whose environment and policy act in another process while the caller learns."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from unilab.collectors.base import ProcessCollector
from unilab.collectors.placement import Placement
from unilab.collectors.process import EnvProcess, Interrupted, Interruptor
from unilab.collectors.ring import Ring
from unilab.collectors.worker import VERSION, pickle_by_value
from unilab.errors import ConfigError


class RolloutCollector(ProcessCollector):
    """Collects whole rollouts in a separate process, with a copy of the policy.

    The caller learns from a rollout while the next ones are collected. Each is collected by one
    policy, the one of ``max_staleness`` rollouts ago (at the start: the initial one); so the data
    depend on the seed alone, whichever process is faster. With ``max_staleness=1``::

        learner             learn 0          | learn 1          | learn 2          | ...
        environment   0     | 1              | 2                | 3                | ...
        policy after  -     | -              | learn 0          | learn 1          | ...

    TorchRL's ``AsyncCollector`` is not used, because its weights arrive in the middle of a rollout,
    at a step that depends on the machine's load.

    Args:
        make_env: makes the environment, any TorchRL one; or an :class:`EnvProcess` that has it.
        policy: a ``TensorDictModule``; its parameters and buffers are copied for each rollout,
            everything else once.
        frames_per_batch: steps of a rollout, all environments together; rounded up to whole steps
            of all.
        total_frames: steps in all; -1 or None: no end.
        max_staleness: rollouts that the caller gets between the copy of the policy and the rollout
            that it collects. The memory holds one rollout more.
        placement: devices of environment, rollouts and learner; by default the first two are on
            the CPU, and the learner where the policy's parameters are.
        return_same_td: yield the shared memory itself, valid until the next batch is asked for,
            instead of a copy.
        interruptor: asked while waiting for the environment; iteration ends when it says so, and
            can be continued later.

    Attributes:
        env: the :class:`EnvProcess`.
        staleness: rollouts yielded between the copy of the policy and the latest rollout.

    Examples:
        >>> import unilab
        >>> from unilab.collectors import RolloutCollector
        >>> from unilab.modules import GaussianActor, GaussianPolicy
        >>> make_env = unilab.registry.factory("pendulum_swingup", num_envs=4, seed=0)
        >>> policy = GaussianPolicy(GaussianActor(obs_dim=3, action_dim=1))
        >>> collector = RolloutCollector(make_env, policy, frames_per_batch=8, total_frames=24)
        >>> for data in collector:
        ...     print(tuple(data["next", "reward"].shape), collector.staleness)
        (4, 2, 1) 0
        (4, 2, 1) 1
        (4, 2, 1) 1
        >>> collector.shutdown()
    """

    def __init__(
        self,
        make_env: Callable[[], EnvBase] | EnvProcess,
        policy: TensorDictModuleBase,
        *,
        frames_per_batch: int,
        total_frames: int | None = -1,
        max_staleness: int = 1,
        placement: Placement | None = None,
        return_same_td: bool = False,
        interruptor: Interruptor | None = None,
    ) -> None:
        if max_staleness < 1:
            raise ConfigError(f"max_staleness must be at least 1, got {max_staleness}")
        if not isinstance(policy, TensorDictModuleBase):
            raise ConfigError(
                f"policy must be a TensorDictModule, got {type(policy).__name__}: its weights are "
                "copied to the environment process"
            )
        super().__init__(
            make_env,
            policy,
            frames_per_batch=frames_per_batch,
            total_frames=total_frames,
            placement=placement,
            return_same_td=return_same_td,
            interruptor=interruptor,
        )
        self.max_staleness = max_staleness
        self.staleness = 0
        self._asked = self._yielded = 0
        self._requests: list[int] = []
        with self._closing_on_error():
            self._share_memory()

    def iterator(self) -> Iterator[TensorDictBase]:
        """The rollouts ``[N, T]``; another iteration continues where this one stopped."""
        while self._frames < self.total_frames:
            try:
                batch = self._collect()
            except Interrupted:
                return
            yield batch

    def _free_memory(self) -> None:
        for name in ("_rollouts", "_weights"):
            self.__dict__.pop(name, None)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment, after the rollouts under way; returns the seed for the next."""
        return self.env.call("set_seed", seed, static_seed=static_seed)

    def _maybe_fallback_update(
        self, policy_or_weights: Any = None, *, model_id: str | None = None
    ) -> None:
        # Called by update_policy_weights_. The weights are sent with each rollout.
        if policy_or_weights is not None:
            self.receive_weights(policy_or_weights)

    def state_dict(self) -> OrderedDict:
        """Counters, and the environment's training state after the latest rollout."""
        return OrderedDict(
            frames=self._frames,
            iter=self._iter,
            env_training_state=self.env.export_training_state(),
        )

    def load_state_dict(self, state_dict: OrderedDict) -> None:
        """Continue counting where another collector stopped; episodes restart."""
        if state_dict["env_training_state"]:
            self.env.import_training_state(state_dict["env_training_state"])
        self._frames = state_dict["frames"]
        self._iter = state_dict["iter"]

    def _share_memory(self) -> None:
        policy = pickle_by_value("policy", copy.deepcopy(self.policy).cpu())
        with self.env.uninterrupted():
            layouts = self.env.receive(self.env.send("take_policy", policy, self.frames_per_batch))
        num_slots = self.max_staleness + 1
        nbytes = num_slots * sum(layout.size(layout.keys) for layout in layouts)
        memory = self.env.share(nbytes, self.placement.ring_device)
        self._rollouts, self._weights = Ring.split(memory, layouts, num_slots)
        self.env.receive(self.env.send("begin_rollouts", num_slots))

    def _collect(self) -> TensorDictBase:
        self.env.require_open()
        unit = self.requested_frames_per_batch
        while len(self._requests) <= self.max_staleness:
            if self._frames + unit * len(self._requests) >= self.total_frames:
                break
            self._send_weights(self._asked)
            self._requests.append(self.env.send("rollout", self._asked))
            self._asked += 1
        version = self.env.receive_rollout(self._requests[0])
        del self._requests[0]
        self.staleness = self._yielded - version
        batch = self._rollouts.slot(self._yielded)
        batch.names = [*[None] * (batch.ndim - 1), "time"]
        self._yielded += 1
        self._frames, self._iter = self._frames + unit, self._iter + 1
        device = self.placement.learner_device
        if self.placement.ring_device != device:
            return batch.to(device)
        return batch.copy() if self.return_same_td else batch.clone()

    @torch.no_grad()
    def _send_weights(self, rollout: int) -> None:
        """Copy the present policy into the slot of a rollout."""
        slot = self._weights.slot(rollout)
        for key, weight in self.policy.state_dict().items():
            slot.get(key).copy_(weight)
        slot.get(VERSION).fill_(self._yielded)
        self._weights.flush()
