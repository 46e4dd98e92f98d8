"""Unit-norm layers of FlashSAC (arXiv 2604.04539), with or without a leading ensemble dimension.

``num_members=None`` builds one layer on ``[B, d]``; an int ``E`` builds ``E`` independent layers
on ``[E, d, B]``, evaluated as one batched operation. The batch comes last because that makes the
members channels of one ordinary batch normalisation, with statistics over contiguous memory.
``normalize()`` of a layer brings its parameters back to their norm, in place.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unilab.errors import ConfigError


def _lead(num_members: int | None) -> tuple[int, ...]:
    return () if num_members is None else (num_members,)


def _per_feature(value: Tensor) -> Tensor:
    """A parameter ``[d]`` or ``[E, d]``, shaped to broadcast over ``[B, d]`` or ``[E, d, B]``."""
    return value if value.dim() == 1 else value.unsqueeze(-1)


class UnitLinear(nn.Module):
    """Linear map whose rows (one per output feature) are kept at unit L2 norm.

    The heads of the networks add a free bias (unnormalised, zero-initialised).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        num_members: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        lead = _lead(num_members)
        self.weight = nn.Parameter(torch.empty(*lead, out_features, in_features, device=device))
        self.bias = nn.Parameter(torch.zeros(*lead, out_features, device=device)) if bias else None
        #: dtype of the matrix product only; ``None`` keeps the parameters' dtype, as it is but
        #: for hidden layers during an update.
        self.matmul_dtype: torch.dtype | None = None
        with torch.no_grad():
            for member in self.weight.view(-1, out_features, in_features).unbind():
                nn.init.orthogonal_(member)
        self.normalize()

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in] -> [B, out]`` or ``[E, in, B] -> [E, out, B]``."""
        weight: Tensor = self.weight
        dtype = x.dtype
        if self.matmul_dtype is not None:
            x, weight = x.to(self.matmul_dtype), weight.to(self.matmul_dtype)
        y = F.linear(x, weight) if weight.dim() == 2 else torch.bmm(weight, x)
        y = y.to(dtype)
        return y if self.bias is None else y + _per_feature(self.bias)

    @torch.no_grad()
    def normalize(self) -> None:
        """Rescale every row to L2 norm 1 (eps 1e-8), in place."""
        norm = torch.linalg.vector_norm(self.weight, dim=-1, keepdim=True)
        self.weight.div_(norm.clamp_min_(1e-8))


class UnitBatchNorm(nn.Module):
    """Batch normalisation whose scale and shift are kept at joint norm ``sqrt(d)``.

    ``training`` is a forward argument, never ``module.training``: ``True`` uses the batch
    statistics (biased variance) and moves the running ones (unbiased variance), ``False`` uses the
    running ones.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        num_members: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        shape = (*_lead(num_members), num_features)
        self.weight = nn.Parameter(torch.ones(shape, device=device))
        self.bias = nn.Parameter(torch.zeros(shape, device=device))
        self.register_buffer("running_mean", torch.zeros(shape, device=device))
        self.register_buffer("running_var", torch.ones(shape, device=device))
        self.normalize()

    def forward(self, x: Tensor, training: bool) -> Tensor:
        """Normalise ``[B, d]`` or ``[E, d, B]`` over ``B``; ``B`` > 1 for batch statistics."""
        return F.batch_norm(
            # Members are channels of one batch normalisation
            x if x.dim() == 2 else x.reshape(1, -1, x.shape[-1]),
            self.running_mean.view(-1),
            self.running_var.view(-1),
            self.weight.view(-1),
            self.bias.view(-1),
            training,
            momentum=0.01,
            eps=1e-5,
        ).view(x.shape)

    @torch.no_grad()
    def normalize(self) -> None:
        """Rescale (scale, shift) jointly by ``sqrt(d) / sqrt(sum(w^2 + b^2) + 1e-8)``, in place."""
        square = (self.weight.square() + self.bias.square()).sum(-1, keepdim=True)
        factor = math.sqrt(self.weight.shape[-1]) * torch.rsqrt(square + 1e-8)
        self.weight.mul_(factor)
        self.bias.mul_(factor)


class UnitRMSNorm(nn.Module):
    """RMS normalisation over features whose scale is kept at norm ``sqrt(d)``."""

    def __init__(
        self,
        num_features: int,
        *,
        num_members: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*_lead(num_members), num_features, device=device))
        self.normalize()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[B, d]`` or ``[E, d, B]`` over ``d``."""
        features = -1 if x.dim() == 2 else -2
        scale = torch.rsqrt(x.square().mean(features, keepdim=True) + 1e-6)
        return x * scale * _per_feature(self.weight)

    @torch.no_grad()
    def normalize(self) -> None:
        """Rescale the scale by ``sqrt(d) / sqrt(sum(w^2) + 1e-8)``, in place."""
        square = self.weight.square().sum(-1, keepdim=True)
        self.weight.mul_(math.sqrt(self.weight.shape[-1]) * torch.rsqrt(square + 1e-8))


class Embedder(nn.Module):
    """UnitBatchNorm of the raw input, then UnitLinear to the hidden width ``H``."""

    def __init__(
        self,
        in_features: int,
        hidden_dim: int,
        *,
        num_members: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.norm = UnitBatchNorm(in_features, num_members=num_members, device=device)
        self.linear = UnitLinear(in_features, hidden_dim, num_members=num_members, device=device)

    def forward(self, x: Tensor, training: bool) -> Tensor:
        """``[B, in] -> [B, H]`` or ``[E, in, B] -> [E, H, B]``."""
        return self.linear(self.norm(x, training))


class Block(nn.Module):
    """Inverted-bottleneck residual block of inner width ``4 H``.

    ``relu(BN2(W2 relu(BN1(W1 x)))) + x``
    """

    def __init__(
        self,
        hidden_dim: int,
        *,
        num_members: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        inner = 4 * hidden_dim
        self.linear1 = UnitLinear(hidden_dim, inner, num_members=num_members, device=device)
        self.norm1 = UnitBatchNorm(inner, num_members=num_members, device=device)
        self.linear2 = UnitLinear(inner, hidden_dim, num_members=num_members, device=device)
        self.norm2 = UnitBatchNorm(hidden_dim, num_members=num_members, device=device)

    def forward(self, x: Tensor, training: bool) -> Tensor:
        """``[B, H] -> [B, H]`` or ``[E, H, B] -> [E, H, B]``."""
        y = F.relu(self.norm1(self.linear1(x), training), inplace=True)
        return F.relu(self.norm2(self.linear2(y), training), inplace=True) + x


def normalize_layers(module: nn.Module) -> None:
    """Re-normalise every unit layer inside ``module``, in place."""
    for layer in module.modules():
        if isinstance(layer, UnitLinear | UnitBatchNorm | UnitRMSNorm):
            layer.normalize()


def check_input(name: str, value: Tensor, width: int, dtype: torch.dtype) -> None:
    """Refuse an input of a network that is not ``[B, width]`` of its parameters' dtype."""
    if value.ndim != 2 or value.shape[1] != width:
        flatten = "; flatten the batch with reshape(-1)" if value.ndim > 2 else ""
        raise ConfigError(
            f"{name} must have shape [B, {width}], the width that the network was built for, got "
            f"{list(value.shape)}{flatten}"
        )
    if value.dtype != dtype:
        raise ConfigError(
            f"{name} must be {dtype} as the network's parameters, got {value.dtype}: append "
            "torchrl.envs.DoubleToFloat() to the environment, or cast the batch"
        )


def check_at_least(least: float, **values: float) -> None:
    """Refuse settings, given by name, that are below ``least``."""
    for name, value in values.items():
        if not value >= least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
