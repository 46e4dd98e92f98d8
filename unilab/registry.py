"""Names of tasks, and the environments they stand for.

env = unilab.make("go2_velocity_flat", num_envs=256, seed=0)
make_env = unilab.registry.factory("go2_velocity_flat", num_envs=256)   # pickles, for spawn
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from types import NoneType
from typing import Any, get_args

from unilab.checks import fits, hints_of, to_device, to_num_envs, to_seed
from unilab.envs import TorchEnv
from unilab.errors import ConfigError, did_you_mean
from unilab.tasks import SUITE_TASKS, TASKS, TaskCfg
from unilab.tasks.suites.env import SUITES

__all__ = [
    "Dims",
    "EnvFactory",
    "describe",
    "dims",
    "factory",
    "make",
    "missing_extra",
    "names",
    "register",
    "training_settings",
]

CfgFactory = Callable[[], TaskCfg]
_registered: dict[str, CfgFactory] = {**TASKS, **SUITE_TASKS}
_training: dict[str, Mapping[str, Any]] = {}
# Entry points of this group are modules of other packages that register tasks when imported.
_ENTRY_POINTS = "unilab.tasks"


@dataclass(frozen=True)
class Dims:
    """Widths that networks need."""

    obs: int
    """Actor observation."""
    critic: int
    """Critic observation: that of the ``critic`` group, or ``obs`` if the task has none."""
    action: int
    has_critic: bool
    """Whether the task publishes a ``critic`` group."""


@dataclass(frozen=True)
class EnvFactory:
    """Builds a task's environment wherever it is called; pickles by the config's import path."""

    cfg_factory: CfgFactory
    num_envs: int
    device: str = "cpu"
    seed: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> TorchEnv:
        cfg = _overridden(self.cfg_factory(), self.overrides, "")
        return cfg.make(num_envs=self.num_envs, device=self.device, seed=self.seed)


def names() -> list[str]:
    """All task names, sorted."""
    _import_packages()
    return sorted(_registered)


def describe(name: str) -> str:
    """One line about a task.

    Raises:
        ConfigError: no such task.
    """
    return (_cfg_factory(name).__doc__ or name).strip().splitlines()[0]


def missing_extra(name: str) -> str | None:
    """The extra of unilab that a task needs and this installation lacks; None if it can be made."""
    suite = name.partition("/")[0]
    if name in SUITE_TASKS and find_spec(SUITES[suite]) is None:
        return suite
    return None


def register(
    name: str, cfg_factory: CfgFactory, *, training: Mapping[str, Any] | None = None
) -> None:
    """Add a task of your own.

    Tasks of a package are found by name, on the command line too, if the module that registers them
    is an entry point of the group ``unilab.tasks``.

    Args:
        name: the task's name.
        cfg_factory: a module-level function (so that it pickles) that returns the task's config: a
            :class:`~unilab.envs.ManagerBasedRlEnvCfg`, or any frozen dataclass with a ``make``
            that builds its :class:`~unilab.envs.TorchEnv`; the first line of its docstring
            describes the task.
        training: what ``unilab train`` is to use for it instead of its defaults, as in its
            configuration files: ``{"algo": {"num_envs": 64}}``.

    Raises:
        ConfigError: the name is taken, or ``cfg_factory`` is no function.
    """
    if name in _registered:
        raise ConfigError(f"a task named {name!r} exists already: choose another name")
    if not callable(cfg_factory):
        raise ConfigError(
            f"cfg_factory of {name!r} is a {type(cfg_factory).__name__}: give the function that "
            "returns the task's config"
        )
    _registered[name] = cfg_factory
    _training[name] = dict(training or {})


def training_settings(name: str) -> dict[str, Any]:
    """What a task was registered with as ``training``.

    Raises:
        ConfigError: no such task.
    """
    _cfg_factory(name)
    return dict(_training.get(name, {}))


@cache
def _import_packages() -> None:
    """Import what other packages have in the group of entry points.

    Raises:
        ConfigError: one cannot be imported.
    """
    for point in metadata.entry_points(group=_ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist is not None else "a package"
            raise ConfigError(
                f"{package} has tasks in {point.value!r}, whose import failed "
                f"({type(error).__name__}: {error}): mend it or uninstall it"
            ) from error


def factory(
    name: str,
    *,
    num_envs: int,
    device: str = "cpu",
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> EnvFactory:
    """A pickleable zero-argument function that builds the environment.

    With a seed each call builds the same one: workers that share the function would all see the
    same robots. Give each a function with a seed of its own, or none and seed the collector.

    Args:
        name: the task.
        num_envs: environments in the batch, at least 1.
        device: where terms run.
        seed: the environment's seed.
        overrides: changes to the task's config, nested or by dotted path
            (``{"episode_length_s": 5.0, "rewards.action_rate.weight": -0.02}``); None in the place
            of a term takes it out.

    Raises:
        ConfigError: no such task, an override that does not fit, or no such num_envs, device or
            seed.
    """
    cfg_factory = _cfg_factory(name)
    if not isinstance(overrides or {}, Mapping):
        raise ConfigError(f"overrides is {overrides!r}: give a dict of paths and values")
    overrides = dict(overrides or {})
    num_envs, seed, device = to_num_envs(num_envs), to_seed(seed), str(to_device(device))
    _overridden(cfg_factory(), overrides, "")
    return EnvFactory(cfg_factory, num_envs, device, seed, overrides)


def make(
    name: str,
    *,
    num_envs: int = 1,
    device: str = "cpu",
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> TorchEnv:
    """Build a task's environment; see :func:`factory`."""
    return factory(name, num_envs=num_envs, device=device, seed=seed, overrides=overrides)()


def dims(name: str, overrides: Mapping[str, Any] | None = None) -> Dims:
    """Observation and action widths of a task, from one environment built for the purpose."""
    env = make(name, num_envs=1, seed=0, overrides=overrides)
    groups = env.obs_groups_spec
    action = env.full_action_spec["action"].shape[-1]
    env.close()
    return Dims(groups["obs"], groups.get("critic", groups["obs"]), action, "critic" in groups)


def _cfg_factory(name: str) -> CfgFactory:
    if name not in _registered:
        _import_packages()
    try:
        return _registered[name]
    except KeyError:
        raise ConfigError(
            f"no task named {name!r}{did_you_mean(name, _registered)}; "
            f"`unilab list` shows them: {', '.join(names())}"
        ) from None


def _overridden(value: Any, overrides: Mapping[str, Any], path: str) -> Any:
    """A config with some of its values replaced, by key or dotted path; None takes terms out."""
    for dotted, new in overrides.items():
        key, _, rest = dotted.partition(".")
        options = [f.name for f in fields(value)] if is_dataclass(value) else list(value)
        here = f"{path}.{key}" if path else key
        if key not in options:
            if path.endswith(".params") and not rest:  # left at its default; the manager checks it
                value = {**value, key: new}
                continue
            where = f"'{path}'" if path else "the task"
            raise ConfigError(
                f"override {here!r}: {where} has no {key!r}{did_you_mean(key, options)}; it has "
                f"{', '.join(map(str, options)) or 'nothing'} (new ones go into the task's config)"
            )
        old = getattr(value, key) if is_dataclass(value) else value[key]
        if rest:
            new = {rest: new}
        if isinstance(new, Mapping) and (is_dataclass(old) or isinstance(old, Mapping)):
            new = _overridden(old, new, here)
        elif new is None and is_dataclass(old) and not is_dataclass(value):
            value = {name: term for name, term in value.items() if name != key}
            continue
        else:
            if old is None and new is not None and _is_table(value, key):
                raise ConfigError(
                    f"override {here!r} is {new!r}: it is a table that the task leaves out; "
                    "give it in the task's own config"
                )
            if rest:
                raise ConfigError(f"override '{here}.{rest}': {here!r} is a value, not a table")
            if new is not None or not _optional(value, key):
                new = _like(old, new, here, _hint(value, key))
        if is_dataclass(value) and not isinstance(value, type):
            try:
                value = replace(value, **{key: new})
            except ConfigError as error:
                raise ConfigError(f"override {here!r}: {error}") from error
        else:
            value = {**value, key: new}
    return value


def _is_table(value: Any, key: str) -> bool:
    """Whether a field holds a config of its own, if anything."""
    kinds = get_args(_hint(value, key))
    return any(is_dataclass(kind) for kind in kinds)


def _optional(value: Any, key: str) -> bool:
    """Whether a field may be None."""
    return NoneType in get_args(_hint(value, key))


def _hint(value: Any, key: str) -> Any:
    """The annotation of a config's field; None where there is none, as in a table of terms."""
    return hints_of(type(value)).get(key) if is_dataclass(value) else None


def _like(old: Any, new: Any, path: str, hint: Any = None) -> Any:
    """``new`` in the type of ``old``, or in another that the field's annotation allows.

    Raises:
        ConfigError: it has another kind of value.
    """
    if isinstance(new, float) and not math.isfinite(new):
        raise ConfigError(f"override {path!r} is {new}: expected a finite number")
    if old is None:
        return new
    if isinstance(old, float) and isinstance(new, int) and not isinstance(new, bool):
        return float(new)
    if isinstance(old, tuple) and isinstance(new, (list, tuple)):
        new = tuple(new)
        if old and len(new) == len(old):
            return tuple(_like(o, n, path) for o, n in zip(old, new, strict=True))
        if not old or not isinstance(old[0], (int, float)):
            return new
    elif type(new) is type(old):
        return new
    new = tuple(new) if isinstance(new, list) else new
    if hint is not None and fits(new, hint):
        return new
    raise ConfigError(
        f"override {path!r} is {new!r} ({type(new).__name__}): "
        f"expected {type(old).__name__} like the present {old!r}"
    )
