"""Unit-norm layers against their float64 rendering."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import flashsac as ref
from reference.tiny import arrays, scramble

from unilab.modules.layers import UnitBatchNorm, UnitLinear, UnitRMSNorm

MEMBERS = [None, 3]


def batch(num_members: int | None, rows: int, width: int) -> torch.Tensor:
    """``[B, d]``, or ``[E, d, B]`` for an ensemble."""
    shape = (rows, width) if num_members is None else (num_members, width, rows)
    return torch.randn(shape, dtype=torch.float64)


def each_member(num_members: int | None, x: torch.Tensor) -> list[np.ndarray]:
    """``[B, d]`` arrays, one a member."""
    return [x.numpy()] if num_members is None else [m.T.numpy() for m in x]


def member(p: dict[str, np.ndarray], num_members: int | None, index: int) -> dict[str, np.ndarray]:
    return {k: v if num_members is None else v[index] for k, v in p.items()}


@pytest.mark.parametrize("num_members", MEMBERS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_normalises_and_moves_statistics_as_the_reference(num_members, training):
    layer = scramble(UnitBatchNorm(5, num_members=num_members)).double()
    x = batch(num_members, 7, 5)
    before = {f"n.{k}": v for k, v in arrays(layer).items()}
    out = layer(x, training).detach()
    after = arrays(layer)
    for i, (rows, got) in enumerate(
        zip(each_member(num_members, x), each_member(num_members, out), strict=True)
    ):
        p, stats = member(before, num_members, i), {}
        want = ref.batch_norm(p, "n", rows, training, stats)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
        for name in ("running_mean", "running_var"):
            expected = stats.get(f"n.{name}", p[f"n.{name}"])
            np.testing.assert_allclose(member(after, num_members, i)[name], expected, rtol=1e-12)


@pytest.mark.parametrize("num_members", MEMBERS)
@pytest.mark.parametrize(("in_features", "out_features"), [(6, 4), (4, 6)])
def test_linear_starts_orthogonal_with_unit_rows_and_no_bias(
    num_members, in_features, out_features
):
    layer = UnitLinear(in_features, out_features, bias=True, num_members=num_members)
    assert layer.bias.abs().max() == 0
    for matrix in layer.weight.detach().reshape(-1, out_features, in_features):
        torch.testing.assert_close(matrix.norm(dim=1), torch.ones(out_features))
        if out_features <= in_features:
            torch.testing.assert_close(
                matrix @ matrix.T, torch.eye(out_features), atol=1e-5, rtol=0
            )
        else:  # unit rows of a matrix with orthogonal columns of equal norm only in the mean
            assert torch.linalg.matrix_rank(matrix) == in_features


@pytest.mark.parametrize("num_members", MEMBERS)
def test_normalize_brings_each_kind_of_layer_to_its_norm(num_members):
    linear = UnitLinear(4, 3, num_members=num_members).double()
    norm = UnitBatchNorm(5, num_members=num_members).double()
    rms = UnitRMSNorm(5, num_members=num_members).double()
    for layer in (linear, norm, rms):
        for value in layer.parameters():
            value.data.normal_()
    before = [arrays(layer) for layer in (linear, norm, rms)]
    for layer in (linear, norm, rms):
        layer.normalize()
    np.testing.assert_allclose(arrays(linear)["weight"], ref.unit_rows(before[0]["weight"]))
    weight, bias = ref.unit_scale_and_shift(before[1]["weight"], before[1]["bias"])
    np.testing.assert_allclose(arrays(norm)["weight"], weight)
    np.testing.assert_allclose(arrays(norm)["bias"], bias)
    np.testing.assert_allclose(arrays(rms)["weight"], ref.unit_scale(before[2]["weight"]))


def test_normalize_survives_a_row_of_zeros():
    layer = UnitLinear(4, 3)
    layer.weight.data[1] = 0
    layer.normalize()
    torch.testing.assert_close(layer.weight.detach().norm(dim=1), torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.parametrize("num_members", MEMBERS)
def test_reduced_precision_stays_inside_the_matrix_product(num_members):
    torch.manual_seed(0)
    layer = UnitLinear(64, 32, bias=True, num_members=num_members)
    layer.bias.data.fill_(1e-4)
    x = batch(num_members, 16, 64).float()
    exact = layer(x)
    layer.matmul_dtype = torch.bfloat16
    rounded = layer(x)
    assert rounded.dtype == torch.float32
    error = (rounded - exact).abs().max()
    assert 1e-4 < error < 0.1  # bfloat16 keeps 8 bits
    no_bias = rounded - (layer.bias if num_members is None else layer.bias.unsqueeze(-1))
    torch.testing.assert_close(no_bias.bfloat16().float(), no_bias, atol=1e-6, rtol=1e-6)
    rounded.sum().backward()
    assert layer.weight.grad.dtype == torch.float32
