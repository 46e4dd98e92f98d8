"""Test helper for custom actors: log_prob is the density of the actions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, jacrev, vmap

from unilab.modules.actor_spec import actor_semantics


def assert_log_prob_consistent(
    actor: nn.Module,
    transform: Callable[[Tensor], Tensor],
    *,
    obs: Tensor | None = None,
    rows: int = 256,
    atol: float = 1e-4,
) -> None:
    """Asserts that actions, log_prob, exploration and export of an actor are of one distribution.

    In a float64 copy of the actor, sampled actions are inverted through ``transform`` by Newton's
    method, and log_prob must equal ``log N(u; mean, std) - log|det J(u)|`` with the Jacobian by
    automatic differentiation. Deterministic exploration and the export module must return
    ``transform(mean)``.

    Args:
        actor: an actor of the contract whose pre-transform distribution is a diagonal Gaussian.
        transform: the map from the pre-transform sample to the action, ``[A] -> [A]``, in
            differentiable torch operations; ``[*, A]`` works too where it is elementwise.
        obs: ``[B, O]`` observations; by default standard normal ones.
        rows: ``B`` of the default observations.
        atol: largest difference allowed, in nats, beyond what float32 constants explain.

    Examples:
        >>> import torch
        >>> from unilab.modules import FlashSACActor, assert_log_prob_consistent
        >>> actor = FlashSACActor(3, 2, action_low=-2.0, action_high=2.0)
        >>> assert_log_prob_consistent(actor, lambda u: 2.0 * torch.tanh(u))
    """
    if obs is None:
        width = actor_semantics(actor)["obs_dim"]
        assert width is not None, f"{type(actor).__name__} has no obs_dim: pass obs"
        obs = torch.randn(rows, width)
    exact: Any = copy.deepcopy(actor).cpu().double()
    obs = obs.detach().cpu().double()
    with torch.no_grad():
        mean, std = exact.get_mean_and_std(obs)
        action, info = exact(obs, training=False)
        expected = vmap(transform)(mean)
        centre = transform(torch.zeros_like(mean[0]))
        for name, value in (
            ("explore(obs, deterministic=True)", exact.explore(obs, deterministic=True)),
            ("as_export_module()(obs)", exact.as_export_module()(obs)),
        ):
            apart = (value - expected).abs()
            allowed = 1e-5 + _rounding(expected, centre)
            assert (apart <= allowed).all(), f"{name} is {apart.max():.3g} off transform(mean)"
        u, jacobian, inverted = _invert(transform, action, mean)
    at = inverted.nonzero().flatten()
    # How far the rounding of the actor's constants may move u; where it is far, u is not known.
    rounding = torch.linalg.solve(jacobian[at], _rounding(action[at], centre))
    known = rounding.abs().amax(-1) < 0.1
    at, rounding = at[known], rounding[known]
    share = len(at) / len(obs)
    assert share >= 0.5, (
        f"only {share:.0%} of the actions could be inverted through transform: they are not its "
        "values, or saturated; use a smaller std or other observations"
    )

    def log_density(u: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        gaussian = -0.5 * ((u - mean) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)
        return gaussian.sum() - torch.linalg.slogdet(jacrev(transform)(u)).logabsdet

    slope, log_prob = vmap(grad_and_value(log_density))(u[at], mean[at], std[at])
    slack = (slope * rounding).abs().sum(-1)
    off = ((info["log_prob"].reshape(-1)[at] - log_prob).abs() - slack).max().item()
    assert off <= atol, (
        f"log_prob is up to {off:.3g} nats off log N(u; mean, std) - log|det J|: it must be that "
        "of the transformed action"
    )


def _rounding(action: Tensor, centre: Tensor) -> Tensor:
    """How far float32 constants, an offset (the ``centre``) and a scale, may move an action."""
    return 4.0 * torch.finfo(torch.float32).eps * (centre.abs() + (action - centre).abs())


def _invert(
    transform: Callable[[Tensor], Tensor], action: Tensor, start: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``u`` with ``transform(u) = action``, the Jacobian there, and the rows where it was found."""
    forward, jacobian = vmap(transform), vmap(jacrev(transform))
    u = start.clone()
    residual = forward(u) - action
    for _ in range(100):
        step, info = torch.linalg.solve_ex(jacobian(u), residual)
        step = torch.where((info == 0).unsqueeze(-1), step, 0.0)
        # Newton overshoots where the transform flattens: halve each row's step until it gains.
        for _ in range(40):
            trial = forward(u - step) - action
            gains = trial.norm(dim=-1, keepdim=True) <= residual.norm(dim=-1, keepdim=True)
            if gains.all():
                break
            step = torch.where(gains, step, 0.5 * step)
        u = torch.where(gains, u - step, u)
        residual = forward(u) - action
    at = jacobian(u)
    # The error of u is the error of the action, about 1e-16, over the slope.
    steep = torch.linalg.svdvals(at).amin(-1) > 1e-6
    return u, at, steep & (residual.abs().amax(-1) < 1e-12)
