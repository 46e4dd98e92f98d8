"""Tasks by name, and the environments that they build.

env = unilab.make("go2_velocity_flat", num_envs=256, seed=0)
make_env = unilab.registry.factory("go2_velocity_flat", num_envs=256)   # pickles, for spawn

Nothing here imports PyTorch before a task is built.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import unilab.tasks
from unilab.checks import refuse_removed, replace, to_device, to_num_envs, to_seed
from unilab.errors import ConfigError, did_you_mean, mujoco_imports
from unilab.tasks import SUITES

if TYPE_CHECKING:
    from unilab.envs import TorchEnv


class TaskCfg(Protocol):
    """A task's configuration: a frozen dataclass that builds its environment."""

    def make(self, *, num_envs: int, device: str, seed: int | None) -> TorchEnv:
        """Build the environment."""
        ...


CfgFactory = Callable[[], TaskCfg]
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_registered: dict[str, str | CfgFactory] = {**unilab.tasks.TASKS, **unilab.tasks.SUITE_TASKS}
_training: dict[str, Mapping[str, Mapping[str, Any]]] = {}
_SECTIONS = ("algo", "training", "env")


@dataclass(frozen=True)
class Dims:
    """Widths that networks need."""

    obs: int
    """Actor observation."""
    critic: int
    """Critic observation: the ``critic`` group, or ``obs`` if the task has none."""
    action: int
    has_critic: bool
    """Whether the task publishes a ``critic`` group."""


@dataclass(frozen=True)
class EnvFactory:
    """Builds a task's environment wherever it is called; pickles with the task's config."""

    cfg: TaskCfg
    num_envs: int
    device: str = "cpu"
    seed: int | None = None

    def __hash__(self) -> int:  # the config may hold tables, which have no hash
        return hash((type(self.cfg), self.num_envs, self.device, self.seed))

    def __call__(self) -> TorchEnv:
        return self.cfg.make(num_envs=self.num_envs, device=self.device, seed=self.seed)


def names() -> list[str]:
    """All task names, sorted."""
    import_entry_points("unilab.tasks")
    return sorted(_registered)


def describe(name: str) -> str:
    """First line of the docstring of the function that returns a task's config."""
    factory = _find(name)
    text = _docstring(factory) if isinstance(factory, str) else factory.__doc__
    return (text or name).strip().splitlines()[0]


def missing_extra(name: str) -> str | None:
    """The extra of unilab that a task needs and that is not installed; None if it can be built."""
    suite = name.partition("/")[0]
    packaged = name in unilab.tasks.SUITE_TASKS
    return suite if packaged and find_spec(SUITES[suite]) is None else None


def register(
    name: str,
    cfg_factory: CfgFactory,
    *,
    training: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Add a task of your own.

    The command line finds the tasks of a package if the module that registers them is an entry
    point of the group ``unilab.tasks``.

    Args:
        name: what ``unilab.make`` and ``task=`` call it, and the folder of its runs: letters,
            digits, ``_``, ``-`` and ``.``, in groups as in ``dmc/walker-run``.
        cfg_factory: a function that returns the task's config: a
            :class:`~unilab.envs.ManagerBasedRlEnvCfg`, or any frozen dataclass with a ``make``
            that builds its :class:`~unilab.envs.TorchEnv`. The first line of its docstring
            describes the task. Its terms should be module-level functions, so that it pickles.
        training: settings of ``unilab train`` for this task, by algorithm:
            ``{"flashsac": {"algo": {"n_step": 3}}, "ppo": {"algo": {"num_envs": 1024}}}``. An
            algorithm without any trains with its defaults.
    """
    training = dict(training or {})
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name must be letters, digits, '_', '-', '.' and '/', got {name!r}: it is what task= "
            "takes and a folder of runs"
        )
    if not isinstance(cfg_factory, str) and not _takes_nothing(cfg_factory):
        raise ConfigError(
            "cfg_factory must be a function without arguments that returns the task's config, got "
            f"{cfg_factory!r}"
        )
    if name in _registered:
        raise ConfigError(f"a task named {name!r} exists already: choose another name")
    for algorithm, settings in training.items():
        if algorithm in _SECTIONS or not isinstance(settings, Mapping):
            raise ConfigError(
                f"training of task {name!r} must have tables of settings by algorithm, got "
                f'{algorithm}: write {{"flashsac": {{"algo": ...}}, "ppo": {{"algo": ...}}}}'
            )
    _registered[name] = cfg_factory
    _training[name] = training


def training_settings(name: str) -> dict[str, Mapping[str, Any]]:
    """Settings of ``unilab train`` that a task was registered with, by algorithm."""
    return dict(_training.get(name, {}))


@cache
def import_entry_points(group: str) -> None:
    """Import the modules that other packages list in a group of entry points."""
    for point in metadata.entry_points(group=group):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist is not None else "a package"
            raise ConfigError(
                f"{package} lists {point.value!r} in {group}, whose import failed "
                f"({type(error).__name__}: {error}): fix or uninstall it"
            ) from error


def config(name: str, overrides: Mapping[str, Any] | None = None) -> Any:
    """A task's configuration.

    Overrides are nested or by dotted key, ``{"rewards.action_rate.weight": -0.02}``; None in the
    place of a term takes the term out.
    """
    factory = _find(name)
    if isinstance(factory, str):
        with mujoco_imports():
            factory = pkgutil.resolve_name(factory)
    refuse_removed("env", overrides)
    built = factory()
    valid = is_dataclass(built) and not isinstance(built, type)
    if not valid or not callable(getattr(built, "make", None)):
        raise ConfigError(f"cfg_factory of task {name!r} must return its config, got {built!r}")
    return replace(built, overrides or {})


def factory(
    name: str,
    *,
    num_envs: int,
    device: str = "cpu",
    seed: int | None = None,
    backend: Literal["mujoco", "mjwarp"] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> EnvFactory:
    """A pickleable zero-argument function that builds the environment.

    With a seed each call builds the same environment: workers that share the function would all
    see the same robots. Give each worker a factory with its own seed, or leave the seed out and
    seed the collector.

    Args:
        device: device of the terms, and of MuJoCo Warp's physics.
        seed: of initial states, commands and noise; None: random.
        backend: physics, as ``env.backend``; None: the config's, which is MuJoCo in all packaged
            tasks.
        overrides: changes to the task's config; see :func:`config`.
    """
    num_envs, seed, device = to_num_envs(num_envs), to_seed(seed), str(to_device(device))
    if backend is not None:
        overrides = {**(overrides or {}), "backend": backend}
    return EnvFactory(config(name, overrides), num_envs, device, seed)


def make(
    name: str,
    *,
    num_envs: int = 1,
    device: str = "cpu",
    seed: int | None = None,
    backend: Literal["mujoco", "mjwarp"] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> TorchEnv:
    """Build a task's environment; see :func:`factory`."""
    chosen: dict[str, Any] = {"backend": backend, "overrides": overrides}
    return factory(name, num_envs=num_envs, device=device, seed=seed, **chosen)()


def dims(name: str, overrides: Mapping[str, Any] | None = None) -> Dims:
    """Observation and action widths of a task; builds one environment to read them."""
    env = make(name, seed=0, overrides=overrides)
    groups = env.obs_groups_spec
    action = env.full_action_spec["action"].shape[-1]
    env.close()
    return Dims(groups["obs"], groups.get("critic", groups["obs"]), action, "critic" in groups)


def _find(name: str) -> str | CfgFactory:
    if name not in _registered:
        import_entry_points("unilab.tasks")
    if name not in _registered:
        raise ConfigError(
            f"no task named {name!r}{did_you_mean(name, _registered)}: `unilab list` shows the "
            "tasks; your own is known only to the program that registers it"
        )
    return _registered[name]


def _takes_nothing(function: object) -> bool:
    """Whether ``function()`` is a valid call."""
    try:
        inspect.signature(function).bind()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _docstring(reference: str) -> str | None:
    """Docstring of ``module:function``, read from the source: imports would need PyTorch."""
    module, _, name = reference.partition(":")
    path = Path(unilab.tasks.__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node)
    return None
