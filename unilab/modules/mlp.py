"""Multi-layer perceptrons with the normalisation of their observations inside."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from unilab.errors import ConfigError
from unilab.modules.layers import check_at_least

ACTIVATIONS = {"elu": nn.ELU, "relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


class ObsNormalizer(nn.Module):
    """Brings each column of observations to mean 0 and variance 1 over everything seen so far.

    The statistics move only in :meth:`update`, never in ``forward``: within one update of a policy
    all passes must see the same ones. As buffers they are saved, exported and copied with the
    network.

    Args:
        width: columns ``O``.

    Examples:
        >>> import torch
        >>> from unilab.modules import ObsNormalizer
        >>> normalizer = ObsNormalizer(1)
        >>> normalizer.update(torch.tensor([[1.0], [3.0]]))
        >>> normalizer(torch.tensor([[3.0]])).round(decimals=3)
        tensor([[1.]])
    """

    #: variance added to each column's, so that one which never changed keeps a scale of 0.01.
    eps = 1e-4

    running_mean: Tensor
    running_var: Tensor
    count: Tensor

    def __init__(self, width: int, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width, device=device))
        self.register_buffer("running_var", torch.ones(width, device=device))
        self.register_buffer("count", torch.zeros((), dtype=torch.long, device=device))

    def forward(self, obs: Tensor) -> Tensor:
        """``[*, O] -> [*, O]``."""
        return (obs - self.running_mean) * torch.rsqrt(self.running_var + self.eps)

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Add observations ``[*, O]`` to the statistics (Chan et al., 1979)."""
        rows = obs.reshape(-1, obs.shape[-1])
        var, mean = torch.var_mean(rows, dim=0, correction=0)
        self.count += rows.shape[0]
        share = rows.shape[0] / self.count
        delta = mean - self.running_mean
        self.running_mean += share * delta
        change = var - self.running_var + (1.0 - share) * delta.square()
        self.running_var += share * change


class ValueNetwork(nn.Module):
    """Value of an observation, or of an observation and an action, by an MLP with a normaliser.

    Args:
        obs_dim: critic observation width ``Oc``.
        hidden_dims: widths of the hidden layers.
        activation: ``elu``, ``relu``, ``silu`` or ``tanh``.
        action_dim: action width ``A``; 0 for the value of an observation.
        layer_norm: normalise the hidden layers.
        normalize_obs: whether the observation is normalised.

    Examples:
        >>> import torch
        >>> from unilab.modules import ValueNetwork
        >>> ValueNetwork(48)(torch.zeros(256, 24, 48)).shape
        torch.Size([256, 24, 1])
        >>> ValueNetwork(48, action_dim=12)(torch.zeros(256, 48), torch.zeros(256, 12)).shape
        torch.Size([256, 1])
    """

    def __init__(
        self,
        obs_dim: int,
        hidden_dims: Sequence[int] = (128, 128, 128),
        activation: str = "elu",
        *,
        action_dim: int = 0,
        layer_norm: bool = False,
        normalize_obs: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, obs_dim=obs_dim)
        check_at_least(0, action_dim=action_dim)
        self.normalizer = ObsNormalizer(obs_dim, device=device) if normalize_obs else None
        self.hidden = hidden_layers(
            obs_dim + action_dim, hidden_dims, activation, layer_norm=layer_norm, device=device
        )
        self.head = nn.Linear(hidden_dims[-1], 1, device=device)

    def forward(self, obs: Tensor, *action: Tensor) -> Tensor:
        """``[*, Oc] -> [*, 1]``, or ``[*, Oc], [*, A] -> [*, 1]``."""
        x = obs if self.normalizer is None else self.normalizer(obs)
        return self.head(self.hidden(torch.cat((x, *action), -1)))


def hidden_layers(
    width: int,
    hidden_dims: Sequence[int],
    activation: str,
    *,
    layer_norm: bool = False,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Linear layers, each followed by its activation, after a layer norm if asked for."""
    if activation not in ACTIVATIONS:
        raise ConfigError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if not hidden_dims or min(hidden_dims) < 1:
        raise ConfigError(f"hidden_dims must be widths of at least 1, got {list(hidden_dims)}")
    *cells, last = hidden_dims
    return MLP(
        width,
        last,
        num_cells=cells,
        activation_class=ACTIVATIONS[activation],
        activate_last_layer=True,
        norm_class=nn.LayerNorm if layer_norm else None,
        norm_kwargs=[{"normalized_shape": d} for d in hidden_dims] if layer_norm else None,
        device=device,
    )
