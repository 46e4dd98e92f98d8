"""Terminations: which environments end, and whether they failed or ran out of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.envs.managers.term import FLAG, TermCfg, bind_term, evaluate, table

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class TerminationTermCfg(TermCfg):
    """One reason for an episode to end: ``func(env, **params) -> [num_envs]`` bool."""

    time_out: bool = False
    """True: the episode is truncated and its value is bootstrapped; False: it is terminated."""


def nan_detection(env: ManagerBasedRlEnv) -> Tensor:
    """Physics left a value that is not finite.

    With this term in a task's table such a row ends its episode for this reason alone, and the
    other terms read zeros there in this step. Without it the environment raises ``NonFiniteError``
    and is faulted.
    """
    return env.scene.diverged


class TerminationManager:
    """Collects the terms into ``terminated`` and ``truncated``."""

    def __init__(self, cfg: Mapping[str, TerminationTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._terms = [
            bind_term(env, "termination", name, term, FLAG) for name, term in cfg.items()
        ]
        self.term_names = list(cfg)
        self._time_out = [term.time_out for term in cfg.values()]
        self._failures = [i for i, time_out in enumerate(self._time_out) if not time_out]
        self._time_outs = [i for i, time_out in enumerate(self._time_out) if time_out]
        self._blind = [i for i, t in enumerate(cfg.values()) if t.func is not nan_detection]
        self.loses_rows = len(self._blind) < len(cfg)
        """Whether a diverged row ends its episode instead of raising an error."""
        self.term_dones = torch.zeros(len(cfg), env.num_envs, dtype=torch.bool, device=env.device)
        """``[num_terms, num_envs]``, terms that fired in the last step."""
        self.terminated = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """``[num_envs]``, rows that failed in the last step."""
        self.truncated = torch.zeros_like(self.terminated)
        """``[num_envs]``, rows that ran out of time in the last step."""

    def compute(self) -> tuple[Tensor, Tensor]:
        """``terminated`` and ``truncated`` of this step, ``[num_envs]`` bool each."""
        if self._terms:
            self.term_dones = torch.stack(evaluate(self._terms, self._env))
            if self.loses_rows and bool((diverged := self._env.scene.diverged).any()):
                self.term_dones[self._blind] &= ~diverged  # these terms read zeros there
            self._env.episode_sums["Episode_Termination"].copy_(self.term_dones)
        self.terminated, self.truncated = self._any(self._failures), self._any(self._time_outs)
        return self.terminated, self.truncated

    def _any(self, terms: list[int]) -> Tensor:
        """``[num_envs]``, rows where one of the terms fired: new memory in every step."""
        if not terms:
            return torch.zeros(self._env.num_envs, dtype=torch.bool, device=self._env.device)
        first, *others = (self.term_dones[i] for i in terms)
        return reduce(torch.logical_or, others, first)

    def __str__(self) -> str:
        ends = ("truncates" if time_out else "terminates" for time_out in self._time_out)
        return table("terminations", zip(self.term_names, ends, strict=True))
