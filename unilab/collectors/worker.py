"""Code that runs in the environment process: makes the environment and steps it on request."""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.util
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import numpy as np
import torch
from tensordict import NestedKey, TensorDict
from torchrl.collectors import Collector
from torchrl.data import Composite
from torchrl.envs import ActionMask, EnvBase, InitTracker, TransformedEnv

from unilab.collectors.ring import Layout, Ring, SharedBlock
from unilab.errors import CollectorError
from unilab.output import flush

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the learner alone handles: a terminal sends them to both processes."""
PHASE, TICK = range(2)
"""Places in the header of the shared block; this process writes them."""
VERSION = "policy_version"
"""Entry beside the weights of a policy."""


class Phase(IntEnum):
    """What the environment process is doing."""

    START = 0
    BUILD = 1
    WAIT = 2
    RESET = 3
    STEP = 4
    CALL = 5


@dataclass(frozen=True)
class Description:
    """Specs of the environment, for the learner."""

    layout: Layout
    action_spec: Composite
    action_masks: tuple[tuple[NestedKey, ...], ...]
    """Action and mask keys of ``ActionMask`` transforms."""
    done_keys: tuple[NestedKey, ...]
    device: torch.device | None
    has_metrics: bool
    has_mirror: bool
    training_state: Any
    """Of the new environment; empty if it has none."""


def main(
    connection: Connection,
    block: SharedBlock,
    make_env: bytes,
    num_threads: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """Serve the learner until it closes the connection or ends."""
    threading.Thread(target=_exit_with_learner, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Handlers, unlike SIG_IGN, are not inherited by processes that the environment starts.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGHUP, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if sys.stderr is not None:
        faulthandler.enable()
    torch.set_num_threads(num_threads)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(False)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    worker = _Worker(connection, block)
    failed = False
    try:
        worker.serve(make_env)
    except BaseException as error:
        failed = True
        worker.reply(None, _failure(error))
    try:
        if worker.env is not None:
            worker.env.close()
    except BaseException:
        if not failed:
            traceback.print_exc()
        failed = True
    # Like the end of any multiprocessing process, without the second that freeing torch takes.
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        flush(stream)
    os._exit(failed)


def pickle_by_value(name: str, value: Any) -> bytes:
    """Pickle a value, classes and functions of the running script included."""
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise CollectorError(
            f"{name} must be picklable ({error}): use tensors, numbers, strings and containers of "
            "them, and build everything else in the environment process"
        ) from error


class _Worker:
    def __init__(self, connection: Connection, block: SharedBlock) -> None:
        self._connection = connection
        self._block = block
        self._header = block.header
        self._ticks = 0
        self.env: EnvBase | None = None

    def serve(self, make_env: bytes) -> None:
        self.reply(0, self._build(make_env))
        while True:
            self._header[PHASE] = Phase.WAIT
            try:
                message = self._connection.recv_bytes()
            except (EOFError, ConnectionError):
                return
            if not message:
                return
            number, request, *args = pickle.loads(message)
            self.reply(number, getattr(self, request)(*args))

    def reply(self, number: int | None, answer: Any) -> None:
        try:
            message = pickle.dumps((number, answer))
        except Exception:
            message = pickle_by_value("training state and specs", (number, answer))
        with suppress(ConnectionError):  # the learner closed it
            self._connection.send_bytes(message)

    def _build(self, make_env: bytes) -> Description:
        self._header[PHASE] = Phase.BUILD
        env = cloudpickle.loads(make_env)()
        if not isinstance(env, EnvBase):
            raise CollectorError(
                f"make_env must return a torchrl EnvBase, got {type(env).__name__}"
            )
        self.env = env
        self._tracked = env = _with_is_init(env)
        self._layout = layout = Layout.of(env.fake_tensordict(), _input_keys(env))
        exports = _has_method(env, "export_training_state")
        self._export = env.export_training_state if exports else dict
        return Description(
            layout=layout,
            action_spec=env.full_action_spec,
            action_masks=tuple(
                tuple(each.in_keys) for each in env.modules() if isinstance(each, ActionMask)
            ),
            done_keys=tuple(env.done_keys),
            device=env.device,
            has_metrics=_has_method(env, "drain_metrics"),
            has_mirror=_has_method(env, "mirror"),
            training_state=self._export(),
        )

    def map(self, nbytes: int, handle: bytes | None) -> None:
        self._memory = self._block.map(nbytes) if handle is None else pickle.loads(handle)

    def begin(self, num_slots: int) -> None:
        """Begin the first episodes and publish their first observations."""
        self._header[PHASE] = Phase.RESET
        self._ring = Ring(self._memory, self._layout, num_slots)
        self._carrier = self._tracked.reset()
        self._ring.write(0, self._carrier, self._layout.root_keys)
        self._ring.flush()

    def step(self, tick: int) -> Any:
        """Step, unless this tick was done before the learner was interrupted."""
        if tick == self._ticks:
            self._header[TICK] = tick
            self._header[PHASE] = Phase.STEP
            ring, layout, carrier = self._ring, self._layout, self._carrier
            slot = ring.slot(tick)
            for key in layout.input_keys:
                # A copy: an environment may keep its actions, and the ring overwrites them.
                carrier.set(key, slot.get(key).clone())
            stepped, self._carrier = self._tracked.step_and_maybe_reset(carrier)
            ring.write(tick, stepped, layout.next_keys)
            ring.write(tick + 1, self._carrier, layout.root_keys)
            ring.flush()
            self._ticks += 1
        return self._export()

    def take_policy(self, policy: bytes, num_steps: int) -> tuple[Layout, Layout]:
        """Make the collector of this process; layouts of its rollouts and of the weights."""
        self._header[PHASE] = Phase.CALL
        env = self._tracked
        self._policy = cloudpickle.loads(policy).to(env.device or "cpu")
        fake = env.fake_tensordict()
        fake.update(self._policy(fake.exclude("next", *env.action_keys)))
        shape = (*env.batch_size, num_steps)
        self._rollout = Layout.of(fake.unsqueeze(-1).expand(shape), [])
        self._weights = weights_layout(self._policy)
        self._header[PHASE] = Phase.RESET
        self._rollouts = iter(
            Collector(
                env,
                self._policy,
                frames_per_batch=env.numel() * num_steps,
                trust_policy=True,
                use_buffers=False,
                track_traj_ids=False,
            )
        )
        self._policy.register_forward_pre_hook(self._count_tick)
        return self._rollout, self._weights

    def begin_rollouts(self, num_slots: int) -> None:
        self._rings = Ring.split(self._memory, (self._rollout, self._weights), num_slots)

    def rollout(self, number: int) -> tuple[Any, int]:
        """Collect a rollout with the weights for it; training state and version of the weights."""
        rollouts, weights = self._rings
        given = weights.slot(number)
        for key, weight in self._policy.state_dict().items():
            weight.copy_(given.get(key))
        rollouts.write(number, next(self._rollouts), self._rollout.keys)
        rollouts.flush()
        return self._export(), int(given.get(VERSION))

    def _count_tick(self, *_: Any) -> None:
        self._header[TICK] = self._ticks
        self._header[PHASE] = Phase.STEP
        self._ticks += 1

    def call(self, method: str, arguments: bytes) -> tuple[bytes | None, Any]:
        """Call a method of the environment, or read a property; its result and its exception."""
        self._header[PHASE] = Phase.CALL
        try:
            args, kwargs = cloudpickle.loads(arguments)
            result = getattr(self._tracked, method)
            if callable(result):
                result = result(*args, **kwargs)
            return pickle_by_value("result", result), None
        except Exception as error:
            return None, _failure(error)


def weights_layout(policy: torch.nn.Module) -> Layout:
    """The layout of a policy's parameters and buffers, and of their version."""
    version = torch.zeros((), dtype=torch.long)
    return Layout.of(TensorDict({**policy.state_dict(), VERSION: version}, []), [])


def _exit_with_learner() -> None:
    """End this process when the learner ends, whatever either of them is doing."""
    learner = multiprocessing.parent_process()
    assert learner is not None
    wait([learner.sentinel])
    os._exit(1)


def _failure(error: BaseException) -> tuple[str, str, str]:
    """Class, text and traceback of the exception that is being handled."""
    return type(error).__name__, str(error), traceback.format_exc()


def _with_is_init(env: EnvBase) -> EnvBase:
    """The environment with ``is_init``, which restarts exploration noise at resets."""
    keys = env.observation_spec.keys(include_nested=True, leaves_only=True)
    if any((key if isinstance(key, str) else key[-1]) == "is_init" for key in keys):
        return env
    if isinstance(env, TransformedEnv):  # TorchRL warns about one around another
        return env.append_transform(InitTracker())
    return TransformedEnv(env, InitTracker())


def _input_keys(env: EnvBase) -> list[NestedKey]:
    """Actions, and state that the policy writes."""
    own = {*env.full_observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)}
    state = [key for key in env.full_state_spec.keys(True, True) if key not in own]
    return [*env.action_keys, *state]


def _has_method(env: EnvBase, method: str) -> bool:
    """Whether the class of the base environment has a method; TorchRL batches claim every name."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return hasattr(type(env), method)
