"""Actors of the contract for tests: one that keeps it, and ways to break it."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from unilab.objectives import functional as F


class PlainActor(nn.Module):
    """The contract in a few lines: a linear actor with noise state, a range and two losses."""

    action_transform_id = "tanh_affine"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        device: torch.device | str | None = None,
        *,
        low: float = -1.0,
        high: float = 1.0,
        weight: float = 0.1,
    ) -> None:
        super().__init__()
        self.mean = nn.Linear(obs_dim, action_dim, device=device)
        self.raw_std = nn.Linear(obs_dim, action_dim, device=device)
        self.register_buffer("scale", torch.full((action_dim,), 0.5 * (high - low), device=device))
        self.register_buffer("offset", torch.full((action_dim,), 0.5 * (high + low), device=device))
        self.register_buffer("calls", torch.zeros((), device=device), persistent=False)
        self.weight = weight
        self.noise = torch.zeros(1, action_dim, device=device)
        self.recent: deque[Tensor] = deque(maxlen=3)
        self.generator = torch.Generator().manual_seed(0)
        self.count = {"explored": 0}

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict[str, Any]]:
        self.calls += 1
        mean, log_std = self._heads(obs)
        eps = torch.randn_like(mean)
        u = mean + log_std.exp() * eps
        log_prob = F.squashed_log_prob(eps, log_std, u, self.scale.log()).unsqueeze(-1)
        info: dict[str, Any] = {"log_prob": log_prob}
        if training:
            info["aux_losses"] = self.aux(mean, log_std)
        return self._transform(u), info

    def aux(self, mean: Tensor, log_std: Tensor) -> dict[str, Any]:
        return {
            "shy": self.weight * mean.square().mean(),
            "bold": self.weight * (log_std + 1.0).square().mean(),
        }

    def get_mean_and_std(self, obs: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        mean, log_std = self._heads(obs)
        return mean, log_std.exp()

    @torch.no_grad()
    def explore(
        self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False
    ) -> Tensor:
        mean, log_std = self._heads(obs)
        if deterministic:
            return self._transform(mean)
        self.count["explored"] += 1
        self.noise = torch.randn(mean.shape, generator=self.generator).to(mean)
        self.recent.append(self.noise)
        return self._transform(mean + log_std.exp() * self.noise)

    def as_export_module(self) -> nn.Module:
        return Deterministic(self)

    def normalize_parameters(self) -> None:
        with torch.no_grad():
            self.mean.weight.clamp_(-3.0, 3.0)

    def _heads(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(obs), F.squash_log_std(self.raw_std(obs))

    def _transform(self, u: Tensor) -> Tensor:
        return self.offset + self.scale * torch.tanh(u)


class Deterministic(nn.Module):
    def __init__(self, actor: PlainActor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor) -> Tensor:
        return self.actor._transform(self.actor.mean(obs))


def popping(*, low: list[float], **kwargs: Any) -> PlainActor:
    """A builder that uses up its own arguments."""
    return PlainActor(low=low.pop(0), **kwargs)


def raising(**kwargs: object) -> nn.Module:
    raise RuntimeError("no weights here")


def no_module(**kwargs: object) -> dict:
    return {}


not_callable = 3
