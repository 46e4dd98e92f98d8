"""EnvProcess: what its environment sees, calls, errors and end; clauses are ADR-0001's."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from reference.counting import Counting, Drawing, Laden, Obliging, Remembering, making
from reference.processes import running, wait_until
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, ParallelEnv, StepCounter, TransformedEnv

import unilab
from unilab.collectors import EnvProcess, PipelinedCollector
from unilab.collectors.worker import Phase
from unilab.errors import CollectorError

pytestmark = pytest.mark.usefixtures("warm_start")
N = 3


def collect(make_env: Any, ticks: int = 10, policy: Any = None) -> list[Any]:
    collector = PipelinedCollector(make_env, policy, frames_per_batch=N, total_frames=ticks * N)
    batches = list(collector)
    collector.shutdown()
    return batches


def rewards(batches: Any) -> torch.Tensor:
    return torch.cat([batch["next", "reward"].clone() for batch in batches], 1)


@pytest.fixture
def process() -> Iterator[Callable[..., EnvProcess]]:
    made: list[EnvProcess] = []

    def make(*args: Any, **kwargs: Any) -> EnvProcess:
        made.append(EnvProcess(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_environment_may_keep_the_actions_that_it_gets():
    torch.manual_seed(1)
    ours = rewards(collect(making(Remembering), 9))
    theirs = Collector(making(Remembering)(), None, frames_per_batch=N, total_frames=9 * N)
    torch.manual_seed(1)
    assert torch.equal(ours, rewards(theirs))


def test_c23_global_generators_of_the_process_follow_the_learners_seed():
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return rewards(collect(making(Drawing), 2))

    before = np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first, same, other = drawn(5), drawn(5), drawn(6)
    assert torch.equal(first, same)
    assert (first != other).all()
    assert (np.random.get_state()[1] == before[0]).all()  # noqa: NPY002
    assert random.getstate() == before[1]


def test_default_dtype_is_the_learners(process):
    torch.set_default_dtype(torch.float64)
    try:
        assert process(making(Obliging)).call("dtype") == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_environment_under_transforms_gets_is_init_beside_them(process):
    def make() -> TransformedEnv:
        return TransformedEnv(making(Obliging)(), StepCounter())

    env = process(make)
    assert {"step_count", "is_init"} <= set(env.description.layout.root_keys)


def test_mirror_of_the_environment_is_the_learners_too(process):
    make_env = unilab.registry.factory("go2_velocity_flat", num_envs=1)
    ours, theirs = make_env().mirror, process(make_env).mirror
    for key in ours.keys() | theirs.keys():
        assert all(map(torch.equal, ours[key], theirs[key]))


def parallel() -> EnvBase:
    return ParallelEnv(2, Counting(), mp_start_method="fork")


def test_environment_may_be_processes_itself(nothing_left):
    collector = PipelinedCollector(parallel, frames_per_batch=2 * N, total_frames=4 * N)
    assert [batch.shape for batch in collector] == [(2, N, 1), (2, N, 1)]
    collector.shutdown()


def test_both_sides_may_send_more_than_the_pipe_holds_at_the_same_time():
    """The training state comes with each step, and goes back while a step is under way."""
    collector = PipelinedCollector(making(Laden), frames_per_batch=N, total_frames=4 * N)
    seen: list[float] = []

    def run() -> None:
        for _ in collector:
            state = collector.state_dict()
            state["env_training_state"]["levels"] += 1
            collector.load_state_dict(state)
            seen.append(collector.env.export_training_state()["levels"].mean().item())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
    # The state of the step under way, made before, comes after the one that was loaded.
    assert seen == [1.0, 1.0, 2.0, 2.0]
    collector.shutdown()


class Stop:
    def collection_stopped(self) -> bool:
        return True


def test_interruptor_does_not_interrupt_a_call(process):
    env = process(making(Obliging, slow_make=0.5))
    env.interruptor = Stop()
    assert env.call("echo", 3) == 3


def test_c31_call_that_fails_is_reported_and_the_process_continues(process):
    env = process(making(Obliging))
    with pytest.raises(CollectorError, match=r"(?s)AttributeError.*ecko.*\nTraceback "):
        env.call("ecko", 3)
    with pytest.raises(CollectorError, match="picklable"):
        env.call("lock")
    with pytest.raises(CollectorError, match="picklable"):
        env.call("echo", threading.Lock())
    assert env.call("echo", 3) == 3


@pytest.mark.parametrize("fault", [{"kill": 4}, {"kill_reset": 2}])
def test_c14_process_killed_in_a_step_is_reported(fault, nothing_left):
    with pytest.raises(CollectorError, match=r"died in a step \(tick 3\) \(signal SIGKILL\)"):
        collect(Counting(faults=fault))


def test_c14_process_killed_while_waiting_is_reported_at_once(nothing_left):
    collector = PipelinedCollector(Counting(), frames_per_batch=N)
    batches = iter(collector)
    next(batches)
    wait_until(lambda: collector.env.phase == Phase.WAIT)
    os.kill(collector.env.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(CollectorError, match=r"died while it waited .* \(signal SIGKILL\)"):
        list(batches)
    assert time.monotonic() - began < 10.0  # on a busy machine
    with pytest.raises(CollectorError, match="closed"):
        next(iter(collector))


def test_c14_c31_process_that_hangs_is_reported_and_killed(nothing_left):
    with pytest.raises(CollectorError, match=r"hung in a step \(tick 0\) .* 0\.5 s"):
        collect(EnvProcess(Counting(faults={"slow_step": 600.0}), step_timeout_s=0.5))
    with pytest.raises(CollectorError, match="hung in a call"):
        EnvProcess(making(Obliging), step_timeout_s=0.5).call("hang")


@pytest.mark.parametrize(
    ("fault", "where"), [("slow_make", "made the environment"), ("slow_reset", "first reset")]
)
def test_c31_start_that_hangs_is_said_then_reported_and_killed(fault, where, nothing_left):
    with (
        pytest.warns(UserWarning, match=rf"waiting.*{where}.*start_timeout_s"),
        pytest.raises(CollectorError, match=rf"hung .*{where}.*start_timeout_s"),
    ):
        collect(EnvProcess(Counting(faults={fault: 600.0}), start_timeout_s=3.0))


def test_c31_slow_start_and_first_reset_are_no_failure():
    env = EnvProcess(Counting(faults={"slow_make": 1.5, "slow_reset": 1.5}), step_timeout_s=1.0)
    assert len(collect(env, 3)) == 3


def test_c14_exception_in_a_step_comes_with_its_traceback(nothing_left):
    with pytest.raises(CollectorError) as raised:
        collect(Counting(faults={"raise": 5}))
    message = str(raised.value)
    assert "in a step (tick 4): ArithmeticError: broken on purpose, number 5" in message
    assert "raise ArithmeticError(" in message


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (Counting(faults={"raise_reset": 1}), "in the first reset .*broken on purpose"),
        (Counting(faults={"widen": 3}), "'next', 'obs'"),
        (dict, "make_env must return"),
    ],
)
def test_c14_error_of_the_environment_is_reported(make_env, message, nothing_left):
    with pytest.raises(CollectorError, match=message):
        collect(make_env)


def test_nan_of_the_policy_is_reported_by_the_environment(nothing_left):
    make_env = unilab.registry.factory("pendulum_swingup", num_envs=N, seed=0)
    with pytest.raises(CollectorError, match="NonFiniteError: action"):
        collect(make_env, policy=lambda td: td.set("action", torch.full((N, 1), torch.nan)))


def test_factory_that_cannot_be_pickled_is_refused(nothing_left):
    lock = threading.Lock()
    with pytest.raises(CollectorError, match="make_env"):
        collect(lambda: lock)


def test_c15_closing_twice_is_harmless_and_closes_the_environment(nothing_left, tmp_path):
    mark = tmp_path / "closed"
    collector = PipelinedCollector(Counting(faults={"mark": str(mark)}), frames_per_batch=N)
    next(iter(collector))
    collector.shutdown()
    collector.shutdown()
    assert mark.exists()
    assert not running(collector.env.pid)
    with pytest.raises(CollectorError, match="closed"):
        collector.env.call("close")


def test_c15_collector_closed_by_another_thread_while_it_waits_says_so():
    collector = PipelinedCollector(Counting(faults={"slow_step": 600.0}), frames_per_batch=N)

    def close() -> None:
        wait_until(lambda: collector.env.phase == Phase.STEP)
        collector.shutdown(0.0)

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(CollectorError, match="closed"):
        next(iter(collector))
    thread.join()


def test_c15_environment_that_failed_is_closed_as_well(nothing_left, tmp_path):
    mark = tmp_path / "closed"
    with pytest.raises(CollectorError, match="broken on purpose"):
        collect(Counting(faults={"raise": 2, "mark": str(mark)}))
    assert mark.exists()


def test_c15_fork_of_the_learner_neither_ends_the_process_nor_delays_its_end(
    nothing_left, tmp_path
):
    """As workers of a data loader are."""
    mark = tmp_path / "closed"
    collector = PipelinedCollector(Counting(faults={"mark": str(mark)}), frames_per_batch=N)
    next(iter(collector))
    finalized, told = os.pipe()
    fork = os.fork()
    if not fork:
        collector.env._finalizer()  # as at its exit
        os.write(told, b"x")
        signal.pause()
        os._exit(0)
    os.read(finalized, 1)
    assert next(iter(collector))["obs"][0, 0, 1] == 1
    began = time.monotonic()
    collector.shutdown()
    assert time.monotonic() - began < 4.0
    assert mark.exists()
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    os.close(finalized)
    os.close(told)


def test_c15_collector_that_is_garbage_ends_its_process(nothing_left):
    collector = PipelinedCollector(Counting(), frames_per_batch=N)
    next(iter(collector))
    pid = collector.env.pid
    del collector
    gc.collect()
    assert not running(pid)


def test_c15_many_starts_and_stops_leave_nothing(nothing_left):
    for _ in range(3):
        EnvProcess(Counting()).close()
        assert len(collect(Counting(), 3)) == 3
