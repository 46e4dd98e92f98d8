"""Processes that die, hang or raise, and what is left of them; clauses are ADR-0001's."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reference.awkward import Obliging, making
from reference.breaking import BREAKS_AT, breaking_pendulum
from reference.counting import Counting

import unilab
from unilab.collectors import PipelinedCollector
from unilab.collectors.process import EnvProcess
from unilab.collectors.worker import Phase, Word
from unilab.errors import CollectorError
from unilab.registry import EnvFactory

N = 3
ROOT = Path(unilab.__file__).parents[1]


def collect(make_env: Any, ticks: int = 10, **kwargs: Any) -> list[Any]:
    collector = PipelinedCollector(make_env, frames_per_batch=N, total_frames=ticks * N, **kwargs)
    batches = list(collector)
    collector.shutdown()
    return batches


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process, descriptor, thread, shared memory or semaphore more than before.

    POSIX semaphores are mapped from /dev/shm, as named memory is.
    """

    def held() -> dict[str, Any]:
        gc.collect()
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "segments": Path("/proc/self/maps").read_text().count("unilab-ring"),
            "named": Path("/proc/self/maps").read_text().count("/dev/shm/"),
            "system v": [Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem")],
            "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
        }

    before = held()
    yield
    assert held() == before


@pytest.mark.parametrize(
    ("fault", "where"),
    [({"kill": 4}, r"in a step \(tick 3\)"), ({"kill_reset": 2}, r"in a reset \(tick 3\)")],
)
def test_c14_a_process_killed_at_work_is_reported_with_where_it_was(fault, where, nothing_left):
    with pytest.raises(CollectorError, match=rf"died {where} \(signal SIGKILL\)"):
        collect(Counting(faults=fault))


def test_c14_a_process_killed_while_waiting_is_noticed_at_once_and_freed(nothing_left):
    collector = PipelinedCollector(Counting(), frames_per_batch=N)
    batches = iter(collector)
    next(batches)
    header = collector.env.block.header
    wait_until(lambda: header[Word.PHASE] == Phase.WAIT)
    os.kill(collector.env.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(CollectorError, match=r"died while it waited .* \(signal SIGKILL\)"):
        list(batches)
    assert time.monotonic() - began < 1.0
    with pytest.raises(CollectorError, match="the collector is closed: make a new one"):
        next(iter(collector))


def test_c14_a_process_that_dies_under_a_slow_step_is_noticed_within_a_second():
    env = EnvProcess(Counting(faults={"slow_step": 600.0}))
    collector = PipelinedCollector(env, frames_per_batch=N)
    killed: list[float] = []

    def kill() -> None:
        wait_until(lambda: env.block.header[Word.PHASE] == Phase.STEP)
        killed.append(time.monotonic())
        os.kill(env.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(CollectorError, match=r"died in a step"):
        next(iter(collector))
    assert time.monotonic() - killed[0] < 1.0
    thread.join()


def test_c14_a_step_that_hangs_is_reported_and_killed(nothing_left):
    with pytest.raises(CollectorError, match=r"hung in a step \(tick 0\) for more than 0\.5 s"):
        collect(Counting(faults={"slow_step": 600.0}), step_timeout_s=0.5)


def test_c14_a_process_that_is_stopped_while_it_waits_is_reported_and_killed(nothing_left):
    collector = PipelinedCollector(Counting(), frames_per_batch=N, step_timeout_s=1.0)
    batches = iter(collector)
    next(batches)
    header = collector.env.block.header
    wait_until(lambda: header[Word.PHASE] == Phase.WAIT)
    os.kill(collector.env.pid, signal.SIGSTOP)
    with pytest.raises(CollectorError, match=r"hung while it waited .* for more than 1 s"):
        list(batches)


def test_c14_a_call_that_hangs_is_reported_and_killed(nothing_left):
    env = EnvProcess(making(Obliging), step_timeout_s=0.5)
    with pytest.raises(CollectorError, match=r"hung in a call from the learner .* 0\.5 s"):
        env.call("hang")


def test_a_slow_start_and_a_slow_reset_are_no_failure():
    faults = {"slow_make": 1.5, "slow_reset": 1.5}
    assert len(collect(Counting(faults=faults), 3, step_timeout_s=0.5)) == 3


def test_c14_an_exception_in_a_reward_term_comes_with_its_traceback(nothing_left):
    make_env = EnvFactory(breaking_pendulum, num_envs=N, seed=0, overrides={"num_threads": 1})
    with pytest.raises(CollectorError) as raised:
        collect(make_env, BREAKS_AT + 10)
    message = str(raised.value)
    assert f"failed in a step (tick {BREAKS_AT - 1}): ZeroDivisionError: this term" in message
    assert "In the collector process:\nTraceback" in message
    assert 'raise ZeroDivisionError("this term breaks")' in message


def test_c14_an_exception_in_the_first_reset_says_so(nothing_left):
    with pytest.raises(CollectorError, match=r"failed in a reset .*broken on purpose, number 1"):
        collect(Counting(faults={"raise_reset": 1}))


def test_a_policy_gone_wrong_is_reported_by_the_environment(nothing_left):
    make_env = unilab.registry.factory("pendulum_swingup", num_envs=N, seed=0)
    with pytest.raises(CollectorError, match=r"in a step .*NonFiniteError: action is not finite"):
        collect(make_env, policy=lambda td: td.set("action", torch.full((N, 1), torch.nan)))


def test_a_nan_of_the_environment_arrives_as_it_is():
    batches = collect(Counting(faults={"nan": 3}), 4)
    assert [b["next", "reward"].isnan().all().item() for b in batches] == [0, 0, 1, 0]


def test_an_observation_whose_width_changes_is_refused(nothing_left):
    with pytest.raises(CollectorError, match=r"gave \('next', 'obs'\) of shape \[3, 4\].*\[3, 2\]"):
        collect(Counting(faults={"widen": 3}))


def test_a_factory_that_cannot_be_pickled_is_refused(nothing_left):
    lock = threading.Lock()
    with pytest.raises(CollectorError, match=r"make_env cannot be sent .*give a function that"):
        collect(lambda: lock)


def test_a_factory_that_cannot_be_imported_is_reported(nothing_left, tmp_path, monkeypatch):
    (tmp_path / "vanishing.py").write_text("def make_env(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import vanishing

    (tmp_path / "vanishing.py").unlink()
    with pytest.raises(CollectorError, match=r"ModuleNotFoundError: No module named 'vanishing'"):
        collect(vanishing.make_env)


def test_a_factory_of_something_else_is_refused(nothing_left):
    with pytest.raises(CollectorError, match=r"make_env returned a dict: .* a torchrl EnvBase"):
        collect(dict)


def test_c15_closing_twice_is_harmless_and_closes_the_environment(nothing_left, tmp_path):
    collector = PipelinedCollector(
        Counting(faults={"mark": str(tmp_path / "closed")}), None, frames_per_batch=N
    )
    next(iter(collector))
    pid = collector.env.pid
    collector.shutdown()
    collector.shutdown()
    assert (tmp_path / "closed").exists()
    assert not running(pid)
    with pytest.raises(CollectorError, match="the collector is closed: make a new one"):
        collector.env.call("close")


def test_c15_a_collector_that_is_forgotten_ends_its_process(nothing_left):
    collector = PipelinedCollector(Counting(), frames_per_batch=N)
    next(iter(collector))
    pid = collector.env.pid
    del collector
    gc.collect()
    assert not running(pid)


def test_c15_fifty_starts_and_stops_leave_nothing(nothing_left):
    """Eight are whole: start, some ticks, end. The others are stopped while they start."""
    for cycle in range(50):
        if cycle % 6 == 0 and cycle < 48:
            collector = PipelinedCollector(Counting(), frames_per_batch=N)
            batches = iter(collector)
            assert [next(batches)["next", "obs"][0, 0, 1].item() for _ in range(3)] == [1, 2, 3]
            collector.shutdown()
        else:
            EnvProcess(Counting()).close()


def test_two_collectors_at_once_do_not_meet():
    collectors = [
        PipelinedCollector(Counting(num_envs=n), frames_per_batch=n, total_frames=6 * n)
        for n in (2, 3)
    ]
    for a, b in zip(*collectors, strict=True):
        assert torch.equal(a["next", "obs"], b["next", "obs"][:2])
    for collector in collectors:
        collector.shutdown()


LEARNER = """
import sys
import torch
from reference.counting import Counting
from unilab.collectors import PipelinedCollector
from unilab.collectors.process import EnvProcess

collectors = [
    PipelinedCollector(EnvProcess(Counting(faults=faults)), frames_per_batch=3)
    for faults in ({}, {"slow_reset": 600.0}, {"slow_step": 600.0})
]
next(iter(collectors[0]))
collectors[1].env.send("begin", 3)
collectors[2]._ticks.begin()
collectors[2]._ask(0)
print(*(collector.env.pid for collector in collectors), flush=True)
sys.stdin.read()
"""


STARTER = """
import sys
from reference.counting import Counting
from unilab.collectors.process import EnvProcess

env = EnvProcess(Counting(faults={"slow_make": 600.0}))
print(env.pid, flush=True)
if sys.argv[1:]:
    from unilab.collectors.worker import Phase, Word
    while env.block.header[Word.PHASE] != Phase.BUILD:
        pass
    print("making", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("making", [(), ("making",)], ids=["importing", "making"])
def test_c15_a_learner_killed_while_its_collector_starts_leaves_no_process(making):
    """It imports torch for seconds; then making the environment hangs."""
    learner = subprocess.Popen(
        [sys.executable, "-c", STARTER, *making],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )
    pid = int(learner.stdout.readline())
    assert not making or learner.stdout.readline() == "making\n"
    assert running(pid)
    learner.kill()
    learner.communicate()
    wait_until(lambda: not running(pid), 5.0)


def test_c15_a_learner_killed_leaves_no_process_and_no_shared_memory():
    """Its collectors wait for it, reset and step at that moment."""
    learner = subprocess.Popen(
        [sys.executable, "-c", LEARNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )
    pids = [int(pid) for pid in learner.stdout.readline().split()]
    assert len(pids) == 3
    assert all(map(running, pids))
    # The memory that they share has no name that could stay behind.
    for pid in (learner.pid, *pids):
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "/memfd:unilab-ring" in maps
        assert "/dev/shm" not in maps
    learner.kill()
    learner.communicate()
    wait_until(lambda: not any(map(running, pids)), 5.0)


SCRIPT = """
import torch
import unilab
from unilab.collectors import PipelinedCollector

def make_env():
    return unilab.make("pendulum_swingup", num_envs=2, seed=0)

for data in PipelinedCollector(make_env, frames_per_batch=2, total_frames=6):
    print(data.numel())
"""


def test_a_script_without_a_main_guard_and_with_its_own_function_works(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split() == ["2", "2", "2"], done.stderr
    assert "Traceback" not in done.stderr
