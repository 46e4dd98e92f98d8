"""Real starts and ends of environment processes, from programs; clauses are ADR-0001's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reference.processes import running, wait_until

import unilab

ROOT = Path(unilab.__file__).parents[1]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=ENV)


def start(code: str, *arguments: str) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENV,
    )


SCRIPT = """
from dataclasses import dataclass

from reference.counting import CountingEnv
from torchrl.envs import TransformedEnv, VecNormV2
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

def make_env():
    return TransformedEnv(Climbing(3, {}), VecNormV2(["obs"]))  # has semaphores

collector = PipelinedCollector(make_env, frames_per_batch=3, total_frames=6)
for data in collector:
    state = collector.state_dict()
    print(isinstance(state["env_training_state"], Level), state["env_training_state"].height)
    collector.load_state_dict(state)
"""


def test_c15_c30_script_without_a_main_guard_or_shutdown_works_with_classes_of_its_own(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run(str(tmp_path / "script.py"))
    assert done.stdout.splitlines() == ["True 1", "True 1"]
    assert not any(word in done.stderr for word in ("leaked", "Traceback"))
    assert done.returncode == 0


LEARNER = """
import sys
import torch
from reference.counting import Counting
from unilab.collectors import PipelinedCollector
from unilab.collectors.process import EnvProcess
from unilab.collectors.worker import Phase

collectors = [
    PipelinedCollector(EnvProcess(Counting(faults=faults)), frames_per_batch=3)
    for faults in ({}, {"slow_reset": 600.0}, {"slow_step": 600.0})
]
next(iter(collectors[0]))
collectors[1].env.send("begin", 3)
collectors[2]._start()
collectors[2]._act_and_step(0)
making = EnvProcess(Counting(faults={"slow_make": 600.0}))
while making.phase != Phase.BUILD:
    pass
importing = EnvProcess(Counting())
envs = [*(collector.env for collector in collectors), making, importing]
print(*(env.pid for env in envs), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_c15_learner_that_is_killed_leaves_no_process_and_no_shared_memory():
    """Its processes wait, reset, step, make the environment and import at that moment."""
    learner = start(LEARNER)
    pids = [int(pid) for pid in learner.stdout.readline().split()]
    assert len(pids) == 5
    assert all(map(running, pids))
    # The memory that they share has no name that could stay behind.
    for pid in (learner.pid, *pids[:3]):
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "/memfd:unilab-ring" in maps
        assert "/dev/shm" not in maps
    learner.kill()
    learner.communicate()
    wait_until(lambda: not any(map(running, pids[:4])), 5.0)
    wait_until(lambda: not running(pids[4]))
