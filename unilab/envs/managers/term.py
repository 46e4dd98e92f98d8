"""Terms: the functions in a task's tables, and how a manager binds and calls them.

A manager gives each entry of its table to :func:`bind_term`, which checks the parameters, finds the
joints and bodies that they name, and makes the object if ``func`` is a :class:`ManagerTermBase`
class. While the environment is built, :meth:`Term.dry_run` calls each term once: its output is
checked, and the scene records which fields it reads. From then on :func:`evaluate` calls the terms
in every step, :meth:`Term.reset` clears their state when episodes end.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from unilab.checks import check_fits, hints_of
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.nonfinite import bad_rows, is_finite
from unilab.envs.scene import NO_WRITE
from unilab.errors import CapabilityError, ConfigError, NonFiniteError, did_you_mean
from unilab.markers import Marker

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

F = TypeVar("F", bound=Callable[..., Any])

Reflection = Literal["scalar", "vector", "axial", "joints", "action"] | tuple[str, ...]
"""How columns change in the mirror of the task; see ``ObservationTermCfg.mirror``."""


def reads(*fields: str, sensors: str | tuple[str, ...] = ()) -> Callable[[F], F]:
    """Declare what a term reads only under some condition.

    What it reads in its first call, when the environment is built, is found without a declaration.

    Args:
        *fields: fields of the entity in the term's ``SceneEntityCfg`` parameter
            (``"joint_pos"``, ``"root_lin_vel_b"``, ...).
        sensors: the parameter, or parameters, that hold names of sensors.
    """

    def mark(func: F) -> F:
        func.reads_fields = fields  # type: ignore[attr-defined]
        func.reads_sensors = (sensors,) if isinstance(sensors, str) else sensors  # type: ignore[attr-defined]
        return func

    return mark


def writes(*fields: str, of: Sequence[str] = ()) -> Callable[[F], F]:
    """Declare the model parameters that an event randomises, by MuJoCo's names.

    Each may then differ between environments. What the model computes from them is recomputed
    after every write.

    Args:
        of: the kinds of ids that select what it writes (``"joint"``, ``"body"``, ``"geom"``,
            ``"actuator"``); ids of another kind are then an error.
    """

    def mark(func: F) -> F:
        func.writes_fields = fields  # type: ignore[attr-defined]
        func.selected_by = of  # type: ignore[attr-defined]
        return func

    return mark


@dataclass(frozen=True, kw_only=True)
class TermCfg:
    """A function of the environment with its parameters."""

    func: Callable[..., Any]
    """``func(env, **params)``, or a :class:`ManagerTermBase` class, called likewise."""
    params: dict[str, Any] = field(default_factory=dict)


class ManagerTermBase(ABC):
    """A stateful term: give the class as ``func``; it is made once and then called like a function.

    Make its tensors in ``__init__``, on ``env.device``. Its state is tensors, NumPy arrays, random
    generators, numbers and text in its attributes, also in lists, dicts, tuples, modules and helper
    objects; nothing else is restored or saved. The state of an observation or recorder term must be
    ``[env.num_envs, ...]``: the term is also called when only some environments are reset, and
    everything else that it remembers is then restored. A refused reset restores the state of events
    and curricula whole. Entities in ``cfg.params`` are resolved and defaults filled in.
    """

    def __init__(self, cfg: Any, env: ManagerBasedRlEnv) -> None:
        self.cfg = cfg
        self._env = env

    @abstractmethod
    def __call__(self, env: ManagerBasedRlEnv, *args: Any, **params: Any) -> Any:
        """Compute the term."""

    def reset(self, env_ids: Tensor) -> None:  # noqa: B027
        """Clear the state of the rows ``[n]`` whose episodes ended."""

    def debug_draw(self, row: int) -> Sequence[Marker]:
        """Markers that show the term of an environment in pictures, films and viewers."""
        return ()


class Output(NamedTuple):
    """The tensor that a term must return, with a row for each environment."""

    dtype: torch.dtype | None
    """None accepts any."""
    ndim: int | None
    """Dimensions, including the rows; None accepts any."""

    def __str__(self) -> str:
        shape = {1: "[num_envs]", 2: "[num_envs, width]"}.get(self.ndim or 0, "[num_envs, ...]")
        return f"{self.dtype or 'a tensor'} {shape}"


SCALAR = Output(torch.float32, 1)
FLAG = Output(torch.bool, 1)
COLUMNS = Output(torch.float32, 2)
ANY_ROWS = Output(None, None)


@dataclass(eq=False)
class Term:
    """A term function with its parameters bound and its entities resolved."""

    label: str
    """``reward term 'alive'``, for messages."""
    name: str
    func: Callable[..., Any]
    params: dict[str, Any]
    output: Output | None = None
    """What it must return; None: its manager checks that."""
    returned: tuple[torch.Size, torch.dtype] | None = None
    """Shape and dtype of the first call's value, which must not change."""
    reads: Mapping[tuple[str, str], None] = field(default_factory=dict)
    """Entity and field of what it read in its first call; a sensor has an empty entity."""

    def __call__(self, env: ManagerBasedRlEnv, *args: Any) -> Any:
        packet = env.scene.packet
        version = packet._version
        value = self.func(env, *args, **self.params)
        if packet._version != version:
            raise ConfigError(f"{self.label}: what it reads {NO_WRITE}")
        return value

    def dry_run(self, env: ManagerBasedRlEnv, *args: Any) -> Any:
        """Call and reset the term once when the environment is built.

        The scene records what the term reads; the returned value is checked.
        """
        with naming(self.label), env.scene.recording() as self.reads:
            for name, shared in _shared_tensors(env).items():
                env.scene.watch(name, shared)
            value = self(env, *args)
            if self.output is not None:
                check_output(env, self.label, value, self.output)
                self.returned = value.shape, value.dtype
            dry_run_reset(env, self.reset)
        return value

    def reset(self, rows: Tensor) -> None:
        """Clear the state of some rows, if the term has any."""
        if isinstance(self.func, ManagerTermBase):
            with torch.inference_mode():  # its calls may have left inference tensors
                self.func.reset(rows)


def bind_term(
    env: ManagerBasedRlEnv,
    kind: str,
    name: str,
    cfg: Any,
    output: Output | None = None,
    *,
    leading: int = 1,
    idle: bool = False,
) -> Term:
    """Check a term's parameters, resolve the entities in them, and make the object of a class.

    ``env`` keeps the term among ``env.terms``.

    Args:
        leading: positional arguments of its calls: 1 for ``env``, 2 for ``env, env_ids``.
        idle: only check the term, because its manager will not call it.
    """
    label = f"{kind} term {name!r}"
    with naming(label):
        func: Any = cfg.func
        stateful = isinstance(func, type)
        if not callable(func) or (stateful and not issubclass(func, ManagerTermBase)):
            raise ConfigError(f"func must be a function or a ManagerTermBase class, got {func!r}")
        called = func.__call__ if stateful else func
        params = _with_defaults(called, cfg.params, leading + stateful)
        _declare(env, func, params)
        params = {key: _resolved(env, value) for key, value in params.items()}
        if stateful:
            func = func(replace(cfg, params=params), env)
    term = Term(label, name, func, params, output)
    if not idle:
        env.terms.append(term)
    return term


def _with_defaults(
    called: Callable[..., Any], params: Mapping[str, Any], leading: int
) -> dict[str, Any]:
    """The parameters of a term, checked, with the defaults of those that were not given."""
    signature = inspect.signature(called)
    accepted = signature.parameters
    try:
        signature.bind(*[None] * leading, **params)
    except TypeError as error:
        unknown = next((key for key in params if key not in accepted), None)
        hint = "" if unknown is None else did_you_mean(unknown, accepted)
        raise ConfigError(f"func: {error}{hint}") from None
    hints = hints_of(called)
    for key, value in params.items():
        if not isinstance(value, SceneEntityCfg):  # its patterns are checked when resolved
            check_fits(key, value, hints.get(key, Any), infinite=True)
    keywords = list(accepted.values())[leading:]
    return {p.name: p.default for p in keywords if p.default is not p.empty} | dict(params)


def _declare(env: ManagerBasedRlEnv, func: Callable[..., Any], params: Mapping[str, Any]) -> None:
    """Tell the scene what ``@reads`` and ``@writes`` name."""
    for name in getattr(func, "writes_fields", ()):
        env.scene.declare_field(name)
    for leaf in tree_leaves(dict(params)):
        if isinstance(leaf, SceneEntityCfg):
            for name in getattr(func, "reads_fields", ()):
                env.scene.declare(leaf.name, name)
            if kinds := getattr(func, "selected_by", ()):
                leaf.refuse_ids_except(kinds)
    for parameter in getattr(func, "reads_sensors", ()):
        sensors = params[parameter]
        for sensor in (sensors,) if isinstance(sensors, str) else sensors:
            env.scene.declare_sensor(sensor)


def _resolved(env: ManagerBasedRlEnv, value: Any) -> Any:
    """A parameter with the entities in it resolved; without one it is the same object."""
    if not any(isinstance(leaf, SceneEntityCfg) for leaf in tree_leaves(value)):
        return value
    return tree_map_only(SceneEntityCfg, env.scene.resolve, value)


@contextmanager
def naming(label: str) -> Iterator[None]:
    """Name the term in every error that leaves the block."""
    try:
        yield
    except Exception as error:
        if label in str(error):
            raise
        if isinstance(error, ConfigError | CapabilityError):
            raise type(error)(f"{label}: {error}") from error
        # An error in the term's own code keeps its type.
        error.add_note(f"(while {label} was built or first evaluated)")
        raise


def _shared_tensors(env: ManagerBasedRlEnv) -> dict[str, Tensor]:
    """Tensors of the environment that every term may read, besides the scene's packet."""
    action = env.action_manager
    shared = {
        "env.episode_length": env.episode_length,
        "the action": action.action,
        "the previous action": action.prev_action,
    }
    for name, entity in env.scene.entities.items():
        own = {k: v for k, v in vars(entity.data).items() if isinstance(v, Tensor)}
        shared |= {f"{name}.data.{key}": value for key, value in own.items()}
        shared[f"{name}.default_root_pose"] = entity.default_root_pose
    for name, sensor in env.scene.sensors.items():
        shared |= {f"{key} of sensor {name!r}": value for key, value in sensor.state().items()}
    for name, term in env.command_manager.terms.items():
        shared[f"command {name!r}"] = term.command
    return shared


def check_output(env: ManagerBasedRlEnv, label: str, value: Any, output: Output) -> None:
    """Check type, shape, dtype, device and finiteness of what a term returned."""
    dtype, ndim = output
    if not isinstance(value, Tensor):
        raise ConfigError(f"{label} must return {output}, got {value!r}")
    if (
        value.shape[:1] != (env.num_envs,)
        or ndim not in (None, value.ndim)
        or dtype not in (None, value.dtype)
    ):
        raise ConfigError(
            f"{label} must return {output}, got {value.dtype} of shape {tuple(value.shape)}"
        )
    if value.device != env.device:
        raise ConfigError(
            f"{label} must return a tensor on {env.device}, got one on {value.device}: "
            "make it with device=env.device"
        )
    if dtype == torch.float32 and not is_finite(value):
        rows = bad_rows(value)
        raise NonFiniteError(f"{label} returned non-finite values (first rows: {rows})", rows)


def evaluate(terms: Sequence[Term], env: ManagerBasedRlEnv) -> list[Any]:
    """Every term's value, without autograd: inference mode saves its bookkeeping."""
    with torch.inference_mode():
        values = [term(env) for term in terms]
    for term, value in zip(terms, values, strict=True):
        got = (value.shape, value.dtype) if isinstance(value, Tensor) else value
        if got != term.returned:  # columns would shift, or one value be broadcast to all rows
            raise ConfigError(
                f"{term.label} must return {term.returned} as in its first call, got {got}"
            )
    return values


def stateful(terms: Iterable[Term]) -> list[Any]:
    """What may remember something of terms: objects, also those of methods, and closures."""
    funcs = [term.func for term in terms]
    owners = [func.__self__ if isinstance(func, MethodType) else func for func in funcs]
    return [owner for owner in owners if getattr(owner, "__closure__", True)]


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A manager's terms as text, one a line."""
    return "\n".join([title, *(f"  {name:<28} {shown}" for name, shown in rows)])


def dry_run_reset(env: ManagerBasedRlEnv, reset: Callable[[Tensor], None]) -> None:
    """Reset all rows when the environment is built; the random generator is put back."""
    before = env.generator.get_state()
    reset(torch.arange(env.num_envs, device=env.device))
    env.generator.set_state(before)
