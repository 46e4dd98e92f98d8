"""What runs in the collector process: an environment that steps when the learner says so."""

from __future__ import annotations

import faulthandler
import inspect
import multiprocessing.util
import os
import pickle
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cloudpickle
import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.data import Composite
from torchrl.envs import EnvBase

from unilab.collectors.channel import Channel
from unilab.collectors.environment import (
    action_masks,
    checked,
    has_method,
    inputs,
    marking_resets,
)
from unilab.collectors.ring import Layout, Ring, SharedBlock
from unilab.collectors.spans import COLLECTOR_SPANS, Spans, report_spans

__all__ = ["Description", "Phase", "Word", "main"]


class Phase(IntEnum):
    """What the collector process is doing."""

    START = 0
    BUILD = 1
    WAIT = 2
    RESET = 3
    STEP = 4
    CALL = 5


PHASE_NAMES = {
    Phase.START: "while it started",
    Phase.BUILD: "while it made the environment",
    Phase.WAIT: "while it waited for the learner",
    Phase.RESET: "in a reset",
    Phase.STEP: "in a step",
    Phase.CALL: "in a call from the learner",
}


class Word(IntEnum):
    """Words of the block's header; the collector process writes them."""

    PHASE = 0
    TICK = 1
    """The tick at hand, or the last one."""
    TICKS = 2
    """Ticks done."""


@dataclass(frozen=True)
class Description:
    """What the learner must know of the environment."""

    layout: Layout
    action_spec: Composite
    action_masks: tuple[tuple[NestedKey, NestedKey], ...]
    """Actions and the entries that say which of them are allowed, of ``ActionMask`` transforms."""
    done_keys: tuple[NestedKey, ...]
    device: torch.device | None
    has_metrics: bool
    training_state: dict[str, Any]
    """As it was made; empty if it has none."""


def main(connection_fd: int, block_fd: int) -> None:
    """The process, until the learner closes the connection or is gone."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    if sys.stderr is not None:
        faulthandler.enable()
    worker = _Worker(Channel(socket.socket(fileno=connection_fd)), SharedBlock(block_fd))
    code = 0
    try:
        worker.serve()
    except _LearnerGone:
        pass
    except BaseException as error:
        worker.report(error)
        code = 1
    try:
        worker.close()  # after a failure as well: it may have processes of its own
    except BaseException:
        # There is no learner any more to tell it to, and a first failure counts for more.
        if not code:
            traceback.print_exc()
        code = 1
    finally:
        # As multiprocessing's own processes do: what it made here is taken down.
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        for stream in streams:
            stream.flush()
    # Taking an interpreter with torch apart takes a second or more, and nothing waits in it.
    os._exit(code)


class _LearnerGone(Exception):
    """The learner closed the connection, or ended."""


class _Worker:
    def __init__(self, channel: Channel, block: SharedBlock) -> None:
        self._channel = channel
        self._block = block
        self._header = block.header
        self._spans = Spans(COLLECTOR_SPANS, block.spans)
        self._made: EnvBase | None = None

    def serve(self) -> None:
        """Make the environment, then answer the learner until it closes the connection."""
        setting = self._receive()
        self._header[Word.PHASE] = Phase.BUILD
        torch.set_num_threads(setting["num_threads"])
        torch.set_default_dtype(setting["dtype"])
        _seed(setting["seed"])
        torch.set_grad_enabled(False)
        self._made = checked(cloudpickle.loads(setting["make_env"])())
        self._env = env = marking_resets(self._made)
        env.reset = self._timed_reset(env.reset)
        report_spans(env, self._on_span)
        self._layout = Layout.of(env.fake_tensordict(), inputs(env))
        self._export = (
            env.export_training_state if has_method(env, "export_training_state") else dict
        )
        self._send("ready", self._describe(env))
        answers: dict[str, Callable[..., tuple[Any, ...]]] = {
            "map": self._map,
            "begin": self._begin,
            "step": self._step,
            "call": self._call,
        }
        while True:
            self._header[Word.PHASE] = Phase.WAIT
            began = time.perf_counter_ns()
            kind, *args = self._receive()
            if kind == "step":
                self._spans.add("wait", began, time.perf_counter_ns(), *args)
            self._send(*answers[kind](*args))

    def close(self) -> None:
        if self._made is not None:
            # As it was made: a transform hands on an argument that not every close takes.
            close = self._made.close
            known = inspect.signature(close).parameters
            close(**{"raise_if_closed": False} if "raise_if_closed" in known else {})

    def report(self, error: BaseException) -> None:
        """Hand the error and its traceback to the learner."""
        try:
            self._send("error", *_account(error))
        except _LearnerGone:
            traceback.print_exc()

    def _receive(self) -> Any:
        try:
            return self._channel.receive()
        except (EOFError, ConnectionError):
            raise _LearnerGone from None

    def _send(self, *message: Any) -> None:
        try:
            self._channel.send(message)
        except ConnectionError:
            raise _LearnerGone from None

    def _describe(self, env: EnvBase) -> Description:
        return Description(
            layout=self._layout,
            action_spec=env.full_action_spec,
            action_masks=tuple(action_masks(env)),
            done_keys=tuple(env.done_keys),
            device=env.device,
            has_metrics=has_method(env, "drain_metrics"),
            training_state=self._export(),
        )

    def _map(self, nbytes: int, cuda_handle: bytes | None) -> tuple[str]:
        """See the memory that the learner made for the ring."""
        self._memory = self._block.map(nbytes) if cuda_handle is None else pickle.loads(cuda_handle)
        return ("mapped",)

    def _begin(self, num_slots: int) -> tuple[str]:
        """Begin the first episodes and publish their first observations."""
        self._ring = Ring(self._memory, self._layout, num_slots)
        self._carrier = self._env.reset()
        self._ring.write(0, self._carrier, self._layout.root_keys)
        self._ring.flush()
        return ("began",)

    def _step(self, tick: int) -> tuple[str, int, Any]:
        ring, layout = self._ring, self._layout
        self._header[Word.TICK] = tick
        if tick < self._header[Word.TICKS]:
            return "stepped", tick, self._export()  # The learner was interrupted while it asked.
        with self._phase(Phase.STEP, "step"):
            slot = ring.slot(tick)
            for key in layout.input_keys:
                # Memory of its own: an environment may keep its actions, and the ring goes on.
                self._carrier.set(key, slot.get(key).clone())
            stepped, self._carrier = self._env.step_and_maybe_reset(self._carrier)
            ring.write(tick, stepped, layout.next_keys)
            ring.write(tick + 1, self._carrier, layout.root_keys)
            ring.flush()
        self._header[Word.TICKS] += 1
        return "stepped", tick, self._export()

    def _call(self, number: int, method: str, arguments: bytes) -> tuple[str, int, Any, Any]:
        """Call a method of the environment; its exception, if any, is the last of the answer."""
        self._header[Word.PHASE] = Phase.CALL
        args, kwargs = cloudpickle.loads(arguments)
        try:
            return "result", number, getattr(self._env, method)(*args, **kwargs), None
        except Exception as error:
            return "result", number, None, _account(error)

    @contextmanager
    def _phase(self, phase: Phase, span: str) -> Iterator[None]:
        outside = self._header[Word.PHASE]
        self._header[Word.PHASE] = phase
        with self._spans.span(span, self._header[Word.TICK]):
            yield
        self._header[Word.PHASE] = outside

    def _timed_reset(self, reset: Callable[..., TensorDictBase]) -> Callable[..., TensorDictBase]:
        def timed(*args: Any, **kwargs: Any) -> TensorDictBase:
            with self._phase(Phase.RESET, "reset"):
                return reset(*args, **kwargs)

        return timed

    def _on_span(self, name: str, begin_ns: int, end_ns: int) -> None:
        # A reset is timed here already, that of an environment which reports nothing as well.
        if name != "reset":
            self._spans.add(name, begin_ns, end_ns, self._header[Word.TICK])


def _seed(seed: int) -> None:
    """Seed every global generator, whichever the environment draws from."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def _account(error: BaseException) -> tuple[str, str, str]:
    """Kind, text and traceback of the exception that is being handled."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    return type(error).__name__, text, traceback.format_exc()
