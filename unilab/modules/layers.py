"""Unit-norm layers of FlashSAC (arXiv 2604.04539), with or without a leading ensemble dimension.

Every layer takes ``num_members``: ``None`` builds one layer on ``[B, d]``; an int ``E`` builds ``E``
independent layers on ``[E, B, d]``, evaluated as one batched operation.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Block", "Embedder", "UnitBatchNorm", "UnitLinear", "UnitRMSNorm", "normalize_layers"]


def _lead(num_members: int | None) -> tuple[int, ...]:
    return () if num_members is None else (num_members,)


class UnitLinear(nn.Module):
    """Linear map whose rows (one per output feature) are kept at unit L2 norm.

    Args:
        in_features: input width.
        out_features: output width.
        bias: add a free (unnormalised, zero-initialised) bias, as the network heads do.
        num_members: ensemble size, or ``None`` for a single layer.
        device: where the parameters live.
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
        self.in_features = in_features
        self.out_features = out_features
        lead = _lead(num_members)
        self.weight = nn.Parameter(torch.empty(*lead, out_features, in_features, device=device))
        self.bias = nn.Parameter(torch.zeros(*lead, out_features, device=device)) if bias else None
        #: dtype of the matrix product alone; ``None`` keeps the parameters' dtype.
        self.matmul_dtype: torch.dtype | None = None
        with torch.no_grad():
            for matrix in self.weight.view(-1, out_features, in_features):
                nn.init.orthogonal_(matrix)
        self.normalize()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: ``[*, B, in] -> [*, B, out]``."""
        weight = self.weight
        dtype = x.dtype
        if self.matmul_dtype is not None:
            x, weight = x.to(self.matmul_dtype), weight.to(self.matmul_dtype)
        y = F.linear(x, weight) if weight.dim() == 2 else torch.bmm(x, weight.transpose(1, 2))
        y = y.to(dtype)
        return y if self.bias is None else y + self.bias.unsqueeze(-2)

    @torch.no_grad()
    def normalize(self) -> None:
        """Rescale every row to L2 norm 1 (eps 1e-8), in place."""
        norm = torch.linalg.vector_norm(self.weight, dim=-1, keepdim=True)
        self.weight.div_(norm.clamp_min_(1e-8))


class UnitBatchNorm(nn.Module):
    """Batch normalisation whose scale and shift are kept at joint norm ``sqrt(d)``.

    ``training`` is a forward argument, never ``module.training``: ``True`` uses the batch statistics
    (biased variance) and moves the running ones (unbiased variance), ``False`` uses the running ones.

    Args:
        num_features: width ``d``.
        num_members: ensemble size, or ``None`` for a single layer.
        momentum: step of the running statistics.
        eps: added to the variance.
        device: where the parameters live.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        num_members: int | None = None,
        momentum: float = 0.01,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        shape = (*_lead(num_members), num_features)
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(shape, device=device))
        self.bias = nn.Parameter(torch.zeros(shape, device=device))
        self.register_buffer("running_mean", torch.zeros(shape, device=device))
        self.register_buffer("running_var", torch.ones(shape, device=device))
        self.normalize()

    def forward(self, x: Tensor, training: bool) -> Tensor:
        """Normalise ``[*, B, d]`` over ``B``."""
        if training:
            var, mean = torch.var_mean(x, dim=-2, correction=0)
            with torch.no_grad():
                rows = x.shape[-2]
                self.running_mean.lerp_(mean.detach(), self.momentum)
                self.running_var.lerp_(var.detach() * (rows / max(rows - 1, 1)), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        scale = self.weight * torch.rsqrt(var + self.eps)
        return torch.addcmul((self.bias - mean * scale).unsqueeze(-2), x, scale.unsqueeze(-2))

    @torch.no_grad()
    def normalize(self) -> None:
        """Rescale (scale, shift) jointly by ``sqrt(d) / sqrt(sum(w^2 + b^2) + 1e-8)``, in place."""
        square = (self.weight.square() + self.bias.square()).sum(-1, keepdim=True)
        factor = math.sqrt(self.weight.shape[-1]) * torch.rsqrt(square + 1e-8)
        self.weight.mul_(factor)
        self.bias.mul_(factor)


class UnitRMSNorm(nn.Module):
    """RMS normalisation over features whose scale is kept at norm ``sqrt(d)``.

    Args:
        num_features: width ``d``.
        num_members: ensemble size, or ``None`` for a single layer.
        eps: added to the mean square, inside the root.
        device: where the parameters live.
    """

    def __init__(
        self,
        num_features: int,
        *,
        num_members: int | None = None,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(*_lead(num_members), num_features, device=device))
        self.normalize()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[*, B, d]`` over ``d``."""
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight.unsqueeze(-2)

    @torch.no_grad()
    def normalize(self) -> None:
        """Rescale the scale by ``sqrt(d) / sqrt(sum(w^2) + 1e-8)``, in place."""
        square = self.weight.square().sum(-1, keepdim=True)
        self.weight.mul_(math.sqrt(self.weight.shape[-1]) * torch.rsqrt(square + 1e-8))


class Embedder(nn.Module):
    """UnitBatchNorm of the raw input, then UnitLinear to the hidden width.

    Args:
        in_features: input width.
        hidden_dim: hidden width ``H``.
        num_members: ensemble size, or ``None`` for a single layer.
        device: where the parameters live.
    """

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
        """``[*, B, in] -> [*, B, H]``."""
        return self.linear(self.norm(x, training))


class Block(nn.Module):
    """Inverted-bottleneck residual block: ``relu(BN2(W2 relu(BN1(W1 x)))) + x``.

    Args:
        hidden_dim: hidden width ``H``; the inner width is ``4 H``.
        num_members: ensemble size, or ``None`` for a single layer.
        device: where the parameters live.
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
        """``[*, B, H] -> [*, B, H]``."""
        y = F.relu(self.norm1(self.linear1(x), training))
        return F.relu(self.norm2(self.linear2(y), training)) + x


def normalize_layers(module: nn.Module) -> None:
    """Re-normalise every unit layer inside ``module``, in place.

    Args:
        module: any module; its unit layers are found recursively.
    """
    for layer in module.modules():
        if isinstance(layer, UnitLinear | UnitBatchNorm | UnitRMSNorm):
            layer.normalize()
