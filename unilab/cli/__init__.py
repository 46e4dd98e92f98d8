"""The ``unilab`` command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from unilab import registry
from unilab.errors import CheckpointError
from unilab.output import exit_code

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, with the process's arguments by default.

    Returns:
        The exit code: 1 for a dump that does not repeat, else that of
        :func:`~unilab.output.exit_code`. SIGTERM exits with 143 after open files are removed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["train"]:  # the rest is Hydra's, flags included
        from unilab.conf.training_command import train_command

        train_command(arguments[1:])
        return 0
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))

    def answer() -> int | None:
        options = vars(_parser().parse_args(arguments))  # prints help, too
        command, run = options.pop("run_command"), options.get("run")
        if run is not None and not run.exists():
            raise CheckpointError(
                f"{run} does not exist: give the folder that the run printed when it started"
            )
        return command(**options)

    return exit_code(answer)


# Each command imports what it needs: PyTorch takes seconds.


def _list() -> None:
    names = registry.names()
    width = max(map(len, names))
    for name in names:
        extra = registry.missing_extra(name)
        hint = f' needs pip install "unilab-torchrl[{extra}]"' if extra else ""
        print(f"{name:{width}}  {registry.describe(name)}{hint}")


def _show(**options: Any) -> None:
    from unilab.cli.show import show_task

    show_task(**options)


def _play(**options: Any) -> None:
    from unilab.cli.play import play_run

    play_run(**options)


def _export(**options: Any) -> None:
    from unilab.cli.export import export_run

    export_run(**options)


def _plot(run: Path, out: Path | None) -> None:
    from unilab.record import plot_learning_curve

    print(plot_learning_curve(run, out))


def _replay_dump(dump: Path) -> int:
    from unilab.envs.nan_guard import replay_dump

    replay = replay_dump(dump)
    print(replay.report)
    return 0 if replay.same else 1


def _csv_to_npz(csv: Path, **options: Any) -> None:
    from unilab.cli.csv_to_npz import csv_to_npz

    csv_to_npz(csv, **options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unilab", description="Robot reinforcement learning on TorchRL primitives."
    )
    version = f"unilab {metadata.version('unilab-torchrl')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser(
        "train",
        add_help=False,
        help="train a policy: unilab train [flashsac|sac|ppo] task=pendulum_swingup key=value ...",
    )
    listed = commands.add_parser("list", help="show the tasks")
    listed.set_defaults(run_command=_list)

    show = commands.add_parser("show", help="show a task's terms and the keys that change them")
    show.set_defaults(run_command=_show)
    show.add_argument("task", help="a name that `unilab list` shows")
    show.add_argument(
        "--all", dest="all_keys", action="store_true", help="also keys that terms leave as they are"
    )

    run_help = "the run's folder, or one of its checkpoints"
    play = commands.add_parser("play", help="play a run's policy and show its rewards")
    play.set_defaults(run_command=_play)
    play.add_argument("run", type=_path, help=run_help)
    play.add_argument("--robots", type=int, default=4, metavar="N", help="one episode each (4)")
    play.add_argument("--seed", type=int, default=0, help="seed of the environment (0)")
    play.add_argument("--seconds", type=float, help="length of an episode (default: the run's)")
    play.add_argument(
        "--backend", choices=["mujoco", "mjwarp"], help="physics (default: the run's)"
    )
    play.add_argument(
        "--policy", type=_path, metavar="FILE", help="play an exported .onnx file instead"
    )
    play.add_argument(
        "--video", type=_path, metavar="FILE", help="film the robots into an .mp4 file"
    )
    play.add_argument(
        "--size", type=_size, default=(1280, 720), metavar="WxH", help="of the video (1280x720)"
    )
    play.add_argument(
        "--viewer", action="store_true", help="watch the first robot until the window is closed"
    )
    export = commands.add_parser("export", help="write a run's policy as ONNX, for a robot")
    export.set_defaults(run_command=_export)
    export.add_argument("run", type=_path, help=run_help)
    export.add_argument(
        "--out", type=_path, metavar="FILE", help="(default: policy.onnx in the run)"
    )
    plot = commands.add_parser("plot", help="draw a run's learning curve")
    plot.set_defaults(run_command=_plot)
    plot.add_argument("run", type=_path, help="the run's folder")
    plot.add_argument(
        "--out", type=_path, help="picture to write (default: learning_curve.png in the run)"
    )
    dump = commands.add_parser("replay-dump", help="repeat the step that made a value non-finite")
    dump.set_defaults(run_command=_replay_dump)
    dump.add_argument("dump", type=_path, help="file that the NaN guard wrote")
    motion = commands.add_parser("csv-to-npz", help="convert a retargeted motion for tracking")
    motion.set_defaults(run_command=_csv_to_npz)
    motion.add_argument("csv", type=_path, help="a line a frame: root position, x y z w, joints")
    motion.add_argument("--input-fps", type=float, required=True, help="lines a second")
    motion.add_argument("--output-fps", type=float, default=50.0, help="frames a second (50)")
    motion.add_argument("--robot", default="g1", help="a packaged robot, or an MJCF file (g1)")
    motion.add_argument("--out", type=_path, metavar="FILE", help="(default: the CSV's name, .npz)")
    return parser


def _path(text: str) -> Path:
    """A quoted ``~``, which the shell leaves in, is the home directory."""
    return Path(os.path.expanduser(text))


def _size(text: str) -> tuple[int, int]:
    width, height = text.lower().split("x")
    return int(width), int(height)
