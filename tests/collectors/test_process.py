"""What an environment finds in a process of its own, and what passes between the two."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference.awkward import Drawing, Laden, Mute, Obliging, Remembering, making
from torchrl.collectors import Collector
from torchrl.envs import StepCounter, TransformedEnv, VecNormV2

import unilab
from unilab.collectors import EnvProcess, PipelinedCollector
from unilab.errors import CollectorError

pytestmark = pytest.mark.usefixtures("warm_start")
N = 3
ROOT = Path(unilab.__file__).parents[1]


def rewards(collector: Any) -> torch.Tensor:
    collected = torch.cat([batch["next", "reward"] for batch in collector], 1)
    collector.shutdown()
    return collected


@pytest.fixture
def process() -> Iterator[Callable[..., EnvProcess]]:
    made: list[EnvProcess] = []

    def make(*args: Any, **kwargs: Any) -> EnvProcess:
        made.append(EnvProcess(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_an_environment_may_keep_the_actions_that_it_gets():
    seen = []
    for kind in (PipelinedCollector, Collector):
        env = making(Remembering) if kind is PipelinedCollector else making(Remembering)()
        collector = kind(env, None, frames_per_batch=N, total_frames=9 * N)
        torch.manual_seed(1)
        seen.append(rewards(collector))
    assert torch.equal(*seen)


def test_global_generators_of_the_process_follow_the_learners_seed():
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return rewards(PipelinedCollector(making(Drawing), frames_per_batch=N, total_frames=2 * N))

    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first, same, other = drawn(5), drawn(5), drawn(6)
    assert torch.equal(first, same)
    assert (first != other).all()
    # The learner's own stay where they were.
    assert (np.random.get_state()[1] == before[0]).all()  # noqa: NPY002
    assert random.getstate() == before[1]


def test_the_default_dtype_is_the_learners(process):
    torch.set_default_dtype(torch.float64)
    try:
        assert process(making(Obliging)).call("dtype") == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_both_sides_may_send_more_than_a_socket_holds_at_the_same_time():
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
    # That of the step under way, made before, comes after what was loaded.
    assert seen == [1.0, 1.0, 2.0, 2.0]
    collector.shutdown()


class Stop:
    def collection_stopped(self) -> bool:
        return True


def test_a_stop_that_was_asked_for_ends_collecting_but_no_call(process):
    env = process(making(Obliging, slow_make=0.5))
    collector = PipelinedCollector(env, frames_per_batch=N, interruptor=Stop())
    assert env.call("echo", 3) == 3
    assert isinstance(collector.interruptor, Stop)


def test_an_environment_under_transforms_gets_is_init_beside_them_without_a_warning(process, capfd):
    def make() -> TransformedEnv:
        return TransformedEnv(making(Obliging)(), StepCounter())

    env = process(make)
    assert repr(env) == f"EnvProcess(pid={env.pid}, starting)"
    assert {"step_count", "is_init"} <= set(env.description.layout.root_keys)
    env.close()
    assert "Nested" not in capfd.readouterr().err


def test_an_answer_that_cannot_be_sent_says_so(process):
    with pytest.raises(CollectorError, match="picklable"):
        process(making(Obliging)).call("lock")


def test_an_argument_that_cannot_be_sent_says_so_and_nothing_is_lost(process):
    env = process(making(Obliging))
    with pytest.raises(CollectorError, match="picklable"):
        env.call("echo", threading.Lock())
    assert env.call("echo", 3) == 3


def test_a_call_that_fails_is_told_and_ends_nothing(process):
    env = process(making(Obliging))
    with pytest.raises(CollectorError, match=r"(?s)call from .*: Attrib.*'ecko'.*\nTraceback "):
        env.call("ecko", 3)
    assert env.call("echo", 3) == 3


def test_a_state_of_another_environment_is_refused_and_nothing_of_it_loaded(process):
    def normalised() -> TransformedEnv:
        return TransformedEnv(making(Obliging)(), VecNormV2(["obs"]))

    collector = PipelinedCollector(
        process(making(Obliging)), frames_per_batch=N, total_frames=3 * N
    )
    other = PipelinedCollector(process(normalised), frames_per_batch=N, total_frames=3 * N)
    list(other)
    with pytest.raises(CollectorError, match=r"in a call from the learner: RuntimeError: .*load"):
        collector.load_state_dict(other.state_dict())
    assert len(list(collector)) == 3


SCRIPT = """
from dataclasses import dataclass

from reference.counting import CountingEnv
from unilab.collectors import PipelinedCollector

@dataclass
class Level:
    height: int

class Climbing(CountingEnv):
    level = Level(1)

    def export_training_state(self):
        return self.level

    def import_training_state(self, state):
        assert isinstance(state, Level)
        self.level = Level(state.height + 1)

collector = PipelinedCollector(lambda: Climbing(3, {}), frames_per_batch=3, total_frames=6)
for data in collector:
    state = collector.state_dict()
    print(isinstance(state["env_training_state"], Level), state["env_training_state"].height)
    collector.load_state_dict(state)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )


def test_a_training_state_may_be_of_a_class_of_the_running_script():
    done = run(SCRIPT)
    assert done.stdout.splitlines() == ["True 1", "True 1"], done.stderr


CLOSING = """
from reference.awkward import PlainClose, making
from unilab.collectors import PipelinedCollector

collector = PipelinedCollector(making(PlainClose{faults}), frames_per_batch=3, total_frames=3)
list(collector)
collector.shutdown()
"""


def test_an_environment_with_a_plain_close_is_closed_without_a_traceback():
    done = run(CLOSING.format(faults=""))
    assert (done.stdout, "Traceback" in done.stderr) == ("closed\n", False), done.stderr


SEMAPHORES = """
from reference.counting import Counting
from torchrl.envs import TransformedEnv, VecNormV2
from unilab.collectors import PipelinedCollector

def normalised():
    return TransformedEnv(Counting()(), VecNormV2(["obs"]))

collector = PipelinedCollector(normalised, frames_per_batch=3, total_frames=3)
list(collector)
collector.shutdown()
"""


def test_semaphores_of_the_environment_are_freed_without_a_word():
    done = run(SEMAPHORES)
    assert "leaked" not in done.stderr, done.stderr
    assert done.returncode == 0


def test_an_environment_that_fails_to_close_says_only_that():
    done = run(CLOSING.format(faults=", fails=True"))
    assert done.stderr.count("Traceback") == 1
    assert "OSError: cannot let go" in done.stderr
    assert done.returncode == 0


def test_an_exception_without_a_text_arrives_with_its_traceback(process):
    collector = PipelinedCollector(process(making(Mute)), frames_per_batch=N)
    with pytest.raises(CollectorError, match=r"in a step .*Unspeakable"):
        next(iter(collector))
