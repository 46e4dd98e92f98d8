"""The ``unilab`` command."""

from __future__ import annotations

import argparse
import contextlib
import runpy
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import NoReturn

import unilab
from unilab import registry
from unilab.cli.export import export_run
from unilab.cli.play import play_run
from unilab.conf import hydra_main
from unilab.envs.nan_guard import replay_dump
from unilab.errors import CapabilityError, UnilabError
from unilab.record import plot_learning_curve, running_program

__all__ = ["example", "main"]

# More than anybody plays, and few enough to be counted in memory and in control steps.
_MAX_ROBOTS, _MAX_SECONDS = 100_000, 86_400


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns the exit code: 1 for a dump that does not repeat, 2 for an expected error, 130 for
    Ctrl-C.

    SIGTERM ends a command like Ctrl-C does, with 143, so that nothing half-written stays behind.

    Args:
        argv: arguments, without the program's name; those of the process by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["train"]:
        # Everything behind "train" is Hydra's, flags included.
        return _train(arguments[1:])
    args = _parser().parse_args(arguments)
    try:
        with _ended_by_sigterm():
            return _run(args)
    except UnilabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace) -> int:
    if args.command == "list":
        _list()
    elif args.command == "replay-dump":
        replay = replay_dump(args.dump)
        print(replay.report)
        return 0 if replay.same else 1
    elif args.command == "export":
        export_run(args.run, args.out, program=running_program())
    elif args.command == "play":
        play_run(**{name: value for name, value in vars(args).items() if name != "command"})
    else:
        print(plot_learning_curve(args.run, args.out))
    return 0


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # no signal arrives there
        yield
        return

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signum)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def example(name: str) -> Path:
    """Where an example script lies: beside a source tree's package, or as the wheel installed it.

    Raises:
        CapabilityError: the installation has no such script.
    """
    beside = Path(unilab.__file__).parents[1] / "examples" / name
    if beside.is_file():
        return beside
    for file in metadata.files("unilab-torchrl") or ():
        path = Path(str(file.locate()))
        if path.name == name and path.parent.name == "examples" and path.is_file():
            return path
    raise CapabilityError(
        f"this installation lacks examples/{name}: reinstall it (pip install --force-reinstall "
        "unilab-torchrl), or run the script from a clone of the repository"
    )


def _train(overrides: Sequence[str]) -> int:
    try:
        script = example("train_flashsac.py")
    except UnilabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # A program that calls main() trains with its own name; so does `python -m unilab.cli`.
    command = f"{running_program()} train"
    sys.argv[1:] = overrides
    train = runpy.run_path(str(script))["train"]
    hydra_main(partial(train, command=command))()
    return 0


def _list() -> None:
    width = max(map(len, registry.names()))
    for name in registry.names():
        extra = registry.missing_extra(name)
        hint = f' needs pip install "unilab-torchrl[{extra}]"' if extra else ""
        print(f"{name:{width}}  {registry.describe(name)}{hint}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unilab",
        description="Robot reinforcement learning on TorchRL primitives.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "train",
        add_help=False,
        help="train FlashSAC; takes Hydra overrides, e.g. task=pendulum_swingup",
    )
    commands.add_parser("list", help="show the tasks")
    dump = commands.add_parser("replay-dump", help="repeat the step that made a value non-finite")
    dump.add_argument("dump", help="file that the NaN guard left")
    plot = commands.add_parser("plot", help="draw a run's learning curve")
    plot.add_argument("run", help="the run's folder")
    plot.add_argument("--out", help="picture to write (default: learning_curve.png in the run)")
    run = "the run's folder, or one of its checkpoints"
    played = commands.add_parser("play", help="play a run's policy and show what it earns")
    played.add_argument("run", help=run)
    played.add_argument(
        "--robots", type=_count, default=4, metavar="N", help="robots, one episode each (4)"
    )
    played.add_argument("--seed", type=int, default=0, help="seed of the environment (0)")
    played.add_argument(
        "--seconds", type=_seconds, help="length of an episode (default: the run's own)"
    )
    played.add_argument("--policy", metavar="FILE", help="play an exported .onnx file instead")
    played.add_argument("--video", metavar="FILE", help="film the robots into an .mp4 file")
    played.add_argument(
        "--size",
        type=_size,
        default=(1280, 720),
        metavar="WxH",
        help="pixels of the video (1280x720)",
    )
    played.add_argument(
        "--viewer", action="store_true", help="watch the first robot until the window is closed"
    )
    exported = commands.add_parser("export", help="write a run's policy as ONNX, for a robot")
    exported.add_argument("run", help=run)
    exported.add_argument("--out", metavar="FILE", help="(default: policy.onnx in the run)")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _MAX_ROBOTS:
        raise argparse.ArgumentTypeError(f"{value}: give 1 to {_MAX_ROBOTS}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text}: give a number of seconds above 0, {_MAX_SECONDS} (a day) at most"
        )
    return value


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: write it as 1280x720")
    return int(width), int(height)
