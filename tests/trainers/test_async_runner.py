"""The lifecycle of a loop over a collector: errors, Ctrl-C in every phase, the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reference.counting import Counting
from tensordict import TensorDict

import unilab
from unilab.collectors import PipelinedCollector
from unilab.collectors.ring import SharedBlock
from unilab.collectors.worker import Phase, Word
from unilab.errors import CollectorError
from unilab.trainers import AsyncRunner

ROOT = Path(unilab.__file__).parents[1]


class Shut(list):
    times = 0

    def shutdown(self) -> None:
        self.times += 1


def test_leaving_shuts_the_collector_down_and_gives_the_signals_back():
    before = signal.getsignal(signal.SIGINT)
    collector = Shut([TensorDict({}, [2]), TensorDict({}, [3])])
    with AsyncRunner(collector) as running:
        assert [len(batch) for batch in running] == [2, 3]
        assert running.lap() >= 0.0
        assert signal.getsignal(signal.SIGINT) != before
    assert collector.times == 1
    assert signal.getsignal(signal.SIGINT) == before
    assert running.stop.exit_code == 0


def test_an_error_in_the_loop_shuts_the_collector_down_as_well():
    collector = Shut([TensorDict({}, [2])])
    with pytest.raises(ZeroDivisionError), AsyncRunner(collector) as running:
        _ = [len(batch) / 0 for batch in running]
    assert collector.times == 1


def test_a_signal_ends_iteration_after_the_batch_at_hand():
    collector = Shut([TensorDict({}, [1])] * 5)
    with AsyncRunner(collector) as running:
        for seen, _ in enumerate(running, 1):
            if seen == 2:
                os.kill(os.getpid(), signal.SIGINT)
    assert seen == 2
    assert running.stop.exit_code == 130


def test_an_error_of_the_collector_process_is_raised_in_the_loop():
    collector = PipelinedCollector(Counting(faults={"raise": 2}), frames_per_batch=3)
    with pytest.raises(CollectorError, match="broken on purpose"), AsyncRunner(collector) as run:
        list(run)
    assert collector.env.closed


SCRIPT = """
import sys

from reference.counting import Counting
from unilab.collectors import PipelinedCollector
from unilab.collectors.process import EnvProcess
from unilab.conf import _report
from unilab.data import RewardNormalizer, make_replay_buffer
from unilab.modules import FlashSACActor, FlashSACCritic
from unilab.objectives import FlashSACLoss
from unilab.trainers import Checkpointer, FlashSACLearner, OffPolicyRunner

phase, folder = sys.argv[1:]


def train():
    loss = FlashSACLoss(FlashSACActor(2, 1, 4), FlashSACCritic(2, 1, 4), gamma=0.9)
    learner = FlashSACLearner(loss)
    env = EnvProcess(Counting(faults={f"slow_{phase}": 600.0}))
    print(env.pid, flush=True)
    collector = PipelinedCollector(env, frames_per_batch=3)
    print("made", flush=True)
    sys.exit(
        OffPolicyRunner(
            collector,
            learner,
            make_replay_buffer(100, 8),
            RewardNormalizer(0.9),
            learning_starts=8,
            checkpointer=Checkpointer(folder, {"learner": learner}, identity={}),
            drain_metrics=env.drain_metrics,
        ).run().exit_code
    )


_report(train)
"""


@pytest.mark.parametrize("phase", ["make", "reset", "step"])
def test_ctrl_c_in_any_phase_saves_and_leaves_without_a_traceback(phase, tmp_path):
    """Ctrl-C of a terminal: to every process of the group."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, phase, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )
    child = int(process.stdout.readline())
    if phase != "make":
        assert process.stdout.readline() == "made\n"
        # In the phase, which lasts, once the collector's process says that it is.
        _wait_for_phase(process.pid, {"reset": Phase.RESET, "step": Phase.STEP}[phase])
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not Path(f"/proc/{child}").exists()
    assert len(list(tmp_path.iterdir())) == (phase != "make")


def _wait_for_phase(pid: int, phase: Phase) -> None:
    """Look into the header of the memory that the process shares with its collector."""
    links = {fd: os.readlink(fd) for fd in map(str, Path(f"/proc/{pid}/fd").iterdir())}
    ring = next(fd for fd, target in links.items() if target.startswith("/memfd:unilab-ring"))
    block = SharedBlock(os.open(ring, os.O_RDWR))
    while block.header[Word.PHASE] != phase:
        time.sleep(0.01)
    block.close()
