"""Evaluations of runs that differ only in seed: mean and spread, as a table and a picture.

    python benchmarks/compare_runs.py --runs float32 runs/f32_? --runs bfloat16 runs/bf16_? \
        --out curves.png

    python benchmarks/compare_runs.py --runs FlashSAC runs/flashsac_? --runs PPO runs/ppo_? \
        --tag Eval/Episode_Reward/track_lin_vel_xy --weight 1.5 --goal 0.8 --falls 0.05 \
        --by minutes --out curves.png

The spread is the sample's standard deviation over the runs. The picture has a thin line for each
run and a thick one for the mean over runs, of values and of minutes. With --goal, a second table
has the first evaluation of each run that reaches it.

Minutes are wall time with evaluations and compiling, as progress.csv has them. They compare only
runs that had the same cores to themselves. For other runs measure the minutes a million steps of
each algorithm take on a quiet machine: `--pace PPO=2.1` makes the minutes from the steps.
"""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path
from statistics import mean, median_high, stdev
from typing import NamedTuple

from matplotlib.figure import Figure
from timing import print_table

from unilab.errors import did_you_mean
from unilab.record import RunFolder
from unilab.record.metric_logger import read_progress


class Evaluation(NamedTuple):
    """A row of progress.csv that has the tag."""

    steps: float
    minutes: float
    value: float
    falls: float
    """Share of the episodes that ended before their time limit."""


NEVER = Evaluation(inf, inf, inf, inf)


def evaluations(run: str, tag: str, weight: float, pace: float | None) -> list[Evaluation]:
    """A run's evaluations in time order.

    Args:
        weight: values are divided by it.
        pace: minutes for a million steps; as logged by default.
    """
    columns, rows = read_progress(RunFolder.open(run).progress_file)
    if tag not in columns:
        raise SystemExit(f"--tag {tag} is no column of {run}{did_you_mean(tag, columns)}")
    found = []
    for row in rows:
        if row[tag]:
            steps = int(row["frames"])
            minutes = float(row["minutes"]) if pace is None else steps * pace / 1e6
            falls = float(row.get("Eval/terminated") or "nan")
            found.append(Evaluation(steps, minutes, float(row[tag]) / weight, falls))
    return found


def means(runs: list[list[Evaluation]]) -> list[tuple[float, float, list[float]]]:
    """Steps, mean minutes and values of the evaluations that all runs have."""
    by_steps = [{one.steps: one for one in run} for run in runs]
    shared = [
        [run[steps] for run in by_steps] for steps in sorted(set.intersection(*map(set, by_steps)))
    ]
    return [
        (same[0].steps, mean(one.minutes for one in same), [one.value for one in same])
        for same in shared
    ]


def first_to_reach(run: list[Evaluation], goal: float, falls: float | None) -> Evaluation:
    """The first evaluation with at least ``goal``, and with fewer falls."""
    good = (one for one in run if one.value >= goal and (falls is None or one.falls < falls))
    return next(good, NEVER)


def reached_row(name: str, reached: list[Evaluation]) -> tuple[str, ...]:
    """Of the runs of a group that reached the goal: how many, when, and the median of all runs."""

    def texts(values: list[float], form: str) -> tuple[str, str]:
        each = ["-" if value == inf else format(value, form) for value in values]
        middle = median_high(values)
        return "-" if middle == inf else format(middle, form), ", ".join(each)

    count = sum(one is not NEVER for one in reached)
    steps = texts([one.steps for one in reached], ",.0f")
    return (name, f"{count}/{len(reached)}", *steps, *texts([r.minutes for r in reached], ".1f"))


def named_number(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    return name, float(number)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", nargs="+", action="append", required=True, metavar="NAME RUN")
    parser.add_argument("--tag", default="Eval/return", help="column of progress.csv")
    parser.add_argument("--weight", type=float, default=1.0, help="of a reward term, to take out")
    parser.add_argument("--by", choices=("steps", "minutes"), default="steps")
    parser.add_argument(
        "--pace", type=named_number, action="append", default=[], metavar="NAME=MINUTES",
        help="minutes of a million steps of these runs, instead of those logged",
    )  # fmt: skip
    parser.add_argument("--goal", type=float, help="value to reach, in the second table")
    parser.add_argument("--falls", type=float, help="share of falls that the goal must be below")
    parser.add_argument("--title", default="")
    parser.add_argument("--out", type=Path, help="picture to write")
    args = parser.parse_args()
    pace = dict(args.pace)
    if unknown := set(pace) - {name for name, *_ in args.runs}:
        raise SystemExit(f"--pace is for runs that --runs names, got {', '.join(unknown)}")

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    rows, goals = [], []
    for color, (name, *folders) in enumerate(args.runs):
        runs = [evaluations(run, args.tag, args.weight, pace.get(name)) for run in folders]
        for run in runs:
            x, y = [getattr(one, args.by) for one in run], [one.value for one in run]
            axes.plot(x, y, color=f"C{color}", alpha=0.4, linewidth=0.8)
        points = means(runs)
        x = [steps if args.by == "steps" else minutes for steps, minutes, _ in points]
        y = [mean(values) for *_, values in points]
        axes.plot(x, y, color=f"C{color}", marker="o", markersize=4, label=name)
        for steps, minutes, values in points:
            spread = f"{stdev(values):.3g}" if len(values) > 1 else ""
            each = ", ".join(f"{value:.5g}" for value in values)
            rows.append((name, f"{steps:,}", f"{minutes:.1f}", f"{mean(values):.5g}", spread, each))
        if args.goal is not None:
            reached = [first_to_reach(run, args.goal, args.falls) for run in runs]
            goals.append(reached_row(name, reached))
            axes.axhline(args.goal, color="gray", linewidth=0.8, linestyle="--")
    print_table(("runs", "steps", "minutes", "mean", "spread", "each"), rows)
    if goals:
        print()
        header = ("runs", "reached", "steps, median", "each", "minutes, median", "each")
        print_table(header, goals)
    if args.out:
        label = "environment steps" if args.by == "steps" else "minutes"
        axes.set(xlabel=label, ylabel=args.tag.removeprefix("Eval/"), title=args.title)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(args.out, dpi=100)


if __name__ == "__main__":
    main()
