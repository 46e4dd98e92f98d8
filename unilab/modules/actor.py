"""FlashSAC's stochastic actor: training pass, exploration and export of one set of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unilab.errors import ConfigError
from unilab.modules.actor_spec import record_constructor
from unilab.modules.distributions import squash_log_std, squashed_log_prob, zeta_pmf
from unilab.modules.layers import (
    Block,
    Embedder,
    UnitLinear,
    UnitRMSNorm,
    check_at_least,
    check_input,
    normalize_layers,
)


class FlashSACActor(nn.Module):
    """Squashed-Gaussian actor of FlashSAC (arXiv 2604.04539).

    Embedder -> residual blocks -> UnitRMSNorm -> mean and log-std heads. The action is
    ``low + (high - low) * (tanh(u) + 1) / 2`` with ``u ~ Normal(mean, std)``.

    Args:
        obs_dim: observation width ``O``.
        action_dim: action width ``A``.
        hidden_dim: hidden width ``H``.
        num_blocks: residual blocks.
        action_low: lower end of the action range, a number or one per joint.
        action_high: upper end, likewise.

    Examples:
        >>> import torch
        >>> from unilab.modules import FlashSACActor
        >>> actor = FlashSACActor(obs_dim=45, action_dim=12)
        >>> action, info = actor(torch.zeros(8, 45), training=True)
        >>> action.shape, info["log_prob"].shape
        (torch.Size([8, 12]), torch.Size([8, 1]))
        >>> actor.explore(torch.zeros(8, 45)).shape
        torch.Size([8, 12])
    """

    #: longest repetition of one exploration noise, in control steps.
    max_noise_steps = 16

    action_scale: Tensor
    action_offset: Tensor
    _zeta_cumulative: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_dim: int = 128,
        num_blocks: int = 2,
        *,
        action_low: float | Sequence[float] | Tensor = -1.0,
        action_high: float | Sequence[float] | Tensor = 1.0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, obs_dim=obs_dim, action_dim=action_dim, hidden_dim=hidden_dim)
        check_at_least(0, num_blocks=num_blocks)
        self.obs_dim = obs_dim
        self.action_dim = action_dim
        self.embedder = Embedder(obs_dim, hidden_dim, device=device)
        self.blocks = nn.ModuleList(Block(hidden_dim, device=device) for _ in range(num_blocks))
        self.norm = UnitRMSNorm(hidden_dim, device=device)
        self.mean_head = UnitLinear(hidden_dim, action_dim, bias=True, device=device)
        self.std_head = UnitLinear(hidden_dim, action_dim, bias=True, device=device)

        low, high = per_joint(action_low, action_high, action_dim, device)
        is_unit = bool((low == -1.0).all() and (high == 1.0).all())
        #: name of the map from the pre-transform sample to the action.
        self.action_transform_id = "tanh" if is_unit else "tanh_affine"
        self.register_buffer("action_scale", 0.5 * (high - low))
        self.register_buffer("action_offset", 0.5 * (high + low))

        cumulative = zeta_pmf(self.max_noise_steps).cumsum(0)
        cumulative[-1] = 1.0  # a uniform draw below 1 must stay inside the table
        self.register_buffer("_zeta_cumulative", cumulative.float().to(device), persistent=False)
        # Not buffers: their size is the number of environments, so that a collector which copies
        # this module's tensors into its own copy must not find them.
        self._noise = torch.zeros(0, action_dim, device=device)
        self._noise_steps = torch.zeros(0, dtype=torch.long, device=device)

        kwargs: dict[str, Any] = {"hidden_dim": hidden_dim, "num_blocks": num_blocks}
        kwargs |= {"action_low": low.tolist(), "action_high": high.tolist()}
        record_constructor(self, FlashSACActor, kwargs)

    def get_mean_and_std(self, obs: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[B, A]`` of the Gaussian before the transform."""
        mean, log_std = self._heads(obs, training)
        return mean, log_std.exp()

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw a reparameterised action.

        Args:
            obs: ``[B, O]`` observations.
            training: use (and move) batch statistics.

        Returns:
            actions ``[B, A]`` and ``{"log_prob": [B, 1], "mean": [B, A], "std": [B, A]}``.
        """
        mean, log_std = self._heads(obs, training)
        std = log_std.exp()
        eps = torch.randn_like(mean)
        u = mean + std * eps
        log_prob = squashed_log_prob(eps, log_std, u, self.action_scale.log()).unsqueeze(-1)
        return self._transform(u), {"log_prob": log_prob, "mean": mean, "std": std}

    @torch.no_grad()
    def explore(
        self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False
    ) -> Tensor:
        """Actions for a rollout; a row's noise is held for a zeta-distributed number of steps.

        Each environment draws its own, also at its resets; the authors' code shares one count among
        all environments and draws only when it is used up.

        Args:
            obs: ``[N, O]`` observations, a row for each environment.
            dones: ``[N]`` or ``[N, 1]`` bool, the environments that were just reset.
            deterministic: return ``transform(mean)`` and leave the noise state as it is.

        Returns:
            ``[N, A]`` actions.
        """
        mean, log_std = self._heads(obs, training=False)
        if deterministic:
            return self._transform(mean)
        return self._transform(torch.addcmul(mean, log_std.exp(), self._step_noise(mean, dones)))

    def _step_noise(self, like: Tensor, dones: Tensor | None) -> Tensor:
        if self._noise.shape != like.shape or self._noise.device != like.device:
            self._noise = torch.zeros_like(like)
            self._noise_steps = torch.zeros(like.shape[0], dtype=torch.long, device=like.device)
        redraw = self._noise_steps <= 0
        if dones is not None:
            redraw = redraw | dones.reshape(-1)
        uniform = torch.rand(like.shape[0], device=like.device)
        steps = torch.searchsorted(self._zeta_cumulative, uniform, right=True) + 1
        self._noise_steps = torch.where(redraw, steps, self._noise_steps) - 1
        self._noise = torch.where(redraw.unsqueeze(-1), torch.randn_like(like), self._noise)
        return self._noise

    def as_export_module(self) -> nn.Module:
        """A plain ``obs -> transform(mean)`` module that shares this actor's parameters."""
        return _DeterministicActor(self)

    def normalize_parameters(self) -> None:
        """Bring every unit layer back to its norm, in place; call after each optimizer step."""
        normalize_layers(self)

    def inference_startup_memory_categories(self, batch_size: int) -> dict[str, int]:
        """Bytes held at inference of ``batch_size`` observations, by category."""
        return {
            "parameters": sum(p.nbytes for p in self.parameters()),
            "buffers": sum(b.nbytes for b in self.buffers()),
            "exploration_state": batch_size
            * (self.action_dim * self._noise.itemsize + self._noise_steps.itemsize),
        }

    def _heads(self, obs: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        check_input("observation", obs, self.obs_dim, self.mean_head.weight.dtype)
        h = self.embedder(obs, training)
        for block in self.blocks:
            h = block(h, training)
        h = self.norm(h)
        return self.mean_head(h), squash_log_std(self.std_head(h))

    def _transform(self, u: Tensor) -> Tensor:
        action = torch.tanh(u)
        if self.action_transform_id == "tanh":
            return action
        return torch.addcmul(self.action_offset, action, self.action_scale)


class _DeterministicActor(nn.Module):
    def __init__(self, actor: FlashSACActor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor) -> Tensor:
        mean, _ = self.actor._heads(obs, training=False)
        return self.actor._transform(mean)


def per_joint(
    action_low: float | Sequence[float] | Tensor,
    action_high: float | Sequence[float] | Tensor,
    action_dim: int,
    device: torch.device | str | None,
) -> tuple[Tensor, Tensor]:
    """Both ends of an action range, each a number or one per joint, as ``[action_dim]``."""
    ends = []
    for bound in (action_low, action_high):
        value = torch.as_tensor(bound, dtype=torch.get_default_dtype())
        if value.shape not in ((), (action_dim,)):
            raise ConfigError(
                f"action_low and action_high must be a number or [{action_dim}], got shape "
                f"{list(value.shape)}"
            )
        ends.append(value.expand(action_dim).to(device, copy=True))
    low, high = ends
    half = 0.5 * (high - low)  # 0 where the ends are neighbours near the smallest number
    if not bool(((half > 0.0) & (high - low).isfinite()).all()):
        raise ConfigError(
            "action_low must be below action_high, both finite, for each joint in "
            f"{low.dtype}, got {low.tolist()} and {high.tolist()}"
        )
    return low, high
