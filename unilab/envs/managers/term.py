"""Terms: small functions of the environment that managers call by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from unilab.envs.entity import SceneEntityCfg
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

F = TypeVar("F", bound=Callable[..., Any])


def reads(*fields: str, sensors: str | tuple[str, ...] = ()) -> Callable[[F], F]:
    """Declare what a term reads, so that the scene's one packet carries it.

    Args:
        *fields: fields of the entity that the term's ``SceneEntityCfg`` parameter names
            (``"joint_pos"``, ``"root_lin_vel_b"``, ...).
        sensors: name of the parameter, or of each, that holds sensor names (a string or a
            sequence).
    """

    def mark(func: F) -> F:
        func.reads_fields = fields  # type: ignore[attr-defined]
        func.reads_sensors = (sensors,) if isinstance(sensors, str) else sensors  # type: ignore[attr-defined]
        return func

    return mark


def writes(*fields: str) -> Callable[[F], F]:
    """Declare which model parameters an event randomises, by MuJoCo's names.

    Each may then differ between environments; what the model derives from them is recomputed
    whenever they are written.
    """

    def mark(func: F) -> F:
        func.writes_fields = fields  # type: ignore[attr-defined]
        return func

    return mark


class ManagerTermBase(ABC):
    """A term with a memory: give the class as ``func``.

    It is made once as ``func(cfg, env)`` and called like a function. Tensors that it keeps are made
    in ``__init__``, from ``env.num_envs`` and ``env.device``.

    Args:
        cfg: the term's configuration, with entities resolved and defaults filled in.
        env: the environment.
    """

    def __init__(self, cfg: Any, env: ManagerBasedRlEnv) -> None:
        self.cfg = cfg
        self._env = env

    @abstractmethod
    def __call__(self, env: ManagerBasedRlEnv, *args: Any, **params: Any) -> Any:
        """What a function in its place would do."""

    def reset(self, env_ids: Tensor) -> None:  # noqa: B027
        """Forget what belongs to the episodes that ended, in the rows ``[n]``."""


@dataclass(frozen=True)
class Term:
    """A term function with its parameters bound and its entities resolved."""

    name: str
    func: Callable[..., Any]
    params: dict[str, Any]

    def __call__(self, env: ManagerBasedRlEnv, *args: Any) -> Any:
        return self.func(env, *args, **self.params)

    def reset(self, rows: Tensor) -> None:
        """Let a term with a memory begin the episodes of some environments."""
        if isinstance(self.func, ManagerTermBase):
            with torch.inference_mode():  # like its calls: it may have rebound what it keeps
                self.func.reset(rows)


class TermCfg(Protocol):
    """What the configurations of all terms have in common."""

    @property
    def func(self) -> Callable[..., Any]: ...

    @property
    def params(self) -> dict[str, Any]: ...


def bind_term(
    env: ManagerBasedRlEnv, kind: str, name: str, cfg: TermCfg, *, leading: int = 1
) -> Term:
    """Check a term's parameters, resolve its entities and declare its reads.

    Args:
        env: the environment, whose scene learns what the term reads and writes.
        kind: what the term is ("reward", ...), for messages.
        name: the term's name in its manager.
        cfg: ``func(env, ..., **params)`` and its keyword parameters.
        leading: positional arguments that the manager passes.

    Raises:
        ConfigError: an unknown or missing parameter, entity, joint pattern or field.
        CapabilityError: a sensor or field that the model does not have.
    """
    scene, func, params = env.scene, cfg.func, cfg.params
    label = f"{kind} term {name!r}"
    if not callable(func):
        raise ConfigError(f"{label}: func is {func!r}, expected a function of the environment")
    memory = func if isinstance(func, type) else None
    if memory is not None and not issubclass(memory, ManagerTermBase):
        raise ConfigError(f"{label}: the class {memory.__name__} is no ManagerTermBase: derive it")
    called = func if memory is None else memory.__call__
    first = leading if memory is None else leading + 1
    accepted = list(inspect.signature(called).parameters.values())[first:]
    names = [p.name for p in accepted]
    for key in params:
        if key not in names:
            raise ConfigError(
                f"{label}: {func.__name__} has no parameter {key!r}{did_you_mean(key, names)}"
            )
    bound: dict[str, Any] = {}
    for parameter in accepted:
        if parameter.name in params:
            bound[parameter.name] = params[parameter.name]
        elif parameter.default is not inspect.Parameter.empty:
            bound[parameter.name] = parameter.default
        else:
            raise ConfigError(f"{label}: {func.__name__} needs the parameter {parameter.name!r}")
    for key, value in bound.items():
        if isinstance(value, SceneEntityCfg):
            bound[key] = scene.resolve(value)
            for field in getattr(func, "reads_fields", ()):
                scene.declare(value.name, field)
    for field in getattr(func, "writes_fields", ()):
        scene.declare_field(field)
    for parameter_name in getattr(func, "reads_sensors", ()):
        value = bound[parameter_name]
        for sensor in (value,) if isinstance(value, str) else value:
            scene.declare_sensor(sensor)
    if memory is not None:
        func = memory(replace(cfg, params=bound), env)  # type: ignore[type-var]
    term = Term(name, func, bound)
    env.terms.append(term)
    return term


def evaluate(terms: Sequence[Term], env: ManagerBasedRlEnv) -> list[Any]:
    """Every term's value, in inference mode.

    Without it PyTorch keeps books on every small operation for gradients that no environment has.

    Returns:
        Inference tensors, perhaps; what a manager makes of them outside (a stack, a sum) is none.
    """
    with torch.inference_mode():
        return [term(env) for term in terms]


def check_shape(kind: str, name: str, value: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """A term's value, if it is a tensor of the shape that its manager needs.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, Tensor) or tuple(value.shape[: len(shape)]) != shape:
        given = (
            f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        )
        raise ConfigError(f"{kind} term {name!r} returned {given}: expected {what}")
    return value


def check_scalar(kind: str, name: str, value: Tensor, rows: tuple[int, ...]) -> None:
    """One float32 a row is what a term must return.

    Raises:
        ConfigError: another shape or type; names the term.
    """
    check_shape(kind, name, value, rows, "float32 [num_envs]")
    if value.ndim != 1 or value.dtype != torch.float32:
        raise ConfigError(
            f"{kind} term {name!r} returned {value.dtype} of shape {tuple(value.shape)}: "
            "expected float32 [num_envs]"
        )
