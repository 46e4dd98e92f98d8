"""Trainings under faults: exit codes, output, checkpoints and what is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "inject_faults.py"
PROCESSES = ["stopped_by_signals", "killed", "suspended", "environment_process_killed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [[], ["--algorithm", "appo", "--kind", *PROCESSES]], ids=["flashsac", "appo"]
)
def test_c15_c34_c35_c36_faults_end_in_one_line_and_leave_nothing(options):
    """One fault of each kind, at a random time."""
    if subprocess.run(["unshare", "-mr", "true"], capture_output=True).returncode:
        pytest.skip("mount namespaces may not be made here")
    command = [sys.executable, str(SCRIPT), "--rounds", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
