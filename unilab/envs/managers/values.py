"""What terms return: computed together, and held to what their managers need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.envs.managers.term import Term
from unilab.envs.nonfinite import bad_rows, is_finite
from unilab.errors import ConfigError, NonFiniteError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


def first_values(
    terms: Sequence[Term], env: ManagerBasedRlEnv, *, by_rows: bool = False
) -> list[Any]:
    """As :func:`evaluate`, at construction: see :meth:`Term.first`."""
    with torch.inference_mode():
        values = [term.first(env, by_rows=by_rows) for term in terms]
    for term, value in zip(terms, values, strict=True):
        term.returned = _kind(value)
    return values


def evaluate(terms: Sequence[Term], env: ManagerBasedRlEnv) -> list[Any]:
    """Every term's value, in inference mode.

    Without it PyTorch keeps books on every small operation for gradients that no environment has.

    Returns:
        Inference tensors, perhaps; what a manager makes of them outside (a stack, a sum) is none.

    Raises:
        ConfigError: a term returned something else than at construction.
    """
    with torch.inference_mode():
        values = [term(env) for term in terms]
    for term, value in zip(terms, values, strict=True):
        if _kind(value) != term.returned:
            raise ConfigError(
                f"{term.kind} term {term.name!r} returned {_shown(_kind(value))}, and "
                f"{_shown(term.returned)} at construction: let it return the same every time"
            )
    return values


def _kind(value: Any) -> tuple[Any, ...]:
    """What must not change about a term's values."""
    return (value.shape, value.dtype) if isinstance(value, Tensor) else (type(value),)


def _shown(kind: tuple[Any, ...] | None) -> str:
    match kind:
        case (shape, dtype):
            return f"{dtype} of shape {tuple(shape)}"
        case (cls,):
            return f"a {cls.__name__}"
    return "nothing"


def check_value(
    env: ManagerBasedRlEnv,
    kind: str,
    name: str,
    value: Any,
    expected: str,
    *,
    dtype: torch.dtype | None = None,
    ndim: int | None = None,
) -> Tensor:
    """What a term returned at construction, if it is what its manager needs.

    Args:
        env: the environment.
        kind: what the term is ("reward", ...), for messages.
        name: the term's name in its manager.
        value: what it returned.
        expected: what its manager needs, for messages.
        dtype: the type of a row's values; None takes any.
        ndim: dimensions, the rows included; None takes any.

    Raises:
        ConfigError: another type, shape or device; names the term.
        NonFiniteError: a value that is to be float32 is not finite; names the term and rows.
    """
    label = f"{kind} term {name!r} returned"
    if not isinstance(value, Tensor):
        raise ConfigError(f"{label} {value!r}: expected {expected}")
    if (
        value.shape[:1] != (env.num_envs,)
        or (ndim is not None and value.ndim != ndim)
        or (dtype is not None and value.dtype != dtype)
    ):
        raise ConfigError(
            f"{label} {value.dtype} of shape {tuple(value.shape)}: expected {expected}"
        )
    if value.device != env.device:
        raise ConfigError(
            f"{label} a tensor on {value.device}: expected {env.device}; "
            "make it with device=env.device"
        )
    if dtype == torch.float32 and not is_finite(value):
        rows = bad_rows(value)
        raise NonFiniteError(f"{label} values that are not finite (first rows: {rows})", rows)
    return value


def check_scalar(env: ManagerBasedRlEnv, kind: str, name: str, value: Any) -> None:
    """One float32 a row is what a term must return.

    Raises:
        ConfigError, NonFiniteError: as :func:`check_value`.
    """
    check_value(env, kind, name, value, "float32 [num_envs]", dtype=torch.float32, ndim=1)
