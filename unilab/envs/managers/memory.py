"""What terms remember of each environment, while a call is for the sake of some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from unilab.errors import ConfigError


@contextmanager
def remembering_rows(terms: Sequence[object], rows: Tensor, num_envs: int) -> Iterator[None]:
    """Let terms be called in the block for the sake of some rows, and not notice in others.

    Args:
        terms: whose attributes are looked at: tensors ``[num_envs, ...]`` and plain numbers, in
            lists, tuples, dicts and TensorDicts as well. Numbers stay what they were.
        rows: ``[n]`` int64.
        num_envs: environments in the batch.
    """
    before = [_memory(term) for term in terms]
    yield
    for term, memory in zip(terms, before, strict=True):
        for name, value in vars(term).items():
            old, spec = memory.get(name, ([], None))
            new, now = tree_flatten(value)
            if spec != now:  # it was made in this call
                continue
            merged = [_merged(a, b, rows, num_envs) for a, b in zip(old, new, strict=True)]
            if any(a is not b for a, b in zip(merged, new, strict=True)):
                setattr(term, name, tree_unflatten(merged, now))


@contextmanager
def checking_memory(term: object, num_envs: int) -> Iterator[None]:
    """Refuse a term whose call in the block changes what :func:`remembering_rows` cannot take back.

    Raises:
        ConfigError: a tensor that does not begin with the environments.
    """
    before = _memory(term)
    yield
    for name, (old, spec) in before.items():
        new, now = tree_flatten(vars(term).get(name))
        for a, b in zip(old, new, strict=False) if spec == now else ():
            both = isinstance(a, Tensor) and isinstance(b, Tensor)
            if both and not _by_rows(b, num_envs) and not torch.equal(a, b):
                raise ConfigError(
                    f"it keeps {name!r}, {b.dtype} of shape {tuple(b.shape)}, and changes it in a "
                    "call: let a memory begin with the environments, [num_envs, ...], as it is "
                    "called when some of them begin an episode, too"
                )


def _memory(term: object) -> dict[str, tuple[list[Any], TreeSpec]]:
    """Attributes that hold tensors or numbers, as leaves of a tree; tensors are copies."""
    trees = {name: tree_flatten(value) for name, value in vars(term).items()}
    return {
        name: ([v.clone() if isinstance(v, Tensor) else v for v in leaves], spec)
        for name, (leaves, spec) in trees.items()
        if any(isinstance(v, Tensor | int | float) for v in leaves)
    }


def _by_rows(value: Tensor, num_envs: int) -> bool:
    return value.shape[:1] == (num_envs,)


def _merged(before: Any, after: Any, rows: Tensor, num_envs: int) -> Any:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        if before.shape == after.shape and _by_rows(after, num_envs):
            return before.index_copy(0, rows, after[rows])
    elif isinstance(before, int | float) and isinstance(after, int | float):
        return before
    return after
