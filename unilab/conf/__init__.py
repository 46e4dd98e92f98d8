"""Hydra configuration: from a command line to the settings of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from unilab import registry
from unilab.checks import build, refuse_removed
from unilab.conf.algorithms import algorithm, register_algorithm
from unilab.errors import CheckpointError, ConfigError, did_you_mean, first_line
from unilab.record import RunFolder
from unilab.tasks import SUITE_TASKS

__all__ = ["checked_settings", "compose", "register_algorithm"]


def compose(overrides: Sequence[str] = (), cfg: type | None = None) -> Any:
    """The settings of a run, from Hydra overrides.

    Args:
        overrides: e.g. ``["task=pendulum_swingup", "algo.num_envs=16"]``. With ``training.resume``
            they change the settings of that run.
        cfg: dataclass of the settings; by default the algorithm's that ``algo.name`` or the run to
            resume names, FlashSAC's if there is none.

    Examples:
        >>> compose(["task=pendulum_swingup", "algo.num_envs=4"]).algo.num_envs
        4
    """
    cfg = algorithm(algorithm_name(overrides)).settings() if cfg is None else cfg
    prepared = prepare(overrides, cfg)
    try:
        with hydra.initialize_config_module("unilab.conf", version_base="1.3"):
            config = hydra.compose("config", overrides=prepared)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(first_line(error)) from error
    return resolve(config, prepared, cfg)


def algorithm_name(overrides: Sequence[str]) -> str:
    """The algorithm that overrides name, or the run that they resume."""
    values = dict(text.lstrip("+").partition("=")[::2] for text in overrides)
    name: Any = values.get("algo.name")
    if name is None and values.get("training.resume"):
        run = RunFolder(Path(values["training.resume"].strip("'\"")))
        with suppress(CheckpointError, LookupError, TypeError):  # reported when the run is opened
            name = run.read_config()["config"]["algo"]["name"]
    return name or "flashsac"


def prepare(overrides: Sequence[str], cfg: type, *, own_files: bool = False) -> list[str]:
    """Store an algorithm's defaults in Hydra's ConfigStore, and check the task.

    Args:
        overrides: as typed.
        cfg: dataclass of the algorithm's settings.
        own_files: whether the user has configuration files, where there may be more tasks.

    Returns:
        Overrides for Hydra, which may add keys: :func:`checked_settings` knows which keys exist.
    """
    folders = _store(cfg)
    prepared = [f"hydra.searchpath=[{folders}]"]
    for text in overrides:
        override = _parsed(text)
        key = override.key_or_group
        if not own_files and not override.is_sweep_override():
            if key == "task":
                task = str(override.value())
                registry.describe(task)
                for name in registry.training_settings(task):
                    algorithm(name)  # raises if there is none
            elif key == "preset" and override.value() is not None:
                _check_preset(str(override.value()), cfg)
        file = key in ("task", "preset")
        may_add = not file and "/" not in key and key.partition(".")[0] != "hydra"
        if may_add and override.is_delete():
            raise ConfigError(f"{text} must be key=value: no setting can be removed")
        typed = text.lstrip("+") if may_add or file else text
        prepared.append(f"++{typed}" if may_add else typed)
    return prepared


def resolve(config: DictConfig, overrides: Sequence[str], cfg: type) -> Any:
    """The settings that Hydra composed, or those of the run to resume with what was typed on top.

    ``overrides`` are those that :func:`prepare` returned.
    """
    resume = OmegaConf.select(config, "training.resume")
    if isinstance(resume, str) and resume:
        config = _resumed(config, overrides)
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(first_line(error)) from error
    return checked_settings(values, cfg)


def checked_settings(values: Mapping[str, Any], cfg: type) -> Any:
    """Build settings from nested tables, e.g. the ``config`` of a run's ``run_config.json``."""
    for section in ("training", "env"):
        refuse_removed(section, values.get(section))
    return build(cfg, values)


def _store(cfg: type) -> str:
    """Put an algorithm's defaults and the tasks without a file into Hydra's ConfigStore.

    Returns the search path of the algorithm's files for tasks; empty if it has none.
    """
    store = ConfigStore.instance()
    # Tasks of the algorithm before: Hydra would check this one's files against them.
    store.repo.pop("task", None)
    defaults = asdict(cfg(task=""))
    del defaults["task"]
    store.store("settings", defaults, package="_global_")
    folder, algo = _folder(cfg, "task"), defaults.get("algo", {}).get("name")
    for name in registry.names():
        if folder is None or not (folder / f"{name}.yaml").is_file():
            own = registry.training_settings(name).get(algo, {})
            settings: dict[str, Any] = {**own, "task": name}
            if folder is not None and name in SUITE_TASKS:
                settings["defaults"] = ["/task/suite", "_self_"]
            group, _, option = f"task/{name}".rpartition("/")
            store.store(option, settings, group=group, package="_global_")
    return "" if folder is None else f"pkg://{_package(cfg)}"


def _folder(cfg: type, group: str) -> Traversable | None:
    """Where the package of an algorithm's settings may hold files of a group."""
    package = _package(cfg)
    return files(package) / group if package else None


def _package(cfg: type) -> str | None:
    """The package that defines an algorithm's settings, or the settings that they extend."""
    modules = (each.__module__ for each in cfg.__mro__)
    return next((name for name in modules if hasattr(sys.modules[name], "__path__")), None)


def _check_preset(name: str, cfg: type) -> None:
    folder = _folder(cfg, "preset")
    presets = folder.iterdir() if folder is not None and folder.is_dir() else ()
    known = sorted(file.name.removesuffix(".yaml") for file in presets)
    if name not in known:
        options = " or ".join(known) or "left out"
        raise ConfigError(f"preset must be {options}, got {name!r}{did_you_mean(name, known)}")


def _parsed(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(
            f"cannot read override {text!r}: write key=value, and a value with special characters "
            """in two pairs of quotes: 'key="value"'"""
        ) from error


def _resumed(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    run = RunFolder.open(config.training.resume)
    stored = OmegaConf.create(run.read_config()["config"])
    for section in ("algo.algo_params", "training", "env"):
        # Without one its defaults would take its place.
        if not OmegaConf.is_dict(OmegaConf.select(stored, section)):
            raise CheckpointError(
                f"{run.config_file} is damaged ({section} must be a table): restore it, or start a "
                "new run"
            )
    for override in map(_parsed, overrides):
        key = override.key_or_group
        if key.startswith("hydra"):
            continue
        if key in ("preset", "training.run_dir", "training.log_root"):
            raise ConfigError(f"{key} cannot change when training.resume is set: leave it out")
        value = OmegaConf.select(config, key)
        if key == "task" and value != stored.get("task"):
            raise ConfigError(
                f"task={value}, but {run.path} is a run of {stored.get('task')}: leave task out to "
                "continue it, or training.resume out to start a new run"
            )
        OmegaConf.update(stored, key, value, force_add=True)
    stored.training.resume = config.training.resume
    return stored
