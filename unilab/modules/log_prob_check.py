"""Checks that log_prob is the density of the actions: at construction, and in an actor's tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, jacrev, vmap
from torch.overrides import TorchFunctionMode

from unilab.modules.actor_calls import forward_outputs, mean_and_std, trial_copy
from unilab.modules.actor_spec import actor_semantics

#: observations of the check at construction (a prime, which no layer has as its width), and how
#: many of them must be away from saturation.
_POINTS, _MIN_POINTS = 67, 8
#: share of them whose error is at most the one that is reported.
_QUANTILE = 0.95


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
    obs = obs.detach().cpu().double()
    with trial_copy(actor) as copied, torch.no_grad():
        exact: Any = copied.cpu().double()
        mean, std = mean_and_std(exact, obs)
        action, given, _ = forward_outputs(
            actor,
            exact(obs, training=False),
            training=False,
            rows=len(obs),
            action_dim=mean.shape[-1],
            like=obs,
        )
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
    off = ((given[at] - log_prob).abs() - slack).max().item()
    assert off <= atol, (
        f"log_prob is up to {off:.3g} nats off log N(u; mean, std) - log|det J|: it must be that "
        "of the transformed action"
    )


def log_prob_errors(actor: Any, obs_dim: int, action_dim: int) -> dict[bool, float | None]:
    """How far log_prob is off the density of the actions, in nats; without knowing the transform.

    A reparameterised actor computes its actions ``[B, A]`` from standard normal numbers ``eps``.
    Where these are one draw of ``[B, A]``, the density is ``log N(eps; 0, I) - log|det da/d eps|``
    with the Jacobian by automatic differentiation, whatever mean, std and invertible transform are.

    Args:
        actor: a copy, whose weights and random generators may change.
        obs_dim: observation width.
        action_dim: ``A``.

    Returns:
        for either value of ``training``, the 0.95 quantile over random observations, or None where
        this cannot be known: the actor draws other random numbers (a mixture or dropout, say), is
        saturated, or cannot be run with given numbers (compiled code).
    """
    generator = torch.Generator().manual_seed(2)
    spread = torch.linspace(0.2, 2.0, _POINTS).unsqueeze(-1)
    obs, eps = (
        (spread * torch.randn(_POINTS, width, generator=generator)).to(
            next(actor.parameters()).device
        )
        for width in (obs_dim, action_dim)
    )
    return {training: _error_on(actor, obs, eps, training) for training in (True, False)}


def _error_on(actor: Any, obs: Tensor, eps: Tensor, training: bool) -> float | None:
    outs: list[tuple[Tensor, Tensor]] = []
    for _ in range(2):
        try:
            with torch.no_grad():
                std = mean_and_std(actor, obs, training)[1]
            if not outs:  # any eps will do: of a size that does not saturate the transform
                eps = eps / std.clamp(min=1.0)
            with _Noise(eps) as noise:
                actions, info = actor(obs, training=training)
        except Exception:  # compiled and scripted code may not run in this mode
            return None
        log_prob = info["log_prob"].reshape(-1)
        outs.append((actions, log_prob))
    if len(noise.drawn) != 1 or not all(map(torch.allclose, *outs)):
        return None
    rows = [
        torch.autograd.grad(joint.sum(), noise.drawn, retain_graph=True, allow_unused=True)[0]
        for joint in actions.unbind(-1)
    ]
    if any(row is None for row in rows):
        return None
    jacobian = torch.stack(rows, 1).double()  # [B, A of the action, A of eps]
    with torch.no_grad():
        normal = -0.5 * (eps.double().square() + math.log(2.0 * math.pi)).sum(-1)
        density = normal - torch.linalg.slogdet(jacobian).logabsdet
        # Rounding decides the slope of a saturated action: it is off by about 1e-7 of the action.
        slopes = jacobian / std.unsqueeze(1)
        of_u, of_action = slopes.norm(dim=1), slopes.norm(dim=2)
        steep = (of_u > 1e-3 * of_u.amax(0)) & (of_action > 1e-4 * actions.abs().amax(0))
        off = (log_prob - density)[steep.all(-1) & density.isfinite()].abs()
    return off.quantile(_QUANTILE).item() if len(off) >= _MIN_POINTS else None


class _Noise(TorchFunctionMode):
    """Puts ``eps`` in the place of draws of standard normal numbers of its shape."""

    def __init__(self, eps: Tensor) -> None:
        super().__init__()
        self.eps = eps
        self.drawn: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        match getattr(func, "__name__", ""):
            case "randn" | "randn_like":
                standard = True
            case "normal":
                standard = _is_standard(*args, **kwargs)
            case "normal_":
                standard = _is_standard(*args[1:], **kwargs)
            case _:
                standard = False
        if standard and out.shape == self.eps.shape:
            leaf = self.eps.to(out, copy=True).requires_grad_()
            self.drawn.append(leaf)
            with torch.enable_grad():
                out.copy_(leaf)  # in place, so that the draw need not be the returned tensor
        return out


def _is_standard(mean: Any = 0.0, std: Any = 1.0, *_: Any, **__: Any) -> bool:
    mean, std = torch.as_tensor(mean), torch.as_tensor(std)
    return bool((mean == 0.0).all() and (std == 1.0).all())


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
