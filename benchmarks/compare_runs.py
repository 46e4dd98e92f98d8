"""Evaluations of runs that differ only in seed: mean and spread, as a table and a picture.

    python benchmarks/compare_runs.py --runs float32 runs/f32_? --runs bfloat16 runs/bf16_? \
        --out curves.png

The spread is the sample's standard deviation over the runs. The picture has a thin line for each
run and a thick one for the mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

from matplotlib.figure import Figure
from timing import print_table

from unilab.record import RunFolder
from unilab.record.metric_logger import read_progress


def curve(run: str, tag: str) -> dict[int, float]:
    """A tag's values by environment steps."""
    _, rows = read_progress(RunFolder.open(run).progress_file)
    return {int(row["frames"]): float(row[tag]) for row in rows if row.get(tag)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", action="append", required=True, metavar="NAME RUN")
    parser.add_argument("--tag", default="Eval/return")
    parser.add_argument("--title", default="")
    parser.add_argument("--out", type=Path, help="picture to write")
    args = parser.parse_args()

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    rows = []
    for color, (name, *runs) in enumerate(args.runs):
        curves = [curve(run, args.tag) for run in runs]
        reached = sorted(set.intersection(*map(set, curves)))  # by all runs
        points = {steps: [one[steps] for one in curves] for steps in reached}
        for one in curves:
            axes.plot(one.keys(), one.values(), color=f"C{color}", alpha=0.4, linewidth=0.8)
        means = [mean(values) for values in points.values()]
        axes.plot(reached, means, color=f"C{color}", marker="o", markersize=4, label=name)
        for steps, values in points.items():
            spread = f"{stdev(values):.3g}" if len(values) > 1 else ""
            each = ", ".join(f"{value:.5g}" for value in values)
            rows.append((name, f"{steps:,}", f"{mean(values):.5g}", spread, each))
    print_table(("runs", "steps", "mean", "spread", "each"), rows)
    if args.out:
        axes.set(xlabel="environment steps", ylabel=args.tag, title=args.title)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(args.out, dpi=100)


if __name__ == "__main__":
    main()
