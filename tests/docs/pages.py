"""The documentation's pages, and the programs in them run as a user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"

TINY = [
    "algo.num_envs=8",
    "algo.batch_size=32",
    "algo.learning_starts=64",
    "algo.total_frames=160",
    "algo.algo_params.actor_hidden_dim=16",
    "algo.algo_params.critic_hidden_dim=16",
    "algo.algo_params.compile=false",
    "training.eval_num_envs=2",
    "training.eval_interval=80",
    "training.num_threads=1",
    "env.episode_length_s=0.2",
    "env.num_threads=1",
]
"""Overrides that make a training run last a moment."""


def blocks(page: str, language: str) -> list[str]:
    """Fenced blocks of a page, in order."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def rows(page: str) -> list[list[str]]:
    """Cells of every table row of a page, without the lines below headers."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    cells = [[c.strip().strip("`") for c in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if set(row[0]) != {"-"}]


def run_page(page: str) -> dict:
    """Names that the page's Python blocks leave when run from top to bottom."""
    names: dict = {}
    for block in blocks(page, "python"):
        exec(compile(block, f"docs/{page}", "exec"), names)
    return names


def run_python(folder: Path, *arguments: str, path: Path | None = None) -> str:
    """Output of a Python command started in ``folder``."""
    paths = [str(REPOSITORY), *([str(path)] if path else [])]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
