"""Calls of an actor: a copy to try them on, and the check of what a forward pass returned."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torchrl.checkpoint import GlobalRNGState

from unilab.errors import ActorContractError


@contextmanager
def trial_copy(actor: Any) -> Iterator[Any]:
    """A deep copy of an actor to run in its place; restores the random generators afterwards."""
    copied = copy_of(actor)
    tensors = [*actor.parameters(), *actor.buffers()]
    copies = {id(tensor) for tensor in (*copied.parameters(), *copied.buffers())}
    versions = [_version(tensor) for tensor in tensors]
    generators = GlobalRNGState()
    before = generators.state_dict()
    try:
        if not copies.isdisjoint(map(id, tensors)):
            raise breach(actor, "C8 copy", "copy.deepcopy must copy its parameters and buffers")
        yield copied
        if versions != [_version(tensor) for tensor in tensors]:
            raise breach(actor, "C8 copy", "a copy must not change the original: use self in it")
    finally:
        generators.load_state_dict(before)


def copy_of(actor: Any) -> Any:
    """A deep copy of an actor."""
    try:
        return copy.deepcopy(actor)
    except Exception as error:  # anything may be among its attributes
        raise ActorContractError(
            f"{type(actor).__name__} must be copyable, because validation and export run on a copy "
            f"(ADR-0017 C8), but copy.deepcopy raised {type(error).__name__}: {error}; detach "
            "tensors that it keeps between calls, leave locks and files out in __getstate__, and "
            "take weight_norm of torch.nn.utils.parametrizations"
        ) from error


def _version(tensor: Tensor) -> int:
    """Counts in-place changes."""
    return 0 if tensor.is_inference() else tensor._version


def breach(actor: Any, clause: str, problem: str) -> ActorContractError:
    """The error of an actor that breaks a clause of ADR-0017."""
    name = type(actor).__name__
    return ActorContractError(f"{name} breaks the actor contract (ADR-0017 {clause}): {problem}")


def mean_and_std(actor: Any, obs: Tensor, training: bool = False) -> Any:
    """``get_mean_and_std``, by default without batch statistics; an actor may leave ``training``
    out."""
    method = actor.get_mean_and_std
    named = "training" in inspect.signature(method).parameters
    return method(obs, training=training) if named else method(obs)


def forward_outputs(
    actor: Any,
    out: Any,
    *,
    training: bool,
    rows: int,
    action_dim: int | None = None,
    like: Tensor,
) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    """Checks what ``actor(obs, training)`` returned; does not sync the device.

    Args:
        actor: named in errors.
        out: what it returned: ``(actions, info)``.
        training: whether auxiliary losses are read.
        rows: ``B``, the number of observations.
        action_dim: ``A``; None: whatever the actor gives.
        like: a tensor of the dtype and device of the results.

    Returns:
        actions ``[B, A]``, log_prob ``[B]`` (an actor may give ``[B]`` or ``[B, 1]``) and the
        auxiliary losses.
    """
    clause = f"C6 forward(obs, training={training})"
    match out:
        case tuple((actions, Mapping() as info)):
            log_prob: Any = info.get("log_prob")
            aux: Any = info.get("aux_losses", {}) if training else {}
        case _:
            problem = f"it must return (actions, info) with a dict info, got {described(out)}"
            raise breach(actor, clause, problem)
    if action_dim is None:
        action_dim = actions.shape[-1] if isinstance(actions, Tensor) and actions.dim() else 1
    problem = (
        tensor_problem("actions", actions, [(rows, action_dim)], like)
        or tensor_problem("log_prob", log_prob, [(rows,), (rows, 1)], like)
        or _aux_losses_problem(aux)
    )
    if problem:
        raise breach(actor, clause, f"{problem}, for {rows} observations")
    return actions, log_prob.reshape(rows), aux


def tensor_problem(name: str, value: Any, shapes: Sequence[tuple[int, ...]], like: Tensor) -> str:
    """Why a value has none of the shapes, or not the dtype and device of ``like``, or ``""``."""
    if (
        isinstance(value, Tensor)
        and (*value.shape,) in shapes
        and (value.dtype, value.device) == (like.dtype, like.device)
    ):
        return ""
    shape = " or ".join(str([*shape]) for shape in shapes)
    wanted = f"a tensor of shape {shape} and {like.dtype} on {like.device}"
    return f"{name} must be {wanted}, got {described(value)}"


def _aux_losses_problem(aux: Any) -> str:
    """Why the ``aux_losses`` of a training pass are not named 0-dim tensors, or ``""``."""
    if not isinstance(aux, Mapping):
        return f"aux_losses must be a dict of 0-dim tensors, got {described(aux)}"
    for name, value in aux.items():
        if not isinstance(name, str) or not re.fullmatch(r"\w+", name, re.ASCII):
            return f"the name of an aux loss must be letters, digits and underscores, got {name!r}"
        if not isinstance(value, Tensor) or value.dim() or not value.is_floating_point():
            return f"aux loss {name!r} must be a 0-dim float tensor, got {described(value)}"
    return ""


def described(value: Any) -> str:
    """A value as an error shows it: a tensor by shape, dtype and device."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype} on {value.device}"
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    return f"{value!r} of type {type(value).__name__}"
