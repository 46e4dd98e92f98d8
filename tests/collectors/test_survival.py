"""Processes that die, hang or raise, and what is left of them; clauses are ADR-0001's."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
from reference.awkward import Obliging, making
from reference.breaking import BREAKS_AT, breaking_pendulum
from reference.counting import Counting
from reference.processes import running, wait_until

import unilab
from unilab.collectors import PipelinedCollector
from unilab.collectors.process import EnvProcess
from unilab.collectors.worker import Phase
from unilab.errors import CollectorError
from unilab.registry import EnvFactory

pytestmark = pytest.mark.usefixtures("warm_start")
N = 3


def collect(make_env: Any, ticks: int = 10, **kwargs: Any) -> list[Any]:
    collector = PipelinedCollector(make_env, frames_per_batch=N, total_frames=ticks * N, **kwargs)
    batches = list(collector)
    collector.shutdown()
    return batches


@pytest.mark.parametrize(
    ("fault", "where"),
    [({"kill": 4}, r"in a step \(tick 3\)"), ({"kill_reset": 2}, r"in a step \(tick 3\)")],
)
def test_c14_a_process_killed_at_work_is_reported_with_where_it_was(fault, where, nothing_left):
    with pytest.raises(CollectorError, match=rf"died {where} \(signal SIGKILL\)"):
        collect(Counting(faults=fault))


def test_c14_a_process_killed_while_waiting_is_noticed_at_once_and_freed(nothing_left):
    collector = PipelinedCollector(Counting(), frames_per_batch=N)
    batches = iter(collector)
    next(batches)
    wait_until(lambda: collector.env.phase == Phase.WAIT)
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
        wait_until(lambda: env.phase == Phase.STEP)
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
    wait_until(lambda: collector.env.phase == Phase.WAIT)
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
    make_env = EnvFactory(breaking_pendulum(), num_envs=N, seed=0)
    with pytest.raises(CollectorError) as raised:
        collect(make_env, BREAKS_AT + 10)
    message = str(raised.value)
    assert f"failed in a step (tick {BREAKS_AT - 1}): ZeroDivisionError: this term" in message
    assert "In the collector process:\nTraceback" in message
    assert 'raise ZeroDivisionError("this term breaks")' in message


def test_c14_an_exception_in_the_first_reset_says_so(nothing_left):
    with pytest.raises(CollectorError, match=r"in the first reset .*broken on purpose"):
        collect(Counting(faults={"raise_reset": 1}))


def test_a_policy_gone_wrong_is_reported_by_the_environment(nothing_left):
    make_env = unilab.registry.factory("pendulum_swingup", num_envs=N, seed=0)
    with pytest.raises(CollectorError, match=r"in a step .*NonFiniteError: action is not finite"):
        collect(make_env, policy=lambda td: td.set("action", torch.full((N, 1), torch.nan)))


def test_a_nan_of_the_environment_arrives_as_it_is():
    batches = collect(Counting(faults={"nan": 3}), 4)
    assert [b["next", "reward"].isnan().all().item() for b in batches] == [0, 0, 1, 0]


def test_an_observation_whose_width_changes_is_refused(nothing_left):
    with pytest.raises(CollectorError, match=r"\('next', 'obs'\) must have shape \[3, 2\]"):
        collect(Counting(faults={"widen": 3}))


def test_a_factory_that_cannot_be_pickled_is_refused(nothing_left):
    lock = threading.Lock()
    with pytest.raises(CollectorError, match="make_env"):
        collect(lambda: lock)


def test_a_factory_of_something_else_is_refused(nothing_left):
    with pytest.raises(CollectorError, match="make_env"):
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


def test_c15_a_collector_closed_by_another_thread_while_it_waits_says_so():
    collector = PipelinedCollector(Counting(faults={"slow_step": 600.0}), frames_per_batch=N)
    waits = threading.Thread(
        target=lambda: (
            wait_until(lambda: collector.env.phase == Phase.STEP),
            collector.shutdown(0.0),
        )
    )
    waits.start()
    with pytest.raises(CollectorError, match="the collector is closed: make a new one"):
        next(iter(collector))
    waits.join()


def test_c15_an_environment_that_failed_is_closed_as_well(nothing_left, tmp_path):
    """It may have processes of its own."""
    mark = tmp_path / "closed"
    with pytest.raises(CollectorError, match="broken on purpose"):
        collect(Counting(faults={"raise": 2, "mark": str(mark)}))
    assert mark.exists()


def test_c15_a_fork_of_the_learner_neither_ends_the_collector_nor_holds_it_up(
    nothing_left, tmp_path
):
    """As workers of a data loader are."""
    mark = tmp_path / "closed"
    collector = PipelinedCollector(Counting(faults={"mark": str(mark)}), frames_per_batch=N)
    next(iter(collector))
    collected, told = os.pipe()
    fork = os.fork()
    if not fork:
        collector.env._finalizer()  # as at its exit
        os.write(told, b"x")
        signal.pause()
        os._exit(0)
    os.read(collected, 1)
    assert next(iter(collector))["obs"][0, 0, 1] == 1
    began = time.monotonic()
    collector.shutdown()
    assert time.monotonic() - began < 4.0
    assert mark.exists()
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    os.close(collected)
    os.close(told)


def test_c15_a_collector_that_is_forgotten_ends_its_process(nothing_left):
    collector = PipelinedCollector(Counting(), frames_per_batch=N)
    next(iter(collector))
    pid = collector.env.pid
    del collector
    gc.collect()
    assert not running(pid)


def test_c15_fifty_starts_and_stops_leave_nothing(nothing_left):
    for _ in range(50):
        collector = PipelinedCollector(Counting(), frames_per_batch=N)
        batches = iter(collector)
        assert [next(batches)["next", "obs"][0, 0, 1].item() for _ in range(3)] == [1, 2, 3]
        collector.shutdown()


def test_two_collectors_at_once_do_not_meet():
    collectors = [
        PipelinedCollector(Counting(num_envs=n), frames_per_batch=n, total_frames=6 * n)
        for n in (2, 3)
    ]
    for a, b in zip(*collectors, strict=True):
        assert torch.equal(a["next", "obs"], b["next", "obs"][:2])
    for collector in collectors:
        collector.shutdown()
