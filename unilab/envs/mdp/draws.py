"""Random values around those of the model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unilab.envs.checks import check_range
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

Range = tuple[float, float]
Operation = Literal["add", "scale", "abs"]
Distribution = Literal["uniform", "log_uniform", "gaussian"]
OPERATIONS = ("add", "scale", "abs")
DISTRIBUTIONS = ("uniform", "log_uniform", "gaussian")


def draw_around(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    nominal: Tensor,
    params: Range,
    operation: str,
    distribution: str,
    draws: tuple[int, ...] | None = None,
) -> Tensor:
    """``[n, *nominal.shape]``: the nominal values with a draw added to them, or the like.

    Args:
        env: the environment.
        env_ids: ``[n]``.
        nominal: ``[m, ...]``.
        params: bounds, or mean and deviation.
        operation: one of :data:`OPERATIONS`.
        distribution: one of :data:`DISTRIBUTIONS`.
        draws: shape of an environment's draws, to be broadcast; None draws for every value.

    Raises:
        ConfigError: an unknown operation or distribution, or bounds that do not fit it.
    """
    for kind, given, options in (
        ("operation", operation, OPERATIONS),
        ("distribution", distribution, DISTRIBUTIONS),
    ):
        if given not in options:
            raise ConfigError(
                f"{kind} is {given!r}{did_you_mean(given, options)}: expected one of {options}"
            )
    low, high = params
    if distribution != "gaussian":
        check_range("range", params)
    elif not 0.0 <= high < math.inf or not math.isfinite(low):
        raise ConfigError(
            f"mean and deviation are {params}: expected finite ones, the latter at least 0"
        )
    if distribution == "log_uniform" and not low > 0.0:
        raise ConfigError(f"range {params} is not positive, as log_uniform needs")
    n = env_ids.shape[0]
    draw = torch.empty(
        (n, *(draws or nominal.shape)), dtype=nominal.dtype, device=env.generator.device
    )
    if distribution == "uniform":
        draw.uniform_(low, high, generator=env.generator)
    elif distribution == "log_uniform":
        bounds = torch.tensor(params, dtype=nominal.dtype).log().tolist()
        draw.uniform_(*bounds, generator=env.generator).exp_()
    else:
        draw.normal_(low, high, generator=env.generator)
    draw = draw.to(nominal.device)
    if operation == "abs":
        return draw.expand(n, *nominal.shape)
    return nominal + draw if operation == "add" else nominal * draw


def require_not_negative(value: Tensor, what: str, params: Range) -> None:
    """Refuse values that physics has no meaning for.

    Args:
        value: what was drawn.
        what: the parameter's name, for messages.
        params: what it was drawn from, for messages.

    Raises:
        ConfigError: a value is negative.
    """
    least = float(value.min()) if value.numel() else 0.0
    if least < 0.0:
        raise ConfigError(f"range {params} makes a {what} of {least:g}: it must be at least 0")


def require_massive(
    env: ManagerBasedRlEnv,
    ids: Tensor,
    value: Tensor,
    nominal: Tensor,
    what: str,
    params: Range,
    operation: str,
) -> None:
    """Refuse what a body cannot have; frames, which are bodies without mass, may be scaled.

    Args:
        env: the environment.
        ids: ``[bodies]``, the model's numbers.
        value: ``[n, bodies, ...]``, what was drawn.
        nominal: ``[bodies, ...]``, the model's own.
        what: the parameter's name, for messages.
        params: what it was drawn from, for messages.
        operation: one of :data:`OPERATIONS`.

    Raises:
        ConfigError: a mass or inertia is not positive, or there is none to scale; names the bodies.
    """
    frames = (nominal == 0.0) & (operation == "scale")
    if frames.all():
        raise ConfigError(
            f"{', '.join(env.backend.bodies[i] for i in ids)} have no {what} to scale: choose "
            "others with body_names, or another operation"
        )
    wrong = (value <= 0.0) & ~frames
    if wrong.any():
        owners = ids[wrong.any(0).reshape(len(ids), -1).any(1)]
        raise ConfigError(
            f"range {params} makes the {what} of {', '.join(env.backend.bodies[i] for i in owners)}"
            f" {float(value[wrong].min()):g}: it must be more than 0; change the range, or choose "
            "bodies with body_names"
        )
