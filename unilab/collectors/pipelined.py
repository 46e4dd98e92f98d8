"""A TorchRL collector whose environment steps in another process while the caller learns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from textwrap import indent
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import BaseCollector
from torchrl.data import ReplayBuffer
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.collectors.placement import Placement, resolve_collector_tensor_placement
from unilab.collectors.policy import Policy, check_policy, device_of
from unilab.collectors.process import EnvProcess, Interrupted
from unilab.collectors.settings import Interruptor, check_kinds, require_integer
from unilab.collectors.spans import LEARNER_SPANS, Spans
from unilab.collectors.ticks import Ticks
from unilab.errors import ConfigError

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
    docs/guide/runtime.md has the cases. One thread at a time may use it; any may shut it down.

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
        replay_buffer: extended with each batch; None is yielded then.
        return_same_td: hand out the shared memory itself, valid until the next batch is asked
            for, instead of a copy. A replay buffer must copy what it is given then, as those of
            :func:`~unilab.data.make_replay_buffer` do; lists and ``MultiStepTransform`` keep it.
        track_traj_ids: number the episodes, in ``("collector", "traj_ids")``.
        interruptor: asked at each tick and while waiting for the environment; iteration ends when
            it says so, and can be taken up again.
        num_threads: torch's threads in the collector process, 1 by default.
        step_timeout_s: seconds after which a step counts as hung, 120 by default. Both are an
            :class:`EnvProcess`'s own where one is given.

    Attributes:
        env: the :class:`EnvProcess`.

    Raises:
        ConfigError: a number that is none of that kind, ``make_env`` no function, the policy none
            that takes a TensorDict, a placement, exploration type or interruptor that is another
            object; or num_threads or step_timeout_s is given beside an EnvProcess.
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
        frames = -1 if total_frames is None else require_integer("total_frames", total_frames)
        require_integer("frames_per_batch", frames_per_batch, least=1)
        require_integer("init_random_frames", init_random_frames or 0, least=0)
        check_policy(policy)
        check_kinds(placement, exploration_type, interruptor)
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
        self.env.claim()
        self.interruptor = interruptor
        self.policy = policy
        self.total_frames = float("inf") if frames < 0 else frames
        self.init_random_frames = init_random_frames or 0
        self.exploration_type = exploration_type
        self.postproc = postproc
        self.replay_buffer = replay_buffer
        self.return_same_td = return_same_td
        self.track_traj_ids = track_traj_ids
        self._action_specs = dict(self.env.description.action_spec.items(True, True))
        n_envs = self.env.description.layout.batch_size.numel()
        self.frames_per_batch = -(-frames_per_batch // n_envs)
        self.requested_frames_per_batch = self.frames_per_batch * n_envs
        self._frames = 0
        self._iter = -1
        self.placement = placement or resolve_collector_tensor_placement("cpu", device_of(policy))
        try:
            self.placement.check_env(self.env.description.device)
            self._ticks = Ticks(
                self.env,
                self.placement,
                self.frames_per_batch,
                numbered=track_traj_ids,
                spans=Spans(LEARNER_SPANS),
            )
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

    @property
    def spans(self) -> Spans:
        """The time that inference and waiting for the environment take here."""
        return self._ticks.spans

    @spans.setter
    def spans(self, value: Spans) -> None:
        self._ticks.spans = value

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
            if not self.return_same_td:
                batch = batch.clone()
            if self.post_collect_hook is not None:
                self.post_collect_hook(batch)
            if self.replay_buffer is None:
                yield batch
            else:
                self.replay_buffer.extend(batch)
                yield None

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
        self._ticks.free()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment, after its first reset, as a ``Collector`` does.

        Returns:
            the seed that the environment would give the next one.
        """
        with self.env.uninterrupted():
            self._ticks.begin()
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
            next_traj_id=self._ticks.next_episode,
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
        if state_dict["env_state_dict"]:
            self.env.call("load_state_dict", state_dict["env_state_dict"])
        if state_dict["env_training_state"]:
            self.env.import_training_state(state_dict["env_training_state"])
        self._frames = state_dict["frames"]
        self._iter = state_dict["iter"]
        if not self._ticks.asked:
            self._ticks.number_from(state_dict["next_traj_id"])

    def _collect(self) -> TensorDictBase:
        """The next batch, in place, with the action of the tick after it published."""
        self.env.require_open()
        ticks = self._ticks
        ticks.begin()
        while ticks.due:
            self.env.heed_interruptor()
            self._ask(self._frames)
            ticks.receive()
        frames = self._frames + self.requested_frames_per_batch
        if frames < self.total_frames:
            # Ctrl-C here, in the policy above all, leaves the batch to be had by iterating again.
            # What the policy itself raises ends the collector, as it does TorchRL's.
            self._ask(frames)
        # Only now that the environment is busy again.
        batch = ticks.hand_out()
        self._frames, self._iter = frames, self._iter + 1
        return batch

    @torch.no_grad()
    def _ask(self, frames: int) -> None:
        """Have an action published for the observation that comes after so many frames."""
        by_chance = self.policy is None or frames < self.init_random_frames
        self._ticks.ask(self._draw if by_chance else self._infer)

    def _draw(self, carrier: TensorDictBase) -> TensorDictBase:
        for key, mask in self.env.description.action_masks:
            spec = self._action_specs[key]
            spec.update_mask(carrier.get(mask).to(spec.device))
        for key, spec in self._action_specs.items():
            carrier.set(key, spec.rand())
        return carrier

    def _infer(self, carrier: TensorDictBase) -> TensorDictBase:
        assert self.policy is not None
        span = self.spans.span("inference", self._ticks.asked)
        with span, set_exploration_type(self.exploration_type):
            return self.policy(carrier)
