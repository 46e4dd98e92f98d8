"""Rewards: a weighted sum of terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import check_fits
from unilab.envs.managers.term import SCALAR, TermCfg, bind_term, evaluate, table
from unilab.envs.nonfinite import is_finite, non_finite
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class RewardTermCfg(TermCfg):
    """One summand of the reward: ``weight * func(env, **params) * step_dt``, ``[num_envs]``."""

    weight: float
    """Weight per second. A term of weight 0 is checked, but never computed."""


class RewardManager:
    """Sums the terms, and each term over the episode."""

    def __init__(self, cfg: Mapping[str, RewardTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        bound = [
            bind_term(env, "reward", name, term, SCALAR, idle=term.weight == 0.0)
            for name, term in cfg.items()
        ]
        active = {name: term for name, term in cfg.items() if term.weight != 0.0}
        self._terms = [term for term in bound if term.name in active]
        self._off = [name for name in cfg if name not in active]
        self.term_names = list(active)
        weights = torch.tensor([t.weight for t in active.values()], device=env.device)
        self._weights = (weights * env.step_dt).unsqueeze(1)
        self.reward = torch.zeros(env.num_envs, device=env.device)
        """``[num_envs]``, of the last step."""

    @property
    def episode_sums(self) -> Tensor:
        """``[num_terms, num_envs]``, weighted sums since the episode began."""
        return self._env.episode_sums["Episode_Reward"]

    def get_weight(self, name: str) -> float:
        """The weight of a term, per second."""
        return float(self._weights[self._place(name)]) / self._env.step_dt

    def set_weight(self, name: str, weight: float) -> None:
        """Change the weight of a term, for a curriculum."""
        check_fits(f"the new weight of reward term {name!r}", weight, float)
        self._weights[self._place(name)] = weight * self._env.step_dt

    def _place(self, name: str) -> int:
        if name in self._off:
            raise ConfigError(
                f"reward term {name!r} must have a weight that is not 0 in the task, got 0: terms "
                "of weight 0 are never computed"
            )
        if name not in self.term_names:
            raise ConfigError(
                f"the task has no reward term {name!r}{did_you_mean(name, self.term_names)}; "
                f"it has {self.term_names}"
            )
        return self.term_names.index(name)

    def compute(self) -> Tensor:
        """The reward of this step, ``[num_envs]``."""
        if not self._terms:
            self.reward = torch.zeros_like(self.reward)
            return self.reward
        values = torch.stack(evaluate(self._terms, self._env)).mul_(self._weights)
        reward = values.sum(0)
        if not is_finite(reward):
            terms = dict(zip(self.term_names, values, strict=True))
            raise non_finite("reward terms are not finite", terms)
        self.episode_sums.add_(values)
        self.reward = reward
        return reward

    def __str__(self) -> str:
        weights = (self._weights.flatten() / self._env.step_dt).tolist()
        rows = zip(self.term_names, (f"{weight:+g}" for weight in weights), strict=True)
        return table("rewards (weight per second)", rows)
