"""Metrics: what is worth a look and pays nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.envs.managers.term import bind_term
from unilab.envs.managers.values import check_scalar, evaluate, first_values
from unilab.envs.nonfinite import require_finite

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class MetricsTermCfg:
    """One quantity, logged as ``Metrics/<name>``: its mean over the steps of ended episodes."""

    func: Callable[..., Any]
    """``func(env, **params) -> [num_envs]`` float32."""
    params: dict[str, Any] = field(default_factory=dict)


class MetricsManager:
    """Adds the terms up over each episode.

    Args:
        cfg: the terms.
        env: the environment.
    """

    def __init__(self, cfg: Mapping[str, MetricsTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._terms = [bind_term(env, "metrics", name, term) for name, term in cfg.items()]
        self.term_names = list(cfg)
        self._sums = torch.zeros(len(cfg), env.num_envs, device=env.device)

    def prepare(self, sums: Tensor) -> None:
        """Evaluate each term once and check what it returns; call after the first read.

        Args:
            sums: ``[num_terms, num_envs]``, where to add the terms up; emptied by its owner when
                an episode begins.
        """
        self._sums = sums
        for term, value in zip(self._terms, first_values(self._terms, self._env), strict=True):
            check_scalar(self._env, "metrics", term.name, value)

    def compute(self) -> None:
        """Add this step's values.

        Raises:
            NonFiniteError: names the terms and rows.
        """
        if not self._terms:
            return
        values = torch.stack(evaluate(self._terms, self._env))
        require_finite("metrics are not finite", self.term_names, values)
        self._sums.add_(values)

    def __str__(self) -> str:
        return "\n".join(["metrics", *(f"  {name}" for name in self.term_names)])
