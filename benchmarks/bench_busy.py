"""A training beside other programs: steps a second, as a share of those on idle cores.

    python benchmarks/bench_busy.py [--tasks pendulum_swingup,go2_velocity_flat] [key=value ...]

`unilab train` runs with the settings of the task while this program makes noise in turns: none,
busy loops that are pinned to the cores, and programs that alternate between work and sleep. A load
of 3 is three busy loops on each core, or as many programs as keep three cores busy for each that
there is. A fair scheduler leaves ``1 / (1 + load)`` of a core; the target is nine tenths of that.
The last columns are what a program of one thread keeps, which is less where cores share caches or
power, and the cores that other programs took meanwhile: a result counts if that is near 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from timing import print_table

NOISES = ("quiet", "loops 1", "bursts 1", "loops 3", "bursts 3")
TARGETS = {"1": "0.45", "3": "0.22"}
_LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    pass
"""
# Work for 1 to 50 ms, sleep as long, like a browser or a compiler that waits for files.
_BURSTS = """
import random, sys, time
draw = random.Random(int(sys.argv[1]))
while True:
    seconds = 0.001 * 50 ** draw.random()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    time.sleep(seconds)
"""
# A program of one thread that multiplies matrices; prints how many a second.
_PLAIN = """
import sys, time
import numpy as np
a = np.ones((128, 128), np.float32)
seconds, count, start = float(sys.argv[1]), 0, time.perf_counter()
while time.perf_counter() < start + seconds:
    a @ a
    count += 1
print(count / seconds)
"""


@contextmanager
def noise(name: str) -> Iterator[None]:
    """Other programs on all cores, e.g. ``"loops 3"``."""
    kind, _, load = name.partition(" ")
    cores = sorted(os.sched_getaffinity(0))
    if kind == "loops":
        programs = [(_LOOP, core) for core in cores for _ in range(int(load))]
    else:  # two programs for each core, as each sleeps half of the time
        programs = [(_BURSTS, seed) for seed in range(2 * int(load or 0) * len(cores))]
    running = [subprocess.Popen([sys.executable, "-c", code, str(arg)]) for code, arg in programs]
    try:
        yield
    finally:
        for program in running:
            program.kill()
        for program in running:
            program.wait()


def cpu_seconds() -> tuple[float, float]:
    """CPU time of all programs so far, and of those of this session."""
    tick, session = os.sysconf("SC_CLK_TCK"), os.getsid(0)
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    own = 0
    for process in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = process.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                own += sum(map(int, fields[11:15]))
    return (user + nice + system) / tick, own / tick


class Training:
    """A training in a process of its own, which is killed at the end."""

    def __init__(self, task: str, folder: str, overrides: list[str]) -> None:
        self._progress = Path(folder) / "progress.csv"
        settings = {"run_dir": folder, "log_interval_s": 0.2, "eval_interval": "null"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unilab.cli", "train", f"task={task}"]
            + [f"training.{key}={value}" for key, value in settings.items()]
            + overrides,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def row(self) -> tuple[int, float, float]:
        """Steps, seconds and updates of the last row of metrics."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the training ended with exit code {self._process.returncode}")
        if not self._progress.exists():
            return 0, 0.0, 0.0
        with self._progress.open() as file:  # only what is needed: this takes cores too
            names = file.readline().rstrip().split(",")
            file.seek(max(file.tell(), self._progress.stat().st_size - 4096))
            last = file.read().rstrip().rpartition("\n")[2].split(",")
        row = dict(zip(names, last, strict=False))
        if not row.get("Perf/updates") or len(last) != len(names):
            return 0, 0.0, 0.0
        return int(row["frames"]), 60.0 * float(row["minutes"]), float(row["Perf/updates"])

    def wait_for_updates(self, count: int) -> None:
        """Wait until the first updates, which may compile, are done."""
        while self.row()[2] < count:
            time.sleep(0.2)

    def steps_per_second(self, seconds: float) -> float:
        """Steps a second of the training over some time, at least one row of metrics."""
        steps, start = self._next_row(self.row()[0], 0.0)
        later, end = self._next_row(steps, seconds)
        return (later - steps) / (end - start)

    def _next_row(self, steps: int, seconds: float) -> tuple[int, float]:
        """Steps and seconds of a row after that of ``steps``, not before some time has passed."""
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends or (row := self.row())[0] <= steps:
            time.sleep(0.1)
        return row[:2]

    def kill(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def measure_plain(args: argparse.Namespace) -> dict[str, float]:
    """Products a second of a program of one thread beside each noise."""
    rates = {}
    for name in args.noises:
        with noise(name):
            command = [sys.executable, "-c", _PLAIN, str(args.seconds)]
            env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
            rates[name] = float(done.stdout)
    return rates


def measure(task: str, args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Median steps a second beside each noise, and how many cores other programs took.

    The noises take turns.
    """
    rates: dict[str, list[float]] = {name: [] for name in args.noises}
    others: dict[str, list[float]] = {name: [] for name in args.noises}
    with tempfile.TemporaryDirectory() as folder:
        training = Training(task, f"{folder}/run", args.overrides)
        try:
            training.wait_for_updates(50)
            for _ in range(args.rounds):
                for name in args.noises:
                    with noise(name):
                        time.sleep(0.5)
                        everything, own = cpu_seconds()
                        start = time.perf_counter()
                        rates[name].append(training.steps_per_second(args.seconds))
                        took = [
                            now - then
                            for now, then in zip(cpu_seconds(), (everything, own), strict=True)
                        ]
                        others[name].append((took[0] - took[1]) / (time.perf_counter() - start))
        finally:
            training.kill()
    median = statistics.median
    return {name: (median(rates[name]), median(others[name])) for name in rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tasks = ["pendulum_swingup", "cartpole_swingup", "go2_velocity_flat"]
    parser.add_argument("--tasks", type=_names, default=tasks, metavar="NAME,...")
    parser.add_argument("--noises", type=_names, default=list(NOISES), metavar="NAME,...")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each noise in a round")
    args, args.overrides = parser.parse_known_args()
    plain = measure_plain(args)
    for task in args.tasks:
        rates = measure(task, args)
        quiet = rates[args.noises[0]][0]
        rows = [
            (
                name,
                f"{rate:.0f}",
                f"{rate / quiet:.2f}",
                TARGETS.get(name[-1], ""),
                f"{plain[name] / plain[args.noises[0]]:.2f}",
                f"{others:.2f}",
            )
            for name, (rate, others) in rates.items()
        ]
        header = (task, "steps/s", "of quiet", "target", "plain program", "cores of others")
        print_table(header, rows)


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
