"""Tables of runs that differ in seed (benchmarks/compare_runs.py)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from unilab.record import ProgressCsv, RunFolder

TERM = "Eval/Episode_Reward/track"


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Runs the program on two runs, which are twice as good at each evaluation as before."""
    runs = []
    for seed, falls in enumerate(((0.1, 0.0, 0.0), (0.3, 0.2, 0.1))):
        folder = RunFolder.create("task", seed, path=tmp_path / f"run_{seed}")
        folder.write_config({"task": "task"})
        table = ProgressCsv(folder.progress_file)
        for i, share in enumerate(falls):
            evaluated = {"Eval/terminated": share, TERM: 0.4 * 2**i}
            table.write(100_000 * (i + 1), (i + 1) * (2.0 + seed), evaluated)
        runs.append(str(folder.path))
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    program = importlib.import_module("compare_runs")

    def run(*arguments: str) -> list[list[str]]:
        start = ["compare_runs.py", "--runs", "PPO", *runs, "--tag", TERM, *arguments]
        monkeypatch.setattr(sys, "argv", start)
        program.main()
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    return run


def test_rows_are_means_over_seeds_of_minutes_and_of_a_term_without_its_weight(compare, tmp_path):
    rows = compare("--weight", "2", "--by", "minutes", "--out", str(tmp_path / "curves.png"))
    assert rows[1] == ["PPO", "100,000", "2.5", "0.2", "0", "0.2,", "0.2"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_goal_is_reached_by_the_first_evaluation_with_few_enough_falls(compare):
    assert compare("--goal", "0.8")[-1][1:] == [
        "2/2", "200,000", "200,000,", "200,000", "6.0", "4.0,", "6.0"
    ]  # fmt: skip
    assert compare("--goal", "0.8", "--falls", "0.05")[-1][1:] == [
        "1/2", "-", "200,000,", "-", "-", "4.0,", "-"
    ]  # fmt: skip


def test_a_pace_makes_minutes_of_steps(compare):
    assert compare("--pace", "PPO=10")[1][2] == "1.0"


@pytest.mark.parametrize("wrong", [["--tag", "Eval/trck"], ["--pace", "SAC=1"]])
def test_names_that_no_run_has_are_refused(compare, wrong):
    with pytest.raises(SystemExit, match=wrong[1].split("=")[0]):
        compare(*wrong)
