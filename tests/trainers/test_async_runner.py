"""The lifecycle of a loop over a collector: errors, Ctrl-C in every phase, the end.

Clauses are those of ADR-0001.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from reference.counting import Counting
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer

import unilab
from unilab.collectors import EnvProcess, PipelinedCollector
from unilab.collectors.ring import SharedBlock
from unilab.collectors.worker import Phase, Word
from unilab.errors import CollectorError
from unilab.trainers import AsyncRunner

pytestmark = pytest.mark.usefixtures("warm_start")
ROOT = Path(unilab.__file__).parents[1]


@dataclass
class Mine:
    stopped: bool = False

    def collection_stopped(self) -> bool:
        return self.stopped


class Shut(list):
    times = 0

    def shutdown(self) -> None:
        self.times += 1


def test_c10_leaving_shuts_the_collector_down_and_gives_the_signals_back():
    before = signal.getsignal(signal.SIGINT)
    collector = Shut([TensorDict({}, [2]), TensorDict({}, [3])])
    with AsyncRunner(collector) as running:
        assert [len(batch) for batch in running] == [2, 3]
        assert signal.getsignal(signal.SIGINT) != before
    assert collector.times == 1
    assert signal.getsignal(signal.SIGINT) == before
    assert running.stop.exit_code == 0


def test_c10_an_error_in_the_loop_shuts_the_collector_down_as_well():
    collector = Shut([TensorDict({}, [2])])
    with pytest.raises(ZeroDivisionError), AsyncRunner(collector) as running:
        _ = [len(batch) / 0 for batch in running]
    assert collector.times == 1


def test_batches_that_went_into_the_collectors_own_buffer_count_as_ticks():
    collector = PipelinedCollector(
        Counting(),
        frames_per_batch=6,
        total_frames=18,
        replay_buffer=ReplayBuffer(storage=LazyTensorStorage(100)),
        postproc=lambda batch: batch.reshape(-1),
    )
    with AsyncRunner(collector) as running:
        assert list(running) == [None] * 3
        assert running.tick == 5


def test_a_signal_ends_iteration_after_the_batch_at_hand():
    collector = Shut([TensorDict({}, [1])] * 5)
    with AsyncRunner(collector) as running:
        for seen, _ in enumerate(running, 1):
            if seen == 2:
                os.kill(os.getpid(), signal.SIGINT)
    assert seen == 2
    assert running.stop.exit_code == 130


def test_c10_c14_an_error_of_the_collector_process_is_raised_in_the_loop():
    collector = PipelinedCollector(Counting(faults={"raise": 2}), frames_per_batch=3)
    with pytest.raises(CollectorError, match="broken on purpose"), AsyncRunner(collector) as run:
        list(run)
    assert collector.env.closed


def test_a_collector_gets_its_own_interruptor_and_spans_back():
    collector = PipelinedCollector(Counting(), frames_per_batch=3, interruptor=Mine())
    mine, spans = collector.interruptor, collector.spans
    with AsyncRunner(collector) as running:
        assert collector.interruptor is running.stop
        assert collector.spans is not spans
    assert collector.interruptor is mine
    assert collector.spans is spans


def test_the_collectors_own_interruptor_ends_the_iteration_as_well():
    env = EnvProcess(Counting(faults={"slow_step": 600.0}))
    collector = PipelinedCollector(env, frames_per_batch=3, interruptor=Mine(stopped=True))
    with AsyncRunner(collector) as running:
        assert list(running) == []
    assert running.stop.exit_code == 0


SCRIPT = """
import sys
import time

from reference.counting import Counting
from unilab.collectors import PipelinedCollector
from unilab.collectors.process import EnvProcess
from unilab.conf import _listen_to_ctrl_c, _report
from unilab.data import RewardNormalizer, make_replay_buffer
from unilab.modules import FlashSACActor, FlashSACCritic, FlashSACPolicy
from unilab.objectives import FlashSACLoss
from unilab.trainers import Checkpointer, Evaluator, FlashSACLearner, OffPolicyRunner

phase, folder = sys.argv[1:]


class SlowUpdate(FlashSACLearner):
    def update(self, batch):
        if phase == "update":
            print("in", flush=True)
            time.sleep(1.0)
        return super().update(batch)


class SlowSave:
    def state_dict(self):
        if phase == "save":
            print("in", flush=True)
            time.sleep(1.0)
        return {}

    def load_state_dict(self, state): ...


def train():
    actor, critic = FlashSACActor(2, 1, 4), FlashSACCritic(2, 1, 4)
    loss = FlashSACLoss(actor, critic, gamma=0.9)
    loss.set_keys(critic_obs="obs")
    learner = SlowUpdate(loss)
    policy = FlashSACPolicy(actor)
    evaluator = Evaluator(Counting(faults={"slow_step": 600.0})(), policy, max_steps=100)

    def evaluate():
        print("in", flush=True)
        return evaluator()

    env = EnvProcess(Counting(faults={f"slow_{phase}": 600.0}))
    print(env.pid, flush=True)
    collector = PipelinedCollector(env, policy, frames_per_batch=3)
    print("made", flush=True)
    parts = {"learner": learner, "slow": SlowSave()}
    sys.exit(
        OffPolicyRunner(
            collector,
            learner,
            make_replay_buffer(100, 8),
            RewardNormalizer(0.9),
            learning_starts=8,
            checkpointer=Checkpointer(folder, parts, identity={}),
            drain_metrics=env.drain_metrics,
            evaluate=evaluate,
            eval_interval=9 if phase == "evaluate" else None,
            checkpoint_interval=30 if phase == "save" else None,
        ).run().exit_code
    )


_listen_to_ctrl_c()
_report(train)
"""


@pytest.mark.parametrize(
    ("phase", "presses", "signum"),
    [
        ("step", 1, signal.SIGINT),
        ("evaluate", 1, signal.SIGINT),
        ("step", 1, signal.SIGTERM),
        ("step", 1, signal.SIGHUP),
        *((phase, 2, signal.SIGINT) for phase in ("make", "reset", "update", "save")),
    ],
)
def test_c15_a_signal_in_any_phase_saves_and_leaves_without_a_traceback(
    phase, presses, signum, tmp_path
):
    """Ctrl-C of a terminal, once or twice, its end, and SIGTERM; to every process of the group.

    While the environment is made there is nothing to save yet.
    """
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
    if phase in ("reset", "step"):
        # In the phase, which lasts, once the collector's process says that it is.
        _wait_for_phase(process.pid, {"reset": Phase.RESET, "step": Phase.STEP}[phase])
    elif phase != "make":
        assert "in\n" in iter(process.stdout.readline, "")
    for _ in range(presses):
        os.killpg(process.pid, signum)
        # Two that come before the first is noticed are one.
        time.sleep(0.2)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signum, err
    if signum != signal.SIGHUP:  # it ends Python's resource tracker as well, which complains
        assert "Traceback" not in err
    assert not Path(f"/proc/{child}").exists()
    assert len(list(tmp_path.iterdir())) == (phase != "make")


def _wait_for_phase(pid: int, phase: Phase) -> None:
    """Look into the header of the memory that the process shares with its collector."""
    links = {}
    for fd in map(str, Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            links[fd] = os.readlink(fd)
    ring = next(fd for fd, target in links.items() if target.startswith("/memfd:unilab-ring"))
    block = SharedBlock(os.open(ring, os.O_RDWR))
    while block.header[Word.PHASE] != phase:
        time.sleep(0.01)
    block.close()
