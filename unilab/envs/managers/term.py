"""Terms: small functions of the environment that managers call by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.memory import checking_memory
from unilab.envs.managers.parameters import bound_parameters
from unilab.errors import CapabilityError, ConfigError, did_you_mean

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
    in ``__init__``, on ``env.device``. In an observation each must begin with the environments,
    ``[env.num_envs, ...]``, in a list, a dict or a TensorDict if need be: the term is also called
    when some of them begin an episode, and the others are not to notice.

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


@dataclass(eq=False)
class Term:
    """A term function with its parameters bound and its entities resolved."""

    kind: str
    name: str
    func: Callable[..., Any]
    params: dict[str, Any]
    reads: Mapping[tuple[str, str], None] = field(default_factory=dict)
    """What it declared, as the scene keeps it."""
    returned: tuple[Any, ...] | None = None
    """Shape and dtype of what it returned at construction."""

    def __call__(self, env: ManagerBasedRlEnv, *args: Any) -> Any:
        return self.func(env, *args, **self.params)

    def first(self, env: ManagerBasedRlEnv, *args: Any, by_rows: bool = False) -> Any:
        """A call and a reset at construction: the term sees what it declared, errors name it.

        What a command that its parameters name declared counts as its own.

        Args:
            env: the environment.
            *args: what the manager passes besides.
            by_rows: whether it will be called for the sake of some environments.
        """
        shown = dict(self.reads)
        for value in self.params.values():
            if isinstance(value, str):
                shown |= env.command_manager.reads.get(value, {})
        with naming(self.kind, self.name), env.scene.showing(shown):
            if not isinstance(self.func, ManagerTermBase):
                return self(env, *args)
            with checking_memory(self.func, env.num_envs) if by_rows else nullcontext():
                value = self(env, *args)
            rehearse(env, self.func.reset)
            return value

    def reset(self, rows: Tensor) -> None:
        """Let a term with a memory begin the episodes of some environments."""
        if isinstance(self.func, ManagerTermBase):
            with torch.inference_mode():  # like its calls: it may have rebound what it keeps
                self.func.reset(rows)


def rehearse(env: ManagerBasedRlEnv, reset: Callable[[Tensor], None]) -> None:
    """Call at construction what begins episodes; what it draws is drawn again later."""
    before = env.generator.get_state()
    reset(torch.arange(env.num_envs, device=env.device))
    env.generator.set_state(before)


class TermCfg(Protocol):
    """What the configurations of all terms have in common."""

    @property
    def func(self) -> Callable[..., Any]: ...

    @property
    def params(self) -> dict[str, Any]: ...


def bind_term(
    env: ManagerBasedRlEnv,
    kind: str,
    name: str,
    cfg: TermCfg,
    *,
    leading: int = 1,
    idle: bool = False,
) -> Term:
    """Check a term's parameters, resolve its entities and declare its reads.

    Args:
        env: the environment, whose scene learns what the term reads and writes.
        kind: what the term is ("reward", ...), for messages.
        name: the term's name in its manager.
        cfg: ``func(env, ..., **params)`` and its keyword parameters.
        leading: positional arguments that the manager passes.
        idle: whether the term is only to be checked, because nothing will call it.

    Raises:
        ConfigError: an unknown or missing parameter, one that is not what its annotation says, an
            unknown entity, joint pattern or field.
        CapabilityError: a sensor or field that the model does not have.
    """
    with naming(kind, name), env.scene.declaring(keep=not idle) as reads:
        func, bound = _bind(env, cfg, leading)
    term = Term(kind, name, func, bound, reads)
    if not idle:
        env.terms.append(term)
    return term


@contextmanager
def naming(kind: str, name: str) -> Iterator[None]:
    """Make every error that leaves the block at construction name the term.

    Args:
        kind: what the term is ("reward", ...).
        name: its name in its manager.
    """
    label = f"{kind} term {name!r}"
    try:
        yield
    except (ConfigError, CapabilityError) as error:
        if label in str(error):
            raise
        raise type(error)(f"{label}: {error}") from error
    except Exception as error:  # a mistake in the term's own code keeps its type and place
        error.add_note(f"(while {label} was built or first evaluated)")
        raise


def _bind(
    env: ManagerBasedRlEnv, cfg: TermCfg, leading: int
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A term's function and parameters, with the scene told of what it reads and writes."""
    scene, func = env.scene, cfg.func
    if not callable(func):
        raise ConfigError(f"func is {func!r}, expected a function of the environment")
    memory = func if isinstance(func, type) else None
    if memory is not None and not issubclass(memory, ManagerTermBase):
        raise ConfigError(f"the class {memory.__name__} is no ManagerTermBase: derive it")
    called = func if memory is None else memory.__call__
    title = getattr(func, "__name__", repr(func))
    bound = bound_parameters(called, title, cfg.params, leading + (memory is not None))
    read = getattr(func, "reads_fields", ())
    entities = 0
    for key, value in bound.items():
        found = [leaf for leaf in tree_leaves(value) if isinstance(leaf, SceneEntityCfg)]
        entities += len(found)
        for entity in found:
            if key not in cfg.params and entity.name not in scene.entities and scene.entities:
                first = next(iter(scene.entities))
                raise ConfigError(
                    f"the scene has no entity {entity.name!r}; it has {sorted(scene.entities)}: "
                    f"give {key}=SceneEntityCfg({first!r})"
                )
            for name in read:
                scene.declare(entity.name, name)
        if found:
            bound[key] = tree_map_only(SceneEntityCfg, scene.resolve, value)
    if read and not entities:
        raise ConfigError(
            f"@reads names {', '.join(read)} of the entity that a SceneEntityCfg parameter names, "
            'but there is none: give the term asset_cfg: SceneEntityCfg = SceneEntityCfg("...")'
        )
    for name in getattr(func, "writes_fields", ()):
        scene.declare_field(name)
    for name in getattr(func, "reads_sensors", ()):
        if name not in bound:
            raise ConfigError(
                f"@reads(sensors={name!r}) names no parameter{did_you_mean(name, bound)}: it takes "
                "the name of the parameter that holds the sensors' names"
            )
        value = bound[name]
        if not isinstance(value, str | Iterable) or not value:
            raise ConfigError(f"{name} is {value!r}: expected names of sensors")
        for sensor in (value,) if isinstance(value, str) else value:
            scene.declare_sensor(sensor)
    if memory is not None:
        func = memory(replace(cfg, params=bound), env)  # type: ignore[type-var]
    return func, bound
