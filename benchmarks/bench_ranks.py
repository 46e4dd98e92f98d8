"""Two ranks on two cores against one process with both: steps a second, share of the all-reduce.

    python benchmarks/bench_ranks.py one [--seconds 20] [key=value ...]
    python benchmarks/bench_ranks.py two [--split] [--seconds 20] [key=value ...]

`unilab train` runs with the settings of the task. `one` has as many threads as there are cores,
each of `two` ranks half as many. Each rank has as many environments and as large batches as the one
process, so that two learn from twice as much data a tick; with `--split` half as many and half as
large, so that they learn from the same.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import print_table


def rows(folder: str) -> list[dict[str, str]]:
    """The rows of a run that has made updates."""
    file = Path(folder) / "progress.csv"
    if not file.exists():
        return []
    with file.open(newline="") as stream:
        return [row for row in csv.DictReader(stream) if float(row.get("Perf/updates") or 0) > 20]


def measure(overrides: list[str], seconds: float) -> list[dict[str, str]]:
    """Rows of metrics of a training over some time after its first 20 updates."""
    with tempfile.TemporaryDirectory() as root:
        folder = f"{root}/run"
        command = [sys.executable, "-m", "unilab.cli", "train", f"training.run_dir={folder}"]
        settings = ["training.log_interval_s=1", "training.eval_interval=null", *overrides]
        training = subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL)
        try:
            while not (first := rows(folder)):
                if training.poll() is not None:
                    raise RuntimeError(f"the training ended with exit code {training.returncode}")
                time.sleep(0.2)
            time.sleep(seconds)
            return rows(folder)[len(first) :]
        finally:
            training.send_signal(signal.SIGTERM)
            training.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("who", choices=("one", "two"))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--split", action="store_true", help="environments and batches")
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--batch", type=int, default=512)
    args, overrides = parser.parse_known_args()
    cores = len(os.sched_getaffinity(0))
    size = {"one": 1, "two": 2}[args.who]
    devices = f"training.devices=[{','.join(['cpu'] * size)}]"
    parts = size if args.split else 1
    settings = [devices, f"algo.num_envs={args.envs // parts}"]
    settings += [f"algo.batch_size={args.batch // parts}", f"training.num_threads={cores // size}"]
    found = measure([*settings, *overrides], args.seconds)

    def mean(tag: str) -> float:
        return statistics.mean(float(row.get(tag) or 0) for row in found)

    update, sync = mean("Perf/update_ms"), mean("Perf/sync_ms")
    print_table(
        (args.who, "steps/s", "updates/s of a rank", "collect", "update", "all-reduce of update"),
        [
            (
                f"{len(found)} rows",
                f"{mean('Perf/steps_per_second'):.0f}",
                f"{mean('Perf/updates_per_second'):.1f}",
                f"{mean('Perf/collect_ms'):.1f} ms",
                f"{update:.1f} ms",
                f"{sync / update:.1%}",
            )
        ],
    )


if __name__ == "__main__":
    main()
