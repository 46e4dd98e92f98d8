"""The learner's hold on the collector process: start, hand-over, errors, end."""

from __future__ import annotations

import os
import select
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle
import torch
from torch import Tensor
from torchrl.envs import EnvBase

from unilab.collectors import child
from unilab.collectors.channel import Channel, by_value
from unilab.collectors.failures import died, failed, hung, where_in
from unilab.collectors.ring import SharedBlock
from unilab.collectors.settings import Interruptor, require_integer, require_seconds
from unilab.collectors.spans import COLLECTOR_SPANS, Spans, milliseconds
from unilab.collectors.worker import Description, Phase, Word
from unilab.errors import CollectorError, ConfigError

__all__ = ["EnvProcess", "Interrupted"]

_LOOK_S = 0.25
"""Between two looks at whether the process is alive, while it has nothing to say."""
_PATIENT = (Phase.START, Phase.BUILD, Phase.RESET)
"""What may take as long as it likes."""


class Interrupted(Exception):
    """Waiting for the collector process ended because a stop was asked for."""


class EnvProcess:
    """An environment in a process of its own.

    The process starts at once and makes the environment while the caller goes on;
    :attr:`description` waits for it. It ends with :meth:`close`, when this object is collected as
    garbage, and when this process ends, however it ends.

    Args:
        make_env: makes the environment. Functions of importable modules travel by name, those of
            the running script and lambdas by value.

    Keyword Args:
        num_threads: torch's threads in the process; physics has its own setting.
        step_timeout_s: a step or call that takes longer counts as hung, and so does a process
            that does not begin it. Making the environment and resetting it may take as long as
            they like.

    Attributes:
        interruptor: asked while waiting for transitions; waiting ends with :class:`Interrupted`
            once it says stop.
        spans: the process's own account of its time; can be read at any time, afterwards as well.

    Raises:
        ConfigError: ``make_env`` is no function, or a number none of its kind.
        CollectorError: it cannot be pickled.
    """

    def __init__(
        self,
        make_env: Callable[[], EnvBase],
        *,
        num_threads: int = 1,
        step_timeout_s: float = 120.0,
    ) -> None:
        if isinstance(make_env, EnvBase) or not callable(make_env):
            raise ConfigError(
                f"make_env is a {type(make_env).__name__}: give a function that makes the "
                "environment, in the collector process; for several, one that returns a batch of "
                "them, such as a SerialEnv"
            )
        require_integer("num_threads", num_threads, least=1)
        require_seconds("step_timeout_s", step_timeout_s)
        try:
            payload = cloudpickle.dumps(make_env)
        except Exception as error:
            raise CollectorError(
                f"make_env cannot be sent to the collector process ({error}): give a function that "
                "builds everything it needs inside, such as unilab.registry.factory(...)"
            ) from error
        self.step_timeout_s = step_timeout_s
        self.interruptor: Interruptor | None = None
        self._description: Description | None = None
        self._training_state: Any = None
        self._kept: list[tuple[str, list[Any]]] = []
        self._claimed = False
        self._calls = 0
        self._results: dict[int, Any] = {}
        self._metrics: int | None = None
        self.block = SharedBlock()
        self.spans = Spans(COLLECTOR_SPANS, self.block.spans)
        self._counted = self._account()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        try:
            self._process = child.start(theirs, self.block)
        except BaseException:
            self._channel.close()
            self.block.close()
            raise
        finally:
            theirs.close()
        self._finalizer = weakref.finalize(
            self, child.end_quietly, os.getpid(), self._process, self._channel, self.block
        )
        self._readable, self._ready = select.poll(), select.poll()
        self._readable.register(ours, select.POLLIN)
        self._ready.register(ours, select.POLLIN | select.POLLOUT)
        setting = {
            "make_env": payload,
            "num_threads": num_threads,
            "dtype": torch.get_default_dtype(),
            # Of the process's global generators: follows the learner's, draws nothing from it.
            "seed": torch.initial_seed(),
        }
        self._send(setting)

    @property
    def description(self) -> Description:
        """The environment's layout and specs; waits until it is made.

        Raises:
            CollectorError: it could not be made.
        """
        if self._description is None:
            with self.uninterrupted():
                (self._description,) = self.receive("ready")
            self._training_state = self._description.training_state
        return self._description

    def __repr__(self) -> str:
        if self.closed:
            state = "closed"
        elif self._description is None:
            state = "starting"
        else:
            state = f"batch_size={list(self._description.layout.batch_size)}"
        return f"{type(self).__name__}(pid={self.pid}, {state})"

    @property
    def pid(self) -> int:
        """Of the collector process."""
        return self._process.pid

    @property
    def closed(self) -> bool:
        """Whether the process was ended."""
        return not self._finalizer.alive

    def require_open(self) -> None:
        """Raise CollectorError once the process was ended."""
        if self.closed:
            raise CollectorError("the collector is closed: make a new one")

    def claim(self) -> None:
        """Be the only one that steps the environment.

        Raises:
            CollectorError: there is one already.
        """
        if self._claimed:
            raise CollectorError(
                "this EnvProcess has a collector already: make one EnvProcess for each collector"
            )
        self._claimed = True

    def share(self, nbytes: int, device: torch.device) -> Tensor:
        """Memory that both processes see, as ``[nbytes]`` uint8.

        Raises:
            CollectorError: there is not that much memory.
        """
        if device.type == "cuda":
            memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
            self.send("map", nbytes, bytes(ForkingPickler.dumps(memory)))
        else:
            self.block.grow(nbytes)
            memory = self.block.map(nbytes)
            self.send("map", nbytes, None)
        with self.uninterrupted():
            self.receive("mapped")
        return memory

    def send(self, *message: Any) -> None:
        """Ask the process for something; each request has one answer."""
        self.require_open()
        self._send(message)

    def receive(self, expected: str) -> list[Any]:
        """The next answer of a kind; those of other kinds are kept.

        Raises:
            CollectorError: the process raised, died or hangs; it is closed then.
            Interrupted: :attr:`interruptor` said so; the answer can be received later.
        """
        for i, (kind, answer) in enumerate(self._kept):
            if kind == expected:
                del self._kept[i]
                return answer
        while True:
            kind, answer = self._next_message()
            if kind == expected:
                return answer
            self._kept.append((kind, answer))

    def receive_step(self) -> int:
        """The tick of the next step that is done."""
        tick, self._training_state = self.receive("stepped")
        return tick

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment, after the step that may be under way.

        Raises:
            CollectorError: the method raised; the message has its traceback. The process goes on.
        """
        with self.uninterrupted():
            return self._result(self._ask(method, *args, **kwargs))

    def export_training_state(self) -> dict[str, Any]:
        """The environment's after the last step received; empty if it has none."""
        return self._training_state if self.description.training_state else {}

    def import_training_state(self, state: dict[str, Any]) -> None:
        """Hand a training state to the environment."""
        self.call("import_training_state", state)
        self._training_state = state

    def set_output_dir(self, path: str) -> None:
        """Choose the folder of what the environment writes, by its method of this name."""
        self.call("set_output_dir", path)

    def metrics_at_hand(self) -> bool:
        """Whether :meth:`drain_metrics` need not wait for the step under way.

        Asks the process for them if not: they come with that step.
        """
        if self._metrics is not None or self.closed or not self.description.has_metrics:
            return True
        self._metrics = self._ask("drain_metrics")
        return False

    def drain_metrics(self) -> dict[str, float]:
        """The environment's own metrics and :meth:`timings`, since the last call.

        While a stop is asked for, and once the process has ended, it does not wait: timings only.
        """
        metrics: dict[str, float] = {}
        with suppress(Interrupted):
            if not self.closed and self.description.has_metrics:
                number, self._metrics = self._metrics or self._ask("drain_metrics"), None
                metrics = self._result(number)
        return metrics | self.timings()

    def timings(self) -> dict[str, float]:
        """How the process spent its time since the last call.

        Returns:
            ``Perf/physics_ms``, ``Perf/managers_ms`` and ``Perf/reset_ms`` of those that the
            environment reports, and ``Perf/env_step_ms``, which all of them are in, means over the
            ticks; ``Perf/env_wait_share``, of the time it waited for actions. Empty without a tick.
        """
        now, before = self._account(), self._counted
        self._counted = now
        spent = {name: now[name] - before[name] for name in now}
        ticks, wait, step = spent.pop("ticks"), spent.pop("wait"), spent.pop("step")
        if not ticks:
            return {}
        shares = {"Perf/env_wait_share": wait / (wait + step)}
        return milliseconds(spent | {"env step": step}, ticks) | shares

    def _account(self) -> dict[str, int]:
        return self.spans.totals() | {"ticks": self.block.header[Word.TICKS]}

    def close(self, timeout_s: float = 5.0) -> None:
        """End the process and free what it shares; a second call does nothing.

        Args:
            timeout_s: for it to close its environment; then it is killed.
        """
        if self._finalizer.detach() is not None:
            child.end(self._process, self._channel, self.block, timeout_s)

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> int:
        arguments = by_value(f"an argument of {method}", (args, kwargs))
        self._calls += 1
        self.send("call", self._calls, method, arguments)
        return self._calls

    def _result(self, number: int) -> Any:
        while number not in self._results:
            answered, *result = self.receive("result")
            self._results[answered] = result
        value, failure = self._results.pop(number)
        if failure is not None:
            raise failed("in a call from the learner", *failure)
        return value

    def _send(self, message: Any) -> None:
        # An OSError: it is gone. What it had to say about that, if anything, is yet to be received.
        with suppress(OSError):
            self._channel.send(message, self._take_meanwhile)

    def _take_meanwhile(self) -> None:
        """Wait until the process takes more; what it says is kept, as it may have to say it first.

        It reads nothing while it waits for this process to read.
        """
        self._wait(self._ready)
        if self._readable.poll(0):
            self._kept.append(self._next_message())

    def _next_message(self) -> tuple[str, list[Any]]:
        self.require_open()
        try:
            kind, *answer = self._channel.receive(self._wait_for_more)
        except (EOFError, OSError):
            self.require_open()  # It may have been closed meanwhile, by a signal's handler say.
            raise self._death() from None
        if kind == "error":
            where = self._where()
            self.close()
            raise failed(where, *answer)
        return kind, answer

    def _wait_for_more(self) -> None:
        self._wait(self._readable)

    def _wait(self, poll: select.poll) -> None:
        waited = 0.0
        # Waiting is a sleep in the kernel, which a message or the end of the process cuts short.
        while not poll.poll(1000 * _LOOK_S):
            # Looks are counted: a clock would go on while this process is stopped, with Ctrl-Z say.
            waited += _LOOK_S
            self.heed_interruptor()
            if self._process.poll() is not None and not poll.poll(0):
                raise self._death()
            if self.block.header[Word.PHASE] in _PATIENT:
                waited = 0.0
            elif waited > self.step_timeout_s:
                where = self._where()
                self.close(0.0)
                raise hung(where, self.step_timeout_s)

    def heed_interruptor(self) -> None:
        """Raise Interrupted where :attr:`interruptor` asks for a stop."""
        if self.interruptor is not None and self.interruptor.collection_stopped():
            raise Interrupted

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Wait without asking the interruptor, which ends collecting and nothing else."""
        interruptor, self.interruptor = self.interruptor, None
        try:
            yield
        finally:
            self.interruptor = interruptor

    def _death(self) -> CollectorError:
        where = self._where()
        self.close()
        return died(where, self._process.returncode)

    def _where(self) -> str:
        return where_in(self.block.header)
