"""The actor contract: actors built from a spec, and refused at construction if they break it."""

from __future__ import annotations

import torch
from torch import nn

from unilab.errors import ActorContractError
from unilab.modules.actor_spec import FlashSACActorSpec, import_builder, record_build

__all__ = ["build_actor"]


def build_actor(
    spec: FlashSACActorSpec,
    *,
    obs_dim: int,
    action_dim: int,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Builds the actor that a spec names, the built-in one or anybody's.

    Args:
        spec: builder and its arguments.
        obs_dim: observation width ``O``.
        action_dim: action width ``A``.
        device: where the parameters live.

    Returns:
        The actor, which :func:`~unilab.modules.actor_semantics` knows the spec of.

    Raises:
        ActorContractError: the builder cannot be called, raises, or returns no actor; the cause is
            chained.
    """
    builder = import_builder(spec)
    try:
        actor = builder(obs_dim=obs_dim, action_dim=action_dim, device=device, **spec.kwargs)
    except Exception as error:  # a builder is anybody's code
        raise ActorContractError(
            f"actor builder {spec.builder!r} raised {type(error).__name__}: {error}; it was called "
            f"with obs_dim={obs_dim}, action_dim={action_dim}, device={device} and "
            f"kwargs={spec.kwargs}"
        ) from error
    if not isinstance(actor, nn.Module):
        raise ActorContractError(
            f"actor builder {spec.builder!r} returned {type(actor).__name__}: expected a "
            "torch.nn.Module"
        )
    record_build(actor, spec, obs_dim=obs_dim, action_dim=action_dim)
    return actor
