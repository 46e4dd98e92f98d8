"""Handle to the environment process: start, requests, errors, end."""

from __future__ import annotations

import pickle
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor
from torchrl.envs import EnvBase

from unilab.collectors.ring import SharedBlock
from unilab.collectors.worker import PHASE, SIGNALS, TICK, Description, Phase, main, pickle_by_value
from unilab.errors import CollectorError, ConfigError, NonFiniteError

_CONTEXT: Any = get_context("spawn")
_POLL_S = 0.25
"""Interval of the checks whether the process is alive, while it sends nothing."""
_SILENT_S = 60.0
"""Seconds of a start after which a warning says what the learner waits for."""
_STARTING = (Phase.START, Phase.BUILD, Phase.RESET)
_PHASES = {
    Phase.START: "while it started",
    Phase.BUILD: "while it made the environment",
    Phase.WAIT: "while it waited for the learner",
    Phase.RESET: "in the first reset",
    Phase.STEP: "in a step",
    Phase.CALL: "in a call from the learner",
}


class Interruptor(Protocol):
    """Tells a collector when to stop, as in TorchRL."""

    def collection_stopped(self) -> bool: ...


class Interrupted(Exception):
    """The interruptor ended the wait for the environment process."""


class EnvProcess:
    """An environment in a separate process.

    The process starts at once and makes the environment in the background; :attr:`description`
    waits for it. It ends with :meth:`close`, when this object is garbage-collected, and when this
    process ends, even by SIGKILL.

    Args:
        make_env: makes the environment. Functions of importable modules are sent by name, those
            of the running script, a notebook, and lambdas by value.
        num_threads: number of torch threads in the process; physics has its own setting.
        step_timeout_s: seconds after which a step or call counts as hung.
        start_timeout_s: the same for making the environment, and for its first reset. A warning
            says after a minute what is waited for.

    Attributes:
        interruptor: asked while waiting for transitions; None: never interrupted.
        pid: of the process.
    """

    def __init__(
        self,
        make_env: Callable[[], EnvBase],
        *,
        num_threads: int = 1,
        step_timeout_s: float = 120.0,
        start_timeout_s: float = 1800.0,
    ) -> None:
        if isinstance(make_env, EnvBase) or not callable(make_env):
            raise ConfigError(
                "make_env must be a function that makes the environment, got "
                f"{type(make_env).__name__}: it is called in the environment process"
            )
        payload = pickle_by_value("make_env", make_env)
        self.step_timeout_s = step_timeout_s
        self.start_timeout_s = start_timeout_s
        self.interruptor: Interruptor | None = None
        self._description: Description | None = None
        self._training_state: Any = None
        self._claimed = False
        self._sent = self._received = 0
        self._replies: dict[int, Any] = {}
        self._block = SharedBlock()
        self._connection, theirs = _CONTEXT.Pipe()
        # The seed follows the learner's generator without drawing from it.
        settings = (num_threads, torch.get_default_dtype(), torch.initial_seed())
        arguments = (theirs, self._block, payload, *settings)
        self._process = _CONTEXT.Process(target=main, args=arguments)
        _start(self._process)
        theirs.close()
        self.pid: int = self._process.pid
        # multiprocessing's Finalize, because its exit handler would wait for the process first.
        args = (self._process, self._connection, self._block, 5.0)
        self._finalizer = Finalize(self, _end, args, exitpriority=10)
        self._readable = select.poll()
        self._readable.register(self._connection.fileno(), select.POLLIN)

    @property
    def description(self) -> Description:
        """Layout and specs of the environment; waits until it is made."""
        if self._description is None:
            with self.uninterrupted():
                self._description = self.receive(0)
            self._training_state = self._description.training_state
        return self._description

    @property
    def closed(self) -> bool:
        """Whether the process was ended."""
        return not self._finalizer.still_active()

    @property
    def phase(self) -> Phase:
        """What the process is doing."""
        return Phase(self._block.header[PHASE])

    @property
    def tick(self) -> int:
        """The tick that the process steps or stepped last."""
        return self._block.header[TICK]

    def require_open(self) -> None:
        """Raise CollectorError once the process was ended."""
        if self.closed:
            raise CollectorError("the collector is closed: make a new one")

    def claim(self) -> None:
        """Reserve the process for one collector."""
        if self._claimed:
            raise CollectorError(
                "this EnvProcess has a collector already: make one EnvProcess for each collector"
            )
        self._claimed = True

    def share(self, nbytes: int, device: torch.device) -> Tensor:
        """Memory that both processes use, as ``[nbytes]`` uint8."""
        handle = None
        if device.type != "cpu":
            memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
            handle = bytes(ForkingPickler.dumps(memory))
        else:
            self._block.grow(nbytes)
            memory = self._block.map(nbytes)
        with self.uninterrupted():
            self.receive(self.send("map", nbytes, handle))
        return memory

    def send(self, request: str, *args: Any) -> int:
        """Send a request; returns its number."""
        self.require_open()
        self._sent += 1
        # The process died: its error message, if any, is still in the pipe.
        with suppress(ConnectionError):
            self._connection.send_bytes(pickle.dumps((self._sent, request, *args)))
        return self._sent

    def receive(self, number: int) -> Any:
        """The reply to a request.

        If the process raised, died or hangs, it is closed and a CollectorError is raised. After
        an Interrupted the reply can still be received.
        """
        while number not in self._replies:
            self._receive_next()
        return self._replies.pop(number)

    def receive_step(self, number: int) -> None:
        """Wait for a step and keep the training state that it returns."""
        self._training_state = self.receive(number)

    def receive_rollout(self, number: int) -> int:
        """Wait for a rollout and keep its training state; the version of its policy."""
        self._training_state, version = self.receive(number)
        return version

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment, after the step that it may be in.

        If the method raises, a CollectorError has its traceback and the process continues.
        """
        with self.uninterrupted():
            return self._call(method, *args, **kwargs)

    def export_training_state(self) -> Any:
        """Training state after the last step received; empty if the environment has none."""
        return self._training_state if self.description.training_state else {}

    def import_training_state(self, state: Any) -> None:
        self.call("import_training_state", state)
        self._training_state = state

    @property
    def mirror(self) -> Any:
        """The environment's ``mirror``; None if it has none."""
        return self.call("mirror") if self.description.has_mirror else None

    def set_output_dir(self, path: str) -> None:
        self.call("set_output_dir", path)

    def drain_metrics(self) -> dict[str, float]:
        """Metrics of the environment since the last call.

        Empty if it has none, once the process has ended, and when the interruptor asks to stop.
        """
        with suppress(Interrupted):
            if not self.closed and self.description.has_metrics:
                return self._call("drain_metrics")
        return {}

    def close(self, timeout_s: float = 5.0) -> None:
        """End the process and free what it shares; a second call does nothing.

        Args:
            timeout_s: for the environment to close; the process is killed after that.
        """
        if not self.closed:
            self._close(timeout_s)

    def check_interrupt(self) -> None:
        """Raise Interrupted if the interruptor asks to stop."""
        if self.interruptor is not None and self.interruptor.collection_stopped():
            raise Interrupted

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Ignore the interruptor, which ends collecting only."""
        interruptor, self.interruptor = self.interruptor, None
        try:
            yield
        finally:
            self.interruptor = interruptor

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        arguments = pickle_by_value("arguments", (args, kwargs))
        # Both sides would wait if they sent more than the pipe holds at the same time.
        while self._received < self._sent:
            self._receive_next()
        result, failure = self.receive(self.send("call", method, arguments))
        if failure is not None:
            raise _failed(_PHASES[Phase.CALL], *failure)
        return pickle.loads(result)

    def _receive_next(self) -> None:
        self.require_open()
        self._wait()
        try:
            message = self._connection.recv_bytes()
        except (EOFError, OSError):
            self.require_open()  # another thread or a signal handler may have closed it
            raise self._died() from None
        number, answer = pickle.loads(message)
        if number is None:
            where = self._where()
            self.close()
            raise _failed(where, *answer)
        self._received = number
        self._replies[number] = answer

    def _wait(self) -> None:
        waited, phase, tick, warned = 0.0, self.phase, self.tick, False
        while not self._readable.poll(1000 * _POLL_S):
            # Polls are counted: a clock keeps running while this process is suspended (Ctrl-Z).
            waited += _POLL_S
            self.require_open()
            self.check_interrupt()
            # The pipe stays open if the environment left processes of its own behind.
            if not self._process.is_alive() and not self._readable.poll(0):
                raise self._died()
            if (self.phase, self.tick) != (phase, tick):
                waited, phase, tick = 0.0, self.phase, self.tick
            setting = "start_timeout_s" if phase in _STARTING else "step_timeout_s"
            limit = getattr(self, setting)
            if phase in _STARTING and not warned and waited > min(_SILENT_S, limit / 2):
                warned = True
                warnings.warn(
                    f"waiting for the environment process {_PHASES[phase]} for {waited:.0f} s; it "
                    f"is killed after {limit:g} s ({setting})",
                    stacklevel=2,
                )
            if waited > limit:
                where = self._where()
                self.close(0.0)
                raise CollectorError(
                    f"the environment process hung {where} for more than {limit:g} s and was "
                    f"killed: look for an endless loop in the environment, or raise {setting}"
                )

    def _died(self) -> CollectorError:
        where = self._where()
        code = self._close(5.0)
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return CollectorError(
            f"the environment process died {where} ({how}): see what it printed; SIGKILL usually "
            "means that the system ran out of memory"
        )

    def _where(self) -> str:
        return f"{_PHASES[self.phase]} (tick {self.tick})"

    def _close(self, timeout_s: float) -> int:
        self._finalizer.cancel()
        return _end(self._process, self._connection, self._block, timeout_s)


def _start(process: BaseProcess) -> None:
    """Start a process that does not import the caller's script and is not interrupted by Ctrl-C."""
    resource_tracker.ensure_running()  # here, as it changes the signal mask
    # Spawning imports __main__ if it has a file, which only scripts with a __main__ guard survive.
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    # The new process inherits the mask, and has its own handlers when it lifts it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _end(process: BaseProcess, connection: Connection, block: SharedBlock, timeout_s: float) -> int:
    """End the process, by force after ``timeout_s``, and free what it shares; its exit code."""
    with suppress(OSError):
        connection.send_bytes(b"")  # closing is not enough while a fork of this process has it too
    connection.close()
    try:
        process.join(0.0 if block.header[PHASE] <= Phase.BUILD else timeout_s)
    finally:  # after a KeyboardInterrupt too
        if process.is_alive():
            process.kill()
        process.join()
        code = process.exitcode
        process.close()
        block.close()
    assert code is not None
    return code


def _failed(where: str, name: str, text: str, trace: str) -> CollectorError:
    error = CollectorError(
        f"the environment process failed {where}: {name}: {text}\n"
        f"In the environment process:\n{trace.rstrip()}"
    )
    # The cause tells the runner that the policy went NaN, rather than the environment.
    error.__cause__ = NonFiniteError(text) if name == NonFiniteError.__name__ else None
    error.__suppress_context__ = True
    return error
