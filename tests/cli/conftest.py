"""Tiny runs that several tests play; none of them changes one."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from reference.runs import tiny_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """A run of a task, made when it is first asked for."""
    made: dict[str, Path] = {}
    root = tmp_path_factory.mktemp("runs")

    def run(task: str) -> Path:
        if task not in made:
            with contextlib.redirect_stdout(io.StringIO()):
                made[task] = tiny_run(root / task, task)
        return made[task]

    return run


@pytest.fixture
def pendulum(runs) -> Path:
    return runs("pendulum_swingup")


@pytest.fixture
def go2(runs) -> Path:
    return runs("go2_velocity_flat")
