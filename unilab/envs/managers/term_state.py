"""The state of terms in memory: what a reset must undo or keep by rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from unilab.envs.managers.object_contents import (
    ABSENT,
    GENERATORS,
    PLAIN,
    contents_of,
    leaf_of,
    shared_ids,
    with_contents,
)

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


class StateSnapshot:
    """The state of some objects of ``env`` as it is now; trained parameters are left out."""

    def __init__(self, env: ManagerBasedRlEnv, roots: Sequence[Any]) -> None:
        self._roots = roots
        self._num_envs = env.num_envs
        self._found: dict[int, tuple[Any, Any]] = {}
        """Leaves with copies and containers with their contents, by id."""
        others = shared_ids(env) - {id(root) for root in roots} if roots else set()
        with torch.inference_mode():
            for root in roots:
                self._find(root, others)

    def _find(self, value: Any, others: set[int]) -> None:
        if type(value) in PLAIN or id(value) in self._found or id(value) in others:
            return
        if leaf := leaf_of(type(value)):
            if not isinstance(value, nn.Parameter) or not value.requires_grad:
                self._found[id(value)] = (value, leaf[0](value))
            return
        contents = contents_of(value)
        if contents is not None:
            self._found[id(value)] = (value, contents)
            for child in contents.values():
                self._find(child, others)

    def restore(self) -> None:
        """Restore this state."""
        with torch.no_grad(), torch.inference_mode():
            for value, saved in self._found.values():
                leaf = leaf_of(type(value))
                leaf[1](value, saved) if leaf else with_contents(value, saved)

    def restore_but(self, rows: Tensor) -> None:
        """Restore this state, except for the rows ``[n]`` of tensors ``[num_envs, ...]``.

        Values without rows (numbers, lengths of lists, other tensors) are restored, generators are
        not. If ``rows`` are all rows, values that were None or absent keep what was made since.
        """
        done: dict[int, Any] = {}
        with torch.no_grad(), torch.inference_mode():
            for root in self._roots:
                self._merged(root, root, rows, done)

    def _merged(self, old: Any, new: Any, rows: Tensor, done: dict[int, Any]) -> Any:
        """The old value with the rows of the new one."""
        whole = rows.shape[0] == self._num_envs
        if id(old) in done:
            return done[id(old)]
        if id(old) not in self._found or isinstance(old, GENERATORS):
            made = old is None and whole and type(new) not in PLAIN and new is not ABSENT
            return new if made else old
        _, saved = self._found[id(old)]
        if leaf := leaf_of(type(old)):
            if (
                isinstance(old, Tensor | np.ndarray)
                and type(new) is type(old)
                and new.shape[:1] == (self._num_envs,)
                and (new.shape, new.dtype) == (saved.shape, saved.dtype)
            ):
                at: Any = rows if isinstance(old, Tensor) else rows.cpu().numpy()
                saved = leaf[0](saved)
                saved[at] = new[at]
                if new is not old:
                    return saved
            leaf[1](old, saved)
            return old
        now = contents_of(new) if type(new) is type(old) else None
        if now is None or (isinstance(old, list | tuple | deque) and len(now) != len(saved)):
            now = {}
        done[id(old)] = old
        merged = {k: self._merged(v, now.get(k, ABSENT), rows, done) for k, v in saved.items()}
        done[id(old)] = with_contents(old, now | merged if whole else merged)
        return done[id(old)]
