"""Random values around those of the model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unilab.checks import check_range
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

Range = tuple[float, float]
Operation = Literal["add", "scale", "abs"]
Distribution = Literal["uniform", "log_uniform", "gaussian"]
OPERATIONS = ("add", "scale", "abs")
DISTRIBUTIONS = ("uniform", "log_uniform", "gaussian")
_DEVIATIONS = 4.0
"""How far from its mean a gaussian draw may lie: 1 in 16,000 would lie further."""


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
        distribution: one of :data:`DISTRIBUTIONS`; a gaussian ends at four deviations.
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
        draw.clamp_(*_bounds(params, distribution))
    return _applied(nominal, draw.to(nominal.device), operation)


def require_not_negative(
    nominal: Tensor, what: str, params: Range, operation: str, distribution: str
) -> None:
    """Refuse draws that could give values that physics has no meaning for.

    Args:
        nominal: the model's own.
        what: the parameter's name, for messages.
        params, operation, distribution: as :func:`draw_around`.

    Raises:
        ConfigError: a value could be negative.
    """
    least = _least(nominal, params, operation, distribution)
    if bool((least < 0.0).any()):
        raise ConfigError(
            f"{params} can make a {what} of {float(least.min()):g}: it must be at least 0"
            f"{_REACH[distribution]}"
        )


def require_massive(
    env: ManagerBasedRlEnv,
    ids: Tensor,
    nominal: Tensor,
    what: str,
    params: Range,
    operation: str,
    distribution: str,
) -> None:
    """Refuse draws that could give what a body cannot have.

    Frames, which are bodies without mass, may be scaled.

    Args:
        env: the environment.
        ids: ``[bodies]``, the model's numbers.
        nominal: ``[bodies, ...]``, the model's own.
        what: the parameter's name, for messages.
        params, operation, distribution: as :func:`draw_around`.

    Raises:
        ConfigError: a mass or inertia might not be positive, or there is none to scale; names the
            bodies.
    """
    frames = (nominal == 0.0) & (operation == "scale")
    if frames.all():
        raise ConfigError(
            f"{', '.join(env.backend.bodies[i] for i in ids)} have no {what} to scale: choose "
            "others with body_names, or another operation"
        )
    least = _least(nominal, params, operation, distribution)
    wrong = (least <= 0.0) & ~frames
    if wrong.any():
        owners = ids[wrong.reshape(len(ids), -1).any(1)]
        raise ConfigError(
            f"{params} can make the {what} of {', '.join(env.backend.bodies[i] for i in owners)}"
            f" {float(least[wrong].min()):g}: it must be more than 0{_REACH[distribution]}; change "
            "it, or choose bodies with body_names"
        )


_REACH = {
    "uniform": "",
    "log_uniform": "",
    "gaussian": f", {_DEVIATIONS:g} deviations below the mean as well",
}


def _bounds(params: Range, distribution: str) -> Range:
    """The least and the greatest draw."""
    if distribution != "gaussian":
        return params
    mean, deviation = params
    return mean - _DEVIATIONS * deviation, mean + _DEVIATIONS * deviation


def _least(nominal: Tensor, params: Range, operation: str, distribution: str) -> Tensor:
    """The least value that a draw can give, of the shape of ``nominal``."""
    ends = torch.tensor(_bounds(params, distribution), dtype=nominal.dtype, device=nominal.device)
    return _applied(nominal, ends.reshape(2, *(1,) * nominal.ndim), operation).amin(0)


def _applied(nominal: Tensor, draw: Tensor, operation: str) -> Tensor:
    """What draws ``[n, ...]`` make of the nominal values, ``[n, *nominal.shape]``."""
    if operation == "abs":
        return draw.expand(draw.shape[0], *nominal.shape)
    return nominal + draw if operation == "add" else nominal * draw
