"""How an actor is built, and what its weights mean: the part of an actor that is not a tensor."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torchrl.data import TensorSpec

from unilab.errors import ActorContractError, ConfigError, did_you_mean

__all__ = [
    "FlashSACActorSpec",
    "action_range",
    "actor_semantics",
    "import_builder",
    "record_build",
]

SCHEMA_VERSION = 1
#: builder of the built-in actor.
BUILT_IN = "unilab.modules:FlashSACActor"


@dataclass(frozen=True, kw_only=True)
class FlashSACActorSpec:
    """How to build an actor, in values that JSON can hold.

    Any process that can import the builder's module builds the same actor from the same spec.

    Raises:
        ActorContractError: a builder that is no dotted path, or kwargs that JSON cannot hold.

    Examples:
        >>> from unilab.modules import FlashSACActorSpec
        >>> FlashSACActorSpec(builder="unilab.modules.FlashSACActor", kwargs={"hidden_dim": 64})
        FlashSACActorSpec(builder='unilab.modules:FlashSACActor', kwargs={'hidden_dim': 64})
    """

    builder: str
    """Dotted path ``pkg.module:callable`` or ``pkg.module.callable``; it is called as
    ``builder(obs_dim=..., action_dim=..., device=..., **kwargs)`` and returns the actor."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """The builder's own arguments; values that JSON can hold."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "builder", _canonical(self.builder))
        if not isinstance(self.kwargs, Mapping):
            raise ActorContractError(f"actor kwargs={self.kwargs!r}: expected a mapping")
        try:
            object.__setattr__(self, "kwargs", _plain(self.kwargs, "kwargs"))
        except RecursionError as error:
            raise ActorContractError("actor kwargs are nested without end, or nearly so") from error

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FlashSACActorSpec:
        """Reads ``{"builder": "pkg.module:callable", "kwargs": {...}}``.

        Args:
            config: a dict or an OmegaConf node; ``kwargs`` may be left out.

        Raises:
            ActorContractError: another key, no builder, or values that do not fit.
        """
        if not isinstance(config, Mapping):
            raise ActorContractError(
                f'actor_config={config!r}: expected {{"builder": "pkg.module:callable", '
                '"kwargs": {...}}'
            )
        for key in config:
            if key not in ("builder", "kwargs"):
                raise ActorContractError(
                    f"unknown key {key!r} in actor_config"
                    f"{did_you_mean(key, ('builder', 'kwargs'))}: it has builder and kwargs"
                )
        if "builder" not in config:
            raise ActorContractError(
                'actor_config has no builder: name one as "pkg.module:callable"'
            )
        try:
            return cls(builder=config["builder"], kwargs=config.get("kwargs", {}))
        except ActorContractError:
            raise
        except Exception as error:  # a config node looks up what it refers to while it is read
            raise ActorContractError(
                f"actor_config cannot be read ({str(error).splitlines()[0]}): give every value"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """The same as a plain dict; :meth:`from_config` takes it back."""
        return {"builder": self.builder, "kwargs": _plain(self.kwargs, "kwargs")}


def action_range(action_spec: TensorSpec) -> dict[str, list[float]]:
    """The range of an environment's actions, as builders of actors take it.

    Args:
        action_spec: bounded actions ``[*, A]``, the same for every environment of a batch.

    Returns:
        ``{"action_low": [...], "action_high": [...]}``, one number per joint.

    Raises:
        ConfigError: the actions are unbounded, or bounded differently in different environments.
    """
    space, shape = action_spec.space, action_spec.shape
    low, high = (b.expand(shape).reshape(-1, shape[-1]) for b in (space.low, space.high))
    # Unbounded specs have the ends of the floats, whose difference is infinite.
    if not ((high - low).isfinite() & (low == low[0]) & (high == high[0])).all():
        raise ConfigError(
            f"action spec {action_spec}: expected finite bounds, the same for every environment; "
            "bound the actions, or give action_low and action_high yourself"
        )
    return {"action_low": low[0].tolist(), "action_high": high[0].tolist()}


def import_builder(spec: FlashSACActorSpec) -> Any:
    """The callable that a spec names.

    Raises:
        ActorContractError: it cannot be imported, is not there, or is not callable.
    """
    module_name, _, name = spec.builder.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:  # the module's own code may raise anything
        raise ActorContractError(
            f"actor builder {spec.builder!r}: {module_name} cannot be imported "
            f"({type(error).__name__}: {error}); it must be importable in every training process"
        ) from error
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise ActorContractError(
                f"actor builder {spec.builder!r}: {module_name} has no {name!r}"
                f"{did_you_mean(name, vars(importlib.import_module(module_name)))}"
            ) from error
    if not callable(value):
        raise ActorContractError(
            f"actor builder {spec.builder!r} is {value!r}: expected a callable"
        )
    return value


def record_build(
    actor: nn.Module, spec: FlashSACActorSpec, *, obs_dim: int, action_dim: int
) -> None:
    """Notes on an actor how it was built, for :func:`actor_semantics`."""
    # A plain attribute: no part of the state dict, and it goes where a copy of the actor goes.
    actor.__dict__["_built_as"] = {
        "builder": spec.builder,
        "kwargs": _plain(spec.kwargs, "kwargs"),
        "obs_dim": obs_dim,
        "action_dim": action_dim,
    }


def actor_semantics(actor: nn.Module) -> dict[str, Any]:
    """What an actor's weights mean: how it was built, what it reads and what it writes.

    Args:
        actor: a built-in actor, one that :func:`~unilab.modules.build_actor` returned, or any other
            module of the contract, whose builder is then unknown.

    Returns:
        JSON values: ``schema_version``, ``kind`` (``"flashsac"`` or ``"custom"``), ``builder``
        (None if unknown), ``kwargs``, ``obs_dim``, ``action_dim``, ``action_transform``.
    """
    built = getattr(actor, "_built_as", None) or {
        "builder": None,
        "kwargs": {},
        "obs_dim": getattr(actor, "obs_dim", None),
        "action_dim": getattr(actor, "action_dim", None),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "flashsac" if built["builder"] == BUILT_IN else "custom",
        "builder": built["builder"],
        "kwargs": json.loads(json.dumps(built["kwargs"])),
        "obs_dim": built["obs_dim"],
        "action_dim": built["action_dim"],
        "action_transform": getattr(actor, "action_transform_id", None),
    }


def _canonical(builder: Any) -> str:
    """A dotted path as ``pkg.module:callable``, so that both spellings mean the same actor."""
    if isinstance(builder, str):
        module, colon, name = builder.partition(":")
        if not colon:
            module, _, name = builder.rpartition(".")
        parts = [*module.split("."), *name.split(".")]
        if module == "__main__":
            raise ActorContractError(
                f"actor builder {builder!r}: __main__ is another module in every process; move the "
                "builder to a module of its own"
            )
        if all(part.isidentifier() for part in parts):
            return f"{module}:{name}"
    raise ActorContractError(
        f"actor builder {builder!r}: expected a dotted path, pkg.module:callable or "
        "pkg.module.callable"
    )


def _plain(value: Any, path: str) -> Any:
    """A value as JSON gives it back: dicts with string keys, lists, numbers, strings, None.

    Raises:
        ActorContractError: JSON cannot hold it.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ActorContractError(f"actor {path} has the key {key!r}: expected strings")
        return {key: _plain(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(inner, f"{path}[{i}]") for i, inner in enumerate(value)]
    is_number = isinstance(value, int | float) and abs(value) <= sys.float_info.max
    if value is None or isinstance(value, str) or is_number:
        return value
    hint = "pass its tolist()" if isinstance(value, torch.Tensor) else "pass a name or number"
    raise ActorContractError(
        f"actor {path}={value!r} ({type(value).__name__}): kwargs travel as JSON; "
        f"{hint} and make the object in the builder"
    )
