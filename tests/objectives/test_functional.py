"""The formulas against their float64 renderings, on drawn inputs and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference import flashsac as ref

from unilab.objectives import functional as F

BINS = 11
SUPPORT = np.linspace(-5.0, 5.0, BINS)
settings.register_profile("quick", max_examples=40, deadline=None)
settings.load_profile("quick")


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, width=64)


def matrix(rows: int, columns: int, low: float, high: float) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, (rows, columns), elements=floats(low, high))


def vector(rows: int, low: float, high: float) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, rows, elements=floats(low, high))


def t(x: np.ndarray | float) -> torch.Tensor:
    return torch.as_tensor(x)


def distribution(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def test_clipped_mass_is_that_beyond_the_support():
    """Bins are 1 apart; 0.4 beyond an end is not counted, 0.6 is."""
    p, zero = t(np.full((4, BINS), 1.0 / BINS)), t(np.zeros(4))
    reward, ended = t(np.array([0.4, -0.6, 2.0, -9.0])), t(np.array([False] * 3 + [True]))
    got = F.clipped_mass(p, reward, ended, zero, t(SUPPORT), 1.0)
    torch.testing.assert_close(got * BINS, t(np.array([0.0, 1.0, 2.0, BINS])))
    bonus = F.clipped_mass(p, zero, ended, reward, t(SUPPORT), 1.0)
    torch.testing.assert_close(bonus * BINS, t(np.array([0.0, 1.0, 2.0, 0.0])))


@given(atoms=matrix(3, BINS, -5, 5), logits=matrix(3, BINS, -8, 8))
def test_projection_matches_the_reference(atoms, logits):
    p = distribution(logits)
    got = F.project_distribution(t(atoms), t(p), t(SUPPORT))
    np.testing.assert_allclose(got, ref.project(atoms, p, SUPPORT), atol=1e-12)


@given(atoms=matrix(3, BINS, -5, 5), logits=matrix(3, BINS, -8, 8))
def test_projection_keeps_mass_and_mean(atoms, logits):
    p = distribution(logits)
    got = F.project_distribution(t(atoms), t(p), t(SUPPORT)).numpy()
    np.testing.assert_allclose(got.sum(-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(got @ SUPPORT, (p * atoms).sum(-1), atol=1e-11)
    assert got.min() >= -1e-15


@given(order=st.permutations(range(BINS)), logits=matrix(1, BINS, -8, 8))
def test_an_atom_exactly_on_a_bin_keeps_its_whole_mass_there(order, logits):
    p = distribution(logits)
    got = F.project_distribution(t(SUPPORT[order][None]), t(p), t(SUPPORT))
    want = np.zeros(BINS)
    want[order] = p[0]
    np.testing.assert_allclose(got[0], want, atol=1e-15)


@pytest.mark.parametrize("bins", [2, 3, 51, 101])
def test_atoms_on_every_bin_of_a_float32_support_stay_put(bins):
    support = torch.linspace(-5, 5, bins)
    p = torch.rand(4, bins).softmax(-1)
    got = F.project_distribution(support.expand(4, -1), p, support)
    torch.testing.assert_close(got, p, atol=2e-6, rtol=0)


@given(
    reward=vector(4, -20, 20),
    terminated=arrays(np.bool_, 4),
    log_prob=vector(4, -50, 50),
    alpha=floats(1e-4, 2),
    steps=arrays(np.int64, 4, elements=st.integers(1, 3)),
)
def test_target_support_matches_the_reference(reward, terminated, log_prob, alpha, steps):
    discount = 0.97**steps
    got = F.target_support(t(reward), t(terminated), t(-alpha * log_prob), t(SUPPORT), t(discount))
    want = ref.target_atoms(reward, terminated, log_prob, alpha, discount, SUPPORT)
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize(("reward", "end"), [(5.5, -1), (1e6, -1), (-5.5, 0), (-1e6, 0)])
def test_a_terminal_reward_past_the_support_is_clipped_to_its_end(reward, end):
    atoms = F.target_support(t([reward]), t([True]), t([3.0]), t(SUPPORT).float(), 0.99)
    assert (atoms == SUPPORT[end]).all()


@given(logits=matrix(3, BINS, -30, 30), target=matrix(3, BINS, -8, 8))
def test_value_and_cross_entropy_match_the_reference(logits, target):
    log_p, p = np.log(distribution(logits)), distribution(target)
    np.testing.assert_allclose(
        F.categorical_value(t(log_p), t(SUPPORT)), ref.value(log_p, SUPPORT), atol=1e-12
    )
    np.testing.assert_allclose(F.cross_entropy(t(p), t(log_p)), -(p * log_p).sum(-1), rtol=1e-12)


@given(u=vector(5, -30, 30))
def test_tanh_log_det_matches_the_reference(u):
    want = ref.log_tanh_derivative(u)
    np.testing.assert_allclose(F.tanh_log_det(t(u)), want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("u", [-30.0, -15.0, 0.0, 15.0, 30.0])
def test_tanh_log_det_is_exact_and_has_a_gradient_far_out_in_float32(u):
    x = torch.tensor(u, requires_grad=True)
    value = F.tanh_log_det(x)
    want = math.log(4) - 2 * abs(u) - 2 * math.log1p(math.exp(-2 * abs(u)))
    assert value.item() == pytest.approx(want, rel=1e-6, abs=1e-6)
    value.backward()
    assert x.grad.item() == pytest.approx(-2 * math.tanh(u), rel=1e-6)


@given(
    mean=vector(4, -20, 20),
    log_std=vector(4, -10, 2),
    eps=vector(4, -4, 4),
    half_width=floats(0.01, 100),
)
def test_squashed_log_prob_matches_the_reference(mean, log_std, eps, half_width):
    std = np.exp(log_std)
    u = mean + std * eps
    normal = -0.5 * eps**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    want = (normal - ref.log_tanh_derivative(u) - np.log(half_width)).sum()
    got = F.squashed_log_prob(t(eps), t(log_std), t(u), math.log(half_width))
    assert got.item() == pytest.approx(want, rel=1e-12, abs=1e-10)
    torch.testing.assert_close(
        F.gaussian_log_prob(t(eps), t(log_std)),
        torch.distributions.Normal(t(mean), t(std)).log_prob(t(mean) + t(std) * t(eps)),
        atol=1e-7,  # u loses the sample's low bits beside a large mean and a tiny std
        rtol=1e-6,
    )


@given(raw=vector(4, -40, 40))
def test_log_std_is_squashed_to_minus_ten_and_two(raw):
    got = F.squash_log_std(t(raw)).numpy()
    np.testing.assert_allclose(got, -10 + 6 * (1 + np.tanh(raw)), atol=1e-12)
    assert got.min() >= -10
    assert got.max() <= 2


@pytest.mark.parametrize(
    ("sigma", "half_range"), [(1.0, [1.0]), (0.15, 12 * [1.0]), (0.15, 17 * [0.4]), (0.3, [2.0, 9])]
)
def test_target_entropy_is_the_entropy_of_independent_normals_in_their_ranges(sigma, half_range):
    half = torch.tensor(half_range, dtype=torch.float64)
    want = torch.distributions.Normal(0.0, sigma * half).entropy().sum().item()
    assert F.target_entropy(len(half), sigma, half) == pytest.approx(want)
    if len({*half_range}) == 1:
        assert F.target_entropy(len(half), sigma, half_range[0]) == pytest.approx(want)


@pytest.mark.parametrize("longest", [1, 5, 16])
def test_zeta_law_is_the_truncated_inverse_square(longest):
    np.testing.assert_allclose(F.zeta_pmf(longest), ref.zeta_law(longest), rtol=1e-14)


@given(
    step=st.integers(0, 2000), warmup_steps=st.integers(0, 500), decay_steps=st.integers(1, 1000)
)
def test_learning_rate_matches_the_reference(step, warmup_steps, decay_steps):
    shape = {"init": 1e-5, "peak": 3e-4, "end": 1.5e-4}
    kwargs = {**shape, "warmup_steps": warmup_steps, "decay_steps": decay_steps}
    assert F.learning_rate(step, **kwargs) == pytest.approx(ref.learning_rate(step, **kwargs))
