"""Terminations: which environments end, and whether they failed or ran out of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.envs.managers.term import bind_term
from unilab.envs.managers.values import check_value, evaluate, first_values
from unilab.envs.mdp.terminations import nan_detection

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class TerminationTermCfg:
    """One reason for an episode to end."""

    func: Callable[..., Any]
    """``func(env, **params) -> [num_envs]`` bool."""
    params: dict[str, Any] = field(default_factory=dict)
    time_out: bool = False
    """True: the episode is truncated and its value is bootstrapped; False: it is terminated."""


class TerminationManager:
    """Collects the terms into ``terminated`` and ``truncated``.

    Args:
        cfg: the terms.
        env: the environment.
    """

    def __init__(self, cfg: Mapping[str, TerminationTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._terms = [bind_term(env, "termination", name, term) for name, term in cfg.items()]
        self.term_names = list(cfg)
        self._time_out = [term.time_out for term in cfg.values()]
        self._failures = [i for i, time_out in enumerate(self._time_out) if not time_out]
        self._time_outs = [i for i, time_out in enumerate(self._time_out) if time_out]
        lost = [term.func is nan_detection for term in cfg.values()]
        self._blind = [i for i, by_physics in enumerate(lost) if not by_physics]
        self.loses_rows = any(lost)
        """Whether an environment whose physics diverged is given up, instead of an error."""
        self._causes = torch.zeros(len(cfg), env.num_envs, device=env.device)
        self.term_dones = torch.zeros(len(cfg), env.num_envs, dtype=torch.bool, device=env.device)
        """``[num_terms, num_envs]``, which terms fired in the last step."""
        self.terminated = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """``[num_envs]``, who failed in the last step."""
        self.truncated = torch.zeros_like(self.terminated)
        """``[num_envs]``, who ran out of time in the last step."""

    def prepare(self, causes: Tensor) -> None:
        """Evaluate each term once and check what it returns; call after the first read.

        Args:
            causes: ``[num_terms, num_envs]``, where to keep what fired until an episode begins.
        """
        self._causes = causes
        for term, value in zip(self._terms, first_values(self._terms, self._env), strict=True):
            check_value(
                self._env,
                "termination",
                term.name,
                value,
                "bool [num_envs]",
                dtype=torch.bool,
                ndim=1,
            )

    def compute(self) -> tuple[Tensor, Tensor]:
        """``terminated`` and ``truncated`` of this step, ``[num_envs]`` bool each."""
        if self._terms:
            self.term_dones = torch.stack(evaluate(self._terms, self._env))
            if self.loses_rows and bool((diverged := self._env.scene.diverged).any()):
                # The other terms read zeros there, which say nothing.
                self.term_dones[self._blind] &= ~diverged
            self._causes.copy_(self.term_dones)
        self.terminated, self.truncated = self._any(self._failures), self._any(self._time_outs)
        return self.terminated, self.truncated

    def _any(self, terms: list[int]) -> Tensor:
        """``[num_envs]``, where one of the terms fired: new memory in every step."""
        if not terms:
            return torch.zeros(self._env.num_envs, dtype=torch.bool, device=self._env.device)
        first, *others = (self.term_dones[i] for i in terms)
        return reduce(torch.logical_or, others, first)

    def __str__(self) -> str:
        lines = ["terminations"]
        for name, time_out in zip(self.term_names, self._time_out, strict=True):
            lines.append(f"  {name:<28} {'truncates' if time_out else 'terminates'}")
        return "\n".join(lines)
