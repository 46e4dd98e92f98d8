"""Specification of an actor: how it is built, and what its weights mean."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from unilab.errors import ActorContractError, ConfigError, did_you_mean

SCHEMA_VERSION = 1
#: builder of the built-in actor.
BUILT_IN = "unilab.modules:FlashSACActor"


@dataclass(frozen=True, kw_only=True)
class FlashSACActorSpec:
    """How to build an actor. Any process that can import the builder's module builds the same one.

    Examples:
        >>> from unilab.modules import FlashSACActorSpec
        >>> FlashSACActorSpec(builder="unilab.modules.FlashSACActor", kwargs={"hidden_dim": 64})
        FlashSACActorSpec(builder='unilab.modules:FlashSACActor', kwargs={'hidden_dim': 64})
    """

    builder: str
    """Dotted path ``pkg.module:callable`` or ``pkg.module.callable``; it is called as
    ``builder(obs_dim=..., action_dim=..., device=..., **kwargs)`` and returns the actor. A class of
    ``nn.Module``, or a function that is annotated to return one."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the builder: JSON values."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "builder", _canonical(self.builder))
        if not isinstance(self.kwargs, Mapping):
            raise ActorContractError(f"actor kwargs must be a mapping, got {self.kwargs!r}")
        object.__setattr__(self, "kwargs", _json_values(self.kwargs, "kwargs"))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FlashSACActorSpec:
        """Reads ``{"builder": "pkg.module:callable", "kwargs": {...}}``, plain or of OmegaConf."""
        keys = ("builder", "kwargs")
        if not isinstance(config, Mapping) or "builder" not in config:
            raise ActorContractError(
                'actor_config must be {"builder": "pkg.module:callable", "kwargs": {...}}, got '
                f"{config!r}"
            )
        for key in config:
            if key not in keys:
                raise ActorContractError(
                    f"actor_config has the unknown key {key!r}{did_you_mean(key, keys)}: it takes "
                    "builder and kwargs"
                )
        return cls(builder=config["builder"], kwargs=config.get("kwargs", {}))

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, the input of :meth:`from_config`; a copy."""
        return {"builder": self.builder, "kwargs": copy.deepcopy(self.kwargs)}


def action_range(action_spec: TensorSpec) -> dict[str, list[float]]:
    """The range of actions, as the built-in actor takes it.

    Args:
        action_spec: bounded actions ``[*, A]``, the same for every environment of a batch.

    Returns:
        ``{"action_low": [...], "action_high": [...]}``, one number per joint.
    """
    if isinstance(action_spec, Composite):
        raise ConfigError(
            "action_spec must be the spec of one action, got a Composite: pass its leaf, "
            "env.action_spec"
        )
    space, shape = action_spec.space, action_spec.shape
    low, high = (b.expand(shape).reshape(-1, shape[-1]) for b in (space.low, space.high))
    # Unbounded specs have the ends of the floats, whose difference is infinite.
    span = (high - low)[0]
    if not ((high - low).isfinite() & (low == low[0]) & (high == high[0])).all():
        problem = "must have finite bounds, the same for every environment"
    elif not (span > 0).all():
        problem = "must have low below high for each action"
    else:
        return {"action_low": low[0].tolist(), "action_high": high[0].tolist()}
    raise ConfigError(
        f"action_spec {problem}, got low={low[0].tolist()}, high={high[0].tolist()}: bound the "
        "actions, leave out a locked joint, or state the range of the actor's yourself"
    )


def record_build(
    actor: nn.Module,
    spec: FlashSACActorSpec,
    *,
    obs_dim: int,
    action_dim: int,
    validated: bool = False,
) -> None:
    """Stores on an actor how it was built, for :func:`actor_semantics`."""
    # A plain attribute: not in the state dict, and copied with the actor.
    actor.__dict__["_built_as"] = {
        **spec.to_dict(),
        "obs_dim": obs_dim,
        "action_dim": action_dim,
        "structure": _structure(actor),
        "validated": validated,
    }


def record_constructor(actor: Any, base: type[nn.Module], kwargs: dict[str, Any]) -> None:
    """Records the constructor of an actor of the library, or of a subclass with the same one."""
    kind = type(actor)
    if kind.__init__ is not base.__init__:  # which may take other arguments
        return
    module = "unilab.modules" if kind is base else kind.__module__
    with suppress(ActorContractError):  # of a script or a function, it cannot be imported
        spec = FlashSACActorSpec(builder=f"{module}:{kind.__qualname__}", kwargs=kwargs)
        record_build(actor, spec, obs_dim=actor.obs_dim, action_dim=actor.action_dim)


def _structure(actor: nn.Module) -> dict[str, Any]:
    """What a builder decides about an actor beside the weights: parts, sizes and transform."""
    parts = {}
    for name, module in actor.named_modules():
        kind = type(module)
        replaced = [
            k for k, v in vars(module).items() if callable(v) and callable(getattr(kind, k, 0))
        ]
        parts[name] = (f"{kind.__module__}:{kind.__qualname__}", *sorted(replaced))
    sizes = {name: tuple(p.shape) for name, p in actor.named_parameters()}
    transform = {name: value.tolist() for name, value in action_constants(actor).items()}
    return {"parts": parts, "sizes": sizes, "transform": transform}


def action_constants(actor: nn.Module) -> dict[str, Tensor]:
    """Buffers with the action range of this library's actors; another actor may learn its own."""
    if not any(kind.__module__.startswith("unilab.modules") for kind in type(actor).__mro__):
        return {}
    names = ("action_scale", "action_offset")
    return {k: v for k, v in actor.named_buffers(recurse=False) if k in names}


def actor_semantics(actor: nn.Module) -> dict[str, Any]:
    """What an actor's weights mean: how it was built, and the widths of its input and output.

    Returns:
        JSON values: ``schema_version``, ``kind`` (``"flashsac"`` or ``"custom"``), ``builder``
        (None for a custom actor that :func:`~unilab.modules.build_actor` did not build),
        ``kwargs``, ``obs_dim``, ``action_dim``, ``action_transform``. An actor whose parts, methods
        or action range were exchanged after it was built is a custom one of unknown builder.
    """
    built = getattr(actor, "_built_as", None)
    if built is None or built["structure"] != _structure(actor):
        built = {
            "builder": None,
            "kwargs": {},
            "obs_dim": getattr(actor, "obs_dim", None),
            "action_dim": getattr(actor, "action_dim", None),
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "flashsac" if built["builder"] == BUILT_IN else "custom",
        "builder": built["builder"],
        "kwargs": copy.deepcopy(built["kwargs"]),
        "obs_dim": built["obs_dim"],
        "action_dim": built["action_dim"],
        "action_transform": getattr(actor, "action_transform_id", None),
    }


def _canonical(builder: Any) -> str:
    """``pkg.module:callable``, so that both spellings mean the same actor."""
    module, colon, name = str(builder).partition(":")
    if not colon:
        module, _, name = module.rpartition(".")
    if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        raise ActorContractError(
            "actor builder must be a dotted path, pkg.module:callable or pkg.module.callable, got "
            f"{builder!r}"
        )
    if module == "__main__":
        raise ActorContractError(
            f"actor builder must be importable in every process, got {builder!r}: move it to a "
            "module of its own"
        )
    return f"{module}:{name}"


def _json_values(value: Any, path: str) -> Any:
    """A copy in dicts with string keys, lists, strings, numbers and None."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _json_values(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_json_values(inner, f"{path}[{i}]") for i, inner in enumerate(value)]
    is_number = isinstance(value, int | float) and abs(value) < math.inf
    if value is None or isinstance(value, str) or is_number:
        return value
    raise ActorContractError(
        f"actor {path} must be JSON values, got {value!r} ({type(value).__name__}): pass names and "
        "numbers (a tensor's tolist()), and make objects in the builder"
    )
