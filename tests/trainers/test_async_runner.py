"""Lifecycle of a loop over a collector: errors, signals in every phase, shutdown (ADR-0001)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from reference.counting import Counting
from tensordict import TensorDict

import unilab
from unilab.collectors import PipelinedCollector
from unilab.errors import CollectorError
from unilab.trainers import AsyncRunner

ROOT = Path(unilab.__file__).parents[1]


class Shut(list):
    times = 0

    def shutdown(self) -> None:
        self.times += 1


def press(signum: int = signal.SIGINT) -> int:
    os.kill(os.getpid(), signum)
    return 3


def test_c10_leaving_shuts_the_collector_down_and_restores_the_signal_handlers():
    before = signal.getsignal(signal.SIGINT)
    collector = Shut([TensorDict({}, [2]), TensorDict({}, [3])])
    with AsyncRunner(collector) as runner:
        assert [len(batch) for batch in runner] == [2, 3]
        assert signal.getsignal(signal.SIGINT) != before
    assert collector.times == 1
    assert signal.getsignal(signal.SIGINT) == before
    assert runner.exit_code == 0


def test_c10_an_error_in_the_loop_shuts_the_collector_down():
    collector = Shut([TensorDict({}, [2])])
    with pytest.raises(ZeroDivisionError), AsyncRunner(collector) as runner:
        _ = [len(batch) / 0 for batch in runner]
    assert collector.times == 1


@pytest.mark.usefixtures("warm_start")
def test_c10_c14_an_error_of_the_collector_process_is_raised_in_the_loop():
    collector = PipelinedCollector(Counting(faults={"raise": 2}), frames_per_batch=3)
    with pytest.raises(CollectorError, match="broken on purpose"), AsyncRunner(collector) as run:
        list(run)
    assert collector.env.closed


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_iteration_after_the_current_batch(signum, code):
    with AsyncRunner(Shut([TensorDict({}, [1])] * 5)) as runner:
        for seen, _ in enumerate(runner, 1):
            if seen == 2:
                press(signum)
    assert seen == 2
    assert runner.exit_code == code


def test_the_second_signal_changes_nothing_and_the_third_interrupts_at_once():
    with AsyncRunner([]) as runner:
        press(signal.SIGINT)
        press(signal.SIGTERM)
        assert runner.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            press(signal.SIGINT)


def test_a_signal_aborts_abortable_work_and_nothing_else():
    with AsyncRunner([]) as runner:
        assert runner.abort_on_stop(lambda: 3) == 3
        assert runner.abort_on_stop(press) is None
        assert press() == 3
        assert runner.abort_on_stop(lambda: 3) is None


def test_sighup_stays_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with AsyncRunner([]) as runner:
            press(signal.SIGHUP)
            assert not runner.collection_stopped()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_no_handler_is_installed():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run():
        with AsyncRunner([]):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


SCRIPT = """
import sys
import time
from pathlib import Path

from reference.counting import CountingEnv
from unilab.collectors import EnvProcess, PipelinedCollector
from unilab.conf.training_command import listen_to_ctrl_c, report_errors
from unilab.settings import TrainingCfg
from unilab.trainers import Checkpointer, OffPolicyRunner, Run

phase, folder = sys.argv[1:]


def pause(where, seconds=600.0):
    if phase == where:
        Path(folder, "paused").touch()
        time.sleep(seconds)


class Slow(CountingEnv):
    def _reset(self, *args, **kwargs):
        pause("reset")
        return super()._reset(*args, **kwargs)

    def _step(self, tensordict):
        pause("step")
        return super()._step(tensordict)


def make_env():
    pause("make")
    return Slow(3, {})


class Learner:
    update_count = 0

    def state_dict(self):
        pause("save", 1.0)
        return {}

    def load_state_dict(self, state): ...


def train():
    learner, env = Learner(), EnvProcess(make_env)
    checkpoints = Checkpointer(Path(folder, "checkpoints"), {"learner": learner}, identity={})
    print(env.pid, flush=True)
    with OffPolicyRunner(
        PipelinedCollector(env, frames_per_batch=3),
        learner,
        [],
        training=TrainingCfg(eval_interval=9, checkpoint_interval=30),
        run=Run(checkpointer=checkpoints),
        evaluate=lambda: pause("evaluate") or {},
        drain_metrics=env.drain_metrics,
    ) as runner:
        for _ in runner:
            pause("update", 1.0)
    sys.exit(runner.exit_code)


listen_to_ctrl_c()
report_errors(train)
"""


@pytest.mark.parametrize(
    ("phase", "presses", "signum"),
    [
        ("step", 1, signal.SIGINT),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("evaluate", 1, signal.SIGINT),
                ("step", 1, signal.SIGTERM),
                ("step", 1, signal.SIGHUP),
                *((phase, 2, signal.SIGINT) for phase in ("make", "reset", "update", "save")),
            )
        ),
    ],
)
def test_c15_a_signal_in_any_phase_saves_and_ends_without_a_traceback(
    phase, presses, signum, tmp_path
):
    """As a terminal sends it: to every process of the group. There is nothing to save in make."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, phase, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )
    child = int(process.stdout.readline())
    while not (tmp_path / "paused").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    for _ in range(presses):
        os.killpg(process.pid, signum)
        time.sleep(0.2)  # two at once may be delivered as one
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signum, err
    if signum != signal.SIGHUP:  # Python's resource tracker ends as well, and complains
        assert "Traceback" not in err
    assert not Path(f"/proc/{child}").exists()
    assert len(list(tmp_path.glob("checkpoints/checkpoint-*"))) == (phase != "make")
