"""How a collector process starts, and that it ends with the learner; clauses are ADR-0001's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from reference.counting import Counting
from reference.processes import running, wait_until

import unilab
from unilab.collectors import PipelinedCollector
from unilab.collectors.process import EnvProcess
from unilab.errors import CollectorError

N = 3
ROOT = Path(unilab.__file__).parents[1]


def test_a_factory_that_cannot_be_imported_is_reported(nothing_left, tmp_path, monkeypatch):
    (tmp_path / "vanishing.py").write_text("def make_env(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import vanishing

    (tmp_path / "vanishing.py").unlink()
    with pytest.raises(CollectorError, match=r"ModuleNotFoundError: No module named 'vanishing'"):
        list(PipelinedCollector(vanishing.make_env, frames_per_batch=N, total_frames=N))


def test_c15_processes_stopped_while_they_start_leave_nothing(nothing_left):
    for _ in range(10):
        EnvProcess(Counting()).close()
    collector = PipelinedCollector(Counting(), frames_per_batch=N)
    assert next(iter(collector)).shape == (N, 1)
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
collectors[2]._start()
collectors[2]._act_and_step(0)
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
    from unilab.collectors.worker import Phase
    while env.phase != Phase.BUILD:
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


CLOSED = """
import os
for fd in range(3):
    os.close(fd)
from reference.counting import Counting
from unilab.collectors import PipelinedCollector

collector = PipelinedCollector(Counting(), frames_per_batch=3, total_frames=6)
batches = len(list(collector))
collector.shutdown()
os._exit(batches)
"""


def test_a_learner_whose_standard_streams_are_closed_can_have_one():
    done = subprocess.run(
        [sys.executable, "-c", CLOSED],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )
    assert done.returncode == 2


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
