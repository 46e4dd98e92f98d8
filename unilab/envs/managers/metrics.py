"""Metrics: logged quantities that are not rewarded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from unilab.envs.managers.term import SCALAR, TermCfg, bind_term, evaluate
from unilab.envs.nonfinite import require_finite

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class MetricsTermCfg(TermCfg):
    """One quantity, ``func(env, **params) -> [num_envs]`` float32.

    Logged as ``Metrics/<name>``: its mean over the steps of ended episodes.
    """


class MetricsManager:
    """Sums the terms over each episode."""

    def __init__(self, cfg: Mapping[str, MetricsTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._terms = [bind_term(env, "metrics", name, term, SCALAR) for name, term in cfg.items()]
        self.term_names = list(cfg)

    def compute(self) -> None:
        """Add this step's values."""
        if self._terms:
            values = torch.stack(evaluate(self._terms, self._env))
            require_finite("metrics are not finite", self.term_names, values)
            # The first rows of the block are the commands' metrics.
            self._env.episode_sums["Metrics"][-len(values) :].add_(values)

    def __str__(self) -> str:
        return "\n".join(["metrics", *(f"  {name}" for name in self.term_names)])
