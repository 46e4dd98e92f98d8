"""Training commands: Hydra's flags and overrides, unilab's errors, Ctrl-C."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from unilab.conf import algorithm_name, prepare, resolve
from unilab.conf.algorithms import algorithm
from unilab.errors import ConfigError, first_line
from unilab.output import exit_code

# PyTorch's OpenMP threads spin for milliseconds while they wait for each other, on cores that other
# programs or the late thread could use. GNU's OpenMP reads this when PyTorch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# TorchRL's notices go to standard output, and one that nobody reads would print a traceback.
os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")


def hydra_main(train: Callable[[Any], int], cfg: type) -> Callable[[], None]:
    """Make a training function a command.

    Errors and exit codes are those of :func:`~unilab.output.exit_code`.

    Args:
        train: gets the settings, once for each job of a ``--multirun``, in a process for each of
            ``training.devices``; returns the exit code.
        cfg: dataclass of the settings.
    """

    def run(config: DictConfig) -> int:
        settings = resolve(config, HydraConfig.get().overrides.task, cfg)
        from unilab.trainers import launch  # takes seconds, which errors need not wait for

        return launch(train, settings.training.devices, settings)

    def job(config: DictConfig) -> None:
        report_errors(lambda: run(config))

    def start() -> None:
        args = get_args_parser().parse_args()
        own_files = bool(args.config_dir or args.config_path or args.config_name)
        prepared = prepare(args.overrides, cfg, own_files=own_files)
        flags = [arg for arg in sys.argv[1:] if arg not in args.overrides]
        sys.argv[1:] = [*flags, *prepared]
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra would print a traceback and exit with 1
        main = hydra.main(version_base="1.3", config_path="pkg://unilab.conf", config_name="config")
        try:
            main(job)()
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(first_line(error)) from error

    def command() -> None:
        listen_to_ctrl_c()
        report_errors(start)

    return command


def train_command(arguments: list[str]) -> None:
    """``unilab train [algorithm] [flags] [key=value ...]``."""

    def start() -> None:
        named = arguments[:1] if arguments and arguments[0].isidentifier() else []
        chosen = algorithm(named[0] if named else algorithm_name(arguments))
        sys.argv[1:] = arguments[len(named) :]
        hydra_main(chosen.train, chosen.settings())()

    report_errors(start)


def listen_to_ctrl_c() -> None:
    """Handle SIGINT, which shells make their background jobs ignore, until the interpreter ends."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def report_errors(run: Callable[[], int | None]) -> None:
    """Call a function; ends the process if its exit code is not 0."""
    if code := exit_code(run):
        sys.exit(code)
