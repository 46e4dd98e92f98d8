"""The packaged Hydra configuration, and how a command line becomes a checked ``TrainCfg``."""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from unilab import registry
from unilab.collectors.placement import refuse_removed_key
from unilab.errors import CheckpointError, ConfigError, UnilabError, did_you_mean
from unilab.record import RunFolder
from unilab.record.console import override as override_of
from unilab.trainers.config import TrainCfg
from unilab.trainers.config_dict import check_key

__all__ = ["compose", "hydra_main", "tasks"]

_MODULE = "unilab.conf.flashsac"
# Where a user's keys are not in the packaged files.
_OPEN = ("env.", "algo.algo_params.actor_config.")


def tasks() -> list[str]:
    """Tasks that have a configuration file."""
    return sorted(_names(files(_MODULE) / "task"))


def _names(folder: Traversable, prefix: str = "") -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name[0] not in "_.":
            yield from _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name.removesuffix(".yaml")


def compose(overrides: Sequence[str] = ()) -> TrainCfg:
    """The configuration of a run, without a command line.

    Args:
        overrides: Hydra overrides, e.g. ``["task=pendulum_swingup", "algo.num_envs=16"]``.

    Returns:
        The checked configuration. With ``training.resume`` it is the one of that run, with the
        overrides on top.

    Raises:
        ConfigError: a task, key or value that does not exist or fit.
        CheckpointError: ``training.resume`` is no run.

    Examples:
        >>> compose(["task=pendulum_swingup", "algo.num_envs=4"]).algo.num_envs
        4
    """
    checked = _checked(overrides)
    try:
        with hydra.initialize_config_module(_MODULE, version_base="1.3"):
            config = hydra.compose("config", overrides=checked)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_first_line(error)) from error
    return _resolve(config, checked)


def hydra_main(train: Callable[[TrainCfg], int]) -> Callable[[], None]:
    """Makes a training function a command: Hydra's flags and overrides, unilab's errors.

    An expected error is one line and exit code 2; ``HYDRA_FULL_ERROR=1`` shows its traceback.
    Ctrl-C is exit code 130 without a traceback, also where the command was started with SIGINT
    ignored, as shells start what they run in the background.

    Args:
        train: gets the checked configuration, once for each job of a ``--multirun``; returns the
            exit code.

    Returns:
        The command; it reads ``sys.argv``.
    """

    def job(config: DictConfig) -> None:
        def run() -> None:
            code = train(_resolve(config, HydraConfig.get().overrides.task))
            if code:
                sys.exit(code)

        _report(run)

    def start() -> None:
        args = get_args_parser().parse_args()
        custom = args.config_dir or args.config_path or args.config_name
        checked = _checked(args.overrides, any_task=bool(custom))
        given = set(args.overrides)
        flags = [arg for arg in sys.argv[1:] if arg not in given]
        sys.argv[1:] = [*flags, *checked]
        hydra.main(version_base="1.3", config_path=f"pkg://{_MODULE}", config_name="config")(job)()

    def command() -> None:
        _listen_to_ctrl_c()
        _report(start)

    return command


def _listen_to_ctrl_c() -> None:
    """From now until the interpreter takes itself apart, when an interrupt is only noise."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _report(run: Callable[[], None]) -> None:
    try:
        run()
    except UnilabError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        # On its way out there is nothing left that another one could interrupt.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("Interrupted; what was saved before is kept.", file=sys.stderr)
        sys.exit(130)


def _checked(overrides: Sequence[str], *, any_task: bool = False) -> list[str]:
    """Overrides whose keys exist; those of open tables made such that Hydra lets them add keys."""
    parser = OverridesParser.create()
    checked = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            key, given, value = text.partition("=")
            quoted = shlex.quote(override_of(key, value))
            quoted = f", a value of other characters quoted: {quoted}" if given else ""
            raise ConfigError(
                f"cannot read override {text!r} ({_first_line(error)}): write key=value{quoted}"
            ) from error
        key = override.key_or_group
        if key == "task":
            known = _store_registered()
            if not any_task and not override.is_sweep_override():
                _check_task(str(override.value()), known)
        elif key.partition(".")[0].partition("/")[0] != "hydra":
            if override.is_delete():
                raise ConfigError(
                    f"{text}: nothing can be taken away, it would go back to a default that is not "
                    f"the task's: give {key} the value that it is to have"
                )
            refuse_removed_key(key)
            table: Any = override.value()
            for name in table if isinstance(table, dict) else ():
                refuse_removed_key(f"{key}.{name}")
            check_key(TrainCfg, key)
        may_be_new = key.startswith(_OPEN) and override.type is not None and text[0] not in "+~"
        checked.append(f"++{text}" if may_be_new else text)
    return checked


def _store_registered() -> list[str]:
    """Give Hydra the tasks that were registered without a configuration file.

    Returns:
        All tasks that can be trained.
    """
    packaged = tasks()
    own = [name for name in registry.names() if name not in packaged]
    for name in own:
        group, _, option = f"task/{name}".rpartition("/")
        settings = {**registry.training_settings(name), "task": name}
        ConfigStore.instance().store(option, settings, group=group, package="_global_")
    return sorted([*packaged, *own])


def _check_task(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ConfigError(
            f"no task named {name!r}{did_you_mean(name, known)}; `unilab list` shows them: "
            f"{', '.join(known)}"
        )


def _resolve(config: DictConfig, overrides: Sequence[str]) -> TrainCfg:
    resume = OmegaConf.select(config, "training.resume")
    if resume is not None:
        if not isinstance(resume, str):
            raise ConfigError(
                f"training.resume={resume}: expected the path of a run folder; one that reads like "
                """something else in quotes: 'training.resume="1e3"'"""
            )
        config = _resumed(config, overrides)
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error
    return TrainCfg.from_dict(values)


def _resumed(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration that the run was started with, and on top only what was typed now."""
    run = RunFolder.open(config.training.resume)
    stored = OmegaConf.create(run.read_config()["config"])
    for section in ("algo", "algo.algo_params", "training", "env"):
        # Without one the defaults would take its place, and be written back.
        if not OmegaConf.is_dict(OmegaConf.select(stored, section)):
            raise CheckpointError(
                f"{run.config_file} is damaged ({section} is no table): restore it, or start a new "
                "run"
            )
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        if key.partition(".")[0].partition("/")[0] == "hydra":
            continue
        if key in ("training.run_dir", "training.log_root"):
            raise ConfigError(
                f"{key} together with training.resume={run.path}: a resumed run stays in its "
                f"folder, leave {key} out"
            )
        value = OmegaConf.select(config, key)
        if key == "task" and value != stored.get("task"):
            raise ConfigError(
                f"task={value}, but {run.path} is a run of {stored.get('task')}: leave task out to "
                "continue it, or training.resume out to start a new run"
            )
        OmegaConf.update(stored, key, value, force_add=True)
    stored.training.resume = config.training.resume
    return stored


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
