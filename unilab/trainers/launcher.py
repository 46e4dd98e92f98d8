"""Launcher of data-parallel trainings: one process a device, all of which end together."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from unilab.checks import to_device
from unilab.errors import ConfigError, PlacementError, RankError, first_line
from unilab.output import drop, flush
from unilab.trainers.ranks import Ranks
from unilab.trainers.state_check import differences

_COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""Longest time that ranks wait for rank 0, which evaluates and saves."""
_STOP_S = 60
"""Seconds that a stopped training has to save its last checkpoint."""
_LATE_S = 6.0
"""Seconds that the other ranks have to end after one that failed."""
_MOST = 20_000
"""Bytes of an error and of its traceback: a pipe holds 65,536 that nobody reads yet."""
_START = "spawn"
_LOGGERS = ("torch.distributed.elastic", "torch.multiprocessing.spawn", "torchelastic-events-null")
"""Loggers that say which ranks PyTorch's launcher ends, beside the error that ended them."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def launch(train: Callable[..., int | None], devices: Sequence[str] | None, *args: Any) -> int:
    """Call ``train(*args)`` in one process for each device; returns the exit code.

    The processes form the default group of ``torch.distributed``: see
    :class:`~unilab.trainers.Ranks`. Rank ``k`` belongs to ``devices[k]``. Only rank 0 prints and
    warns. SIGINT, SIGTERM and SIGHUP reach all ranks. If one fails, the others end within seconds,
    and its error is raised here. Without devices, or with one, ``train`` is called in this process.

    Where ``torchrun`` has started this process (``WORLD_SIZE`` above 1), it joins the others
    instead of starting any, after a check that all have the same devices and arguments.

    Args:
        train: a function of an importable module or of the running script, which then needs an
            ``if __name__ == "__main__"`` guard. An exit code other than 0 ends all ranks, so all
            must return the same.
        devices: e.g. ``["cuda:0", "cuda:1"]``, or ``["cpu", "cpu"]``.
        *args: settings; dataclasses are compared key by key.
    """
    world = _world_size()
    if world > 1:
        _check_torchrun(world, devices)
    if devices is not None:
        check_devices(devices)
    if world > 1:
        assert devices is not None
        _join(devices)
        _check_same(args)
        return train(*args) or 0
    if devices is None or len(devices) == 1:
        return train(*args) or 0
    return _start(train, devices, args)


def check_devices(devices: Sequence[str]) -> None:
    """Refuse devices that cannot train together, or are not here."""
    found = [to_device(name) for name in devices]
    given = ",".join(devices)
    if not found:
        raise ConfigError(
            "training.devices must have a device for each rank, got an empty list: leave it at "
            "null for one process"
        )
    if len({device.type for device in found}) > 1:
        raise ConfigError(f"devices must be all cpu or all cuda:<n>, got [{given}]")
    if found[0].type == "cpu":
        return
    if len(found) > 1 and (None in {d.index for d in found} or len(set(found)) < len(found)):
        raise PlacementError(
            f"devices must be a different cuda:<n> for each rank, got [{given}]: two ranks cannot "
            "share one"
        )
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if max(device.index or 0 for device in found) >= here:
        raise PlacementError(
            f"devices must be here, got [{given}], but torch sees {here or 'no'} CUDA "
            f"device{'s' * (here != 1)}: use others, or cpu"
        )


def _world_size() -> int:
    """Number of processes that torchrun has started; 1 without it."""
    world = _variable("WORLD_SIZE", 1, None, default="1")
    if world == 1:
        _variable("RANK", 0, 0, default="0")
        return 1
    for name in ("RANK", "LOCAL_RANK"):
        _variable(name, 0, world - 1)
    _variable("MASTER_PORT", 0, 65_535)
    if not os.environ.get("MASTER_ADDR"):
        raise ConfigError(
            f"MASTER_ADDR must be set with WORLD_SIZE={world}: start the ranks by torchrun, or "
            "unset WORLD_SIZE"
        )
    return world


def _variable(name: str, least: int, most: int | None, default: str = "") -> int:
    """One of torchrun's environment variables."""
    text = os.environ.get(name) or default
    number = int(text) if text.removeprefix("-").isdecimal() else None
    if number is None or number < least or (most is not None and number > most):
        condition = f"at least {least}" if most is None else f"in {least}...{most}"
        world = os.environ.get("WORLD_SIZE") or "not set"
        raise ConfigError(
            f"{name} must be a whole number {condition}, got {text!r} (WORLD_SIZE is {world}): "
            "start the ranks by torchrun, or unset its variables"
        )
    return number


def _check_torchrun(world: int, devices: Sequence[str] | None) -> None:
    here = _variable("LOCAL_WORLD_SIZE", 1, None, default=str(world))
    if here != world:
        raise ConfigError(
            f"WORLD_SIZE must be LOCAL_WORLD_SIZE={here}, got {world}: all ranks must be on one "
            "machine"
        )
    if devices is None or len(devices) != world:
        given = "null" if devices is None else f"[{','.join(devices)}]"
        raise ConfigError(
            f"training.devices must have one device for each of WORLD_SIZE={world} processes, got "
            f"{given}: set it to e.g. [{','.join(['cpu'] * world)}], or start one process"
        )


def _join(devices: Sequence[str]) -> None:
    """Join the group of all ranks, from torchrun's environment variables."""
    if dist.is_initialized():  # by the job before, in a sweep under torchrun
        return
    rank, device = int(os.environ["RANK"]), torch.device(devices[int(os.environ["LOCAL_RANK"])])
    if rank:
        drop(sys.stdout)
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
    torch.set_num_threads(max(1, torch.get_num_threads() // len(devices)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
    except (dist.DistError, RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RankError(
            f"rank {rank} cannot join the others at {address} ({first_line(error)}): choose a "
            "MASTER_PORT that no other program uses, or leave starting the ranks to unilab"
        ) from error


def _comparable(arg: Any) -> Any:
    return asdict(arg) if is_dataclass(arg) and not isinstance(arg, type) else repr(arg)


def _check_same(args: Sequence[Any]) -> None:
    """Raise the same ConfigError in all ranks if one has other settings."""
    mine = [_comparable(arg) for arg in args]
    everyone = Ranks().gather(mine)
    for rank, theirs in enumerate(everyone):
        problems = map(differences, theirs, everyone[0])
        if problem := ", ".join(filter(None, problems)):
            raise ConfigError(
                f"settings must be the same in all ranks, but those of rank {rank} differ from "
                f"rank 0's: {problem}"
            )


class _Report(NamedTuple):
    """Why a rank ended: its exit code and, after an error, what is left of it."""

    code: int
    error: bytes = b""
    """Pickled; empty if it cannot be."""
    trace: str = ""
    lost: bool = False
    """Whether the error is only that another rank ended."""

    @classmethod
    def of(cls, error: Exception | SystemExit) -> _Report:
        trace = "".join(traceback.format_exception(error))
        lost = isinstance(error, RankError)
        if isinstance(error, SystemExit):
            error = RankError(f"a rank must return its exit code, got sys.exit({error.code!r})")
        try:
            content = pickle.dumps(error)
            pickle.loads(content)
        except Exception:
            content = b""
        if len(content) > _MOST:
            content = b""
        end = trace.encode(errors="replace")[-_MOST:].decode(errors="ignore")
        return cls(1, content, end, lost)

    def unpacked(self, where: str) -> Exception:
        """The error, with the rank's traceback as its cause."""
        traced = RankError(f"{where}:\n{self.trace.rstrip()}")
        if not self.error:
            return traced
        error = pickle.loads(self.error)
        error.add_note(f"{where[0].upper()}{where[1:]}.")
        error.__cause__ = traced
        return error


def _start(train: Callable[..., int | None], devices: Sequence[str], args: Sequence[Any]) -> int:
    pipes = [multiprocessing.get_context(_START).Pipe(duplex=False) for _ in devices]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(devices),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any free port
        local_addr="localhost",
        max_restarts=0,
        start_method=_START,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        shutdown_timeout=_STOP_S,
    )
    senders = [sender for _, sender in pipes]
    noticed, signum = 0, 0
    with _launching(len(devices)) as signals:
        config.signals_to_handle = ",".join(signals)
        try:
            elastic_launch(config, _run_rank)(senders, train, devices, args)
            return 0
        except ChildFailedError as error:
            noticed = next(iter(error.failures))
        except SignalException as error:
            signum = error.sigval
    reports = {
        rank: _Report(*pickle.loads(receiver.recv_bytes())) if receiver.poll() else None
        for rank, (receiver, _) in enumerate(pipes)
    }
    ranks = sorted(reports, key=lambda rank: rank != noticed)
    where = [f"in rank {rank} of {len(devices)}, on {name}" for rank, name in enumerate(devices)]
    for lost in (False, True):
        for rank in ranks:
            report = reports[rank]
            if report and report.trace and report.lost == lost:
                raise report.unpacked(where[rank])
        for rank in ranks if not signum else ():
            if reports[rank] is None:  # a killed rank says nothing
                raise RankError(
                    f"a process was killed {where[rank]}: see what it printed; usually the system "
                    "ran out of memory"
                )
    return signum + 128 if signum else max(report.code for report in reports.values() if report)


@contextmanager
def _launching(count: int) -> Iterator[list[str]]:
    """Lends PyTorch's launcher the signals that it may handle, and ends ranks that are late."""
    handlers = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    quiet = logging.NullHandler()
    for logger in loggers:
        logger.addHandler(quiet)
        logger.propagate = False
    over = threading.Event()
    before = {child.pid for child in multiprocessing.active_children()}
    threading.Thread(target=_kill_late, args=(count, before, over), daemon=True).start()
    try:
        yield [s.name for s in _SIGNALS if handlers[s] is not signal.SIG_IGN]
    finally:
        over.set()
        for logger in loggers:
            logger.removeHandler(quiet)
            logger.propagate = True
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def _kill_late(count: int, before: set[int | None], over: threading.Event) -> None:
    """Kill ranks that outlive the first one by seconds; PyTorch's launcher would wait for 30."""
    ranks: list[Any] = []
    while len(ranks) < count:
        if over.wait(0.1):
            return
        ranks = [each for each in multiprocessing.active_children() if each.pid not in before]
    late = {rank.sentinel: rank.pid for rank in ranks}
    wait(list(late))
    end = time.monotonic() + _LATE_S
    while late and (left := end - time.monotonic()) > 0:
        for sentinel in wait(list(late), left):
            del late[sentinel]
    for pid in late.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _run_rank(
    senders: Sequence[Connection],
    train: Callable[..., int | None],
    devices: Sequence[str],
    args: Sequence[Any],
) -> int:
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    try:
        _join(devices)
        report = _Report(train(*args) or 0)
    except KeyboardInterrupt:
        report = _Report(128 + signal.SIGINT)
    except (Exception, SystemExit) as error:
        report = _Report.of(error)
    if report.code:
        with suppress(OSError):  # nobody reads it if the launcher was killed
            senders[int(os.environ["RANK"])].send_bytes(pickle.dumps(tuple(report)))
        # As at the end of any process, without the seconds that freeing torch takes.
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        for stream in (sys.stdout, sys.stderr):
            flush(stream)
        os._exit(report.code)
    dist.destroy_process_group()
    return 0


def _end_with_launcher() -> None:
    """End this rank soon after its launcher, whose death signal only asks it to stop."""
    if (launcher := multiprocessing.parent_process()) is not None:
        launcher.join()
        time.sleep(_LATE_S)
        os._exit(1)
