"""FlashSAC's distributional critic: an ensemble evaluated as one batched network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unilab.errors import ConfigError
from unilab.modules.distributions import categorical_value
from unilab.modules.layers import (
    Block,
    Embedder,
    UnitLinear,
    UnitRMSNorm,
    check_at_least,
    check_input,
    normalize_layers,
)


class FlashSACCritic(nn.Module):
    """Ensemble of categorical action-value networks (FlashSAC, arXiv 2604.04539).

    Embedder -> residual blocks -> UnitRMSNorm -> logits over ``num_bins`` values. The members are
    independent networks, evaluated together over a leading ensemble dimension ``E``.

    Args:
        obs_dim: critic observation width ``Oc``.
        action_dim: action width ``A``.
        hidden_dim: hidden width ``H``.
        num_blocks: residual blocks.
        num_members: ensemble size ``E``.
        num_bins: value bins ``K``, evenly spaced from ``v_min`` to ``v_max``.

    Examples:
        >>> import torch
        >>> from unilab.modules import FlashSACCritic
        >>> critic = FlashSACCritic(obs_dim=60, action_dim=12)
        >>> log_p = critic(torch.zeros(8, 60), torch.zeros(8, 12), training=False)
        >>> log_p.shape, critic.value(log_p).shape
        (torch.Size([2, 8, 101]), torch.Size([2, 8]))
    """

    support: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_dim: int = 256,
        num_blocks: int = 2,
        num_members: int = 2,
        num_bins: int = 101,
        v_min: float = -5.0,
        v_max: float = 5.0,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, obs_dim=obs_dim, action_dim=action_dim, hidden_dim=hidden_dim)
        check_at_least(1, num_members=num_members)
        check_at_least(0, num_blocks=num_blocks)
        check_at_least(2, num_bins=num_bins)
        if not v_min < v_max:
            raise ConfigError(f"v_min must be below v_max, got v_min={v_min}, v_max={v_max}")
        self.obs_dim = obs_dim
        self.action_dim = action_dim
        self.num_members = num_members
        self.embedder = Embedder(
            obs_dim + action_dim, hidden_dim, num_members=num_members, device=device
        )
        self.blocks = nn.ModuleList(
            Block(hidden_dim, num_members=num_members, device=device) for _ in range(num_blocks)
        )
        self.norm = UnitRMSNorm(hidden_dim, num_members=num_members, device=device)
        self.head = UnitLinear(
            hidden_dim, num_bins, bias=True, num_members=num_members, device=device
        )
        self.register_buffer("support", torch.linspace(v_min, v_max, num_bins, device=device))

    def forward(
        self, obs: Tensor, action: Tensor, training: bool, rows: slice | None = None
    ) -> Tensor:
        """Log-probabilities of the value bins.

        Args:
            obs: ``[B, Oc]`` critic observations.
            action: ``[B, A]`` actions.
            training: use (and move) batch statistics.
            rows: the rows to return, all by default; the batch statistics are of all rows.

        Returns:
            ``[E, B, K]`` log-probabilities of those rows.
        """
        check_input("critic observation", obs, self.obs_dim, self.support.dtype)
        check_input("action", action, self.action_dim, self.support.dtype)
        x = torch.cat((obs, action), dim=-1).t()
        h = self.embedder(x.expand(self.num_members, -1, -1), training)
        for block in self.blocks:
            h = block(h, training)
        if rows is not None:
            h = h[..., rows]
        return torch.log_softmax(self.head(self.norm(h)), dim=-2).transpose(-2, -1)

    def value(self, log_p: Tensor) -> Tensor:
        """Expected value ``sum exp(log_p) * support``: ``[E, B, K] -> [E, B]``."""
        return categorical_value(log_p, self.support)

    def normalize_parameters(self) -> None:
        """Bring every unit layer back to its norm, in place; call after each optimizer step."""
        normalize_layers(self)
