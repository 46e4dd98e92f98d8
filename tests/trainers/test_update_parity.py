"""Whole updates against the float64 reference: losses, gradients, weights, statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.flashsac import Arrays
from reference.tiny import ACTION, arrays, batch_arrays, tiny_batch, tiny_loss
from reference.update import Learner, Settings
from torch import nn

from unilab.trainers import FlashSACLearner

ROWS = 8
CASES = {
    "defaults": Settings(),
    "n-step": Settings(gamma=0.9),
    "schedules": Settings(lr=(1e-4, 5e-3, 1e-3), warmup_steps=1, decay_steps=2, tau=0.2),
    "behaviour cloning": Settings(bc_alpha=0.7),
    "actor every third": Settings(actor_update_period=3),
}


def build(settings: Settings, dtype: torch.dtype) -> tuple[FlashSACLearner, Learner]:
    """The same networks twice; both targets start at the critic's parameters."""
    loss = tiny_loss(dtype, gamma=settings.gamma, bc_alpha=settings.bc_alpha)
    init, peak, end = settings.lr
    learner = FlashSACLearner(
        loss,
        lr_init=init,
        lr=peak,
        lr_end=end,
        warmup_steps=settings.warmup_steps,
        decay_steps=settings.decay_steps,
        actor_update_period=settings.actor_update_period,
        tau=settings.tau,
    )
    reference = Learner(
        actor=arrays(loss.actor),
        critic=arrays(loss.critic),
        target=arrays(loss.target_critic),
        log_alpha=loss.log_alpha.detach().double().numpy().copy(),
        settings=settings,
    )
    return learner, reference


def assert_close(got: Arrays, want: Arrays, tolerance: float, what: str) -> None:
    for name in got:
        np.testing.assert_allclose(
            got[name], want[name], rtol=tolerance, atol=tolerance, err_msg=f"{what}: {name}"
        )


def gradients(module: nn.Module) -> Arrays:
    return {n: p.grad.double().numpy() for n, p in module.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_updates_match_the_reference(case):
    settings = CASES[case]
    learner, reference = build(settings, torch.float64)
    loss = learner.loss
    for update in range(4):
        batch = tiny_batch(ROWS, dtype=torch.float64, seed=update)
        if case == "n-step":
            batch["steps_to_next_obs"] = (torch.arange(ROWS) % 3 + 1).unsqueeze(-1)
        torch.manual_seed(update)
        metrics = learner.update(batch)
        torch.manual_seed(update)
        eps_actor = None
        if update % settings.actor_update_period == 0:
            eps_actor = torch.randn(2 * ROWS, ACTION, dtype=torch.float64).numpy()
        eps_critic = torch.randn(ROWS, ACTION, dtype=torch.float64).numpy()
        reference.update(batch_arrays(batch), eps_actor, eps_critic)

        for name, want in reference.metrics.items():
            assert metrics[name].item() == pytest.approx(want, rel=1e-8), (update, name)
        assert metrics["alpha"].item() == pytest.approx(reference.alpha, rel=1e-10)
        if eps_actor is not None:
            assert_close(gradients(loss.actor), reference.grads["actor"], 1e-8, "actor gradient")
        assert_close(gradients(loss.critic), reference.grads["critic"], 1e-8, "critic gradient")
        # Adam divides by the gradient's own size, so where that is nought rounding is all there is.
        assert_close(arrays(loss.actor), reference.actor, 1e-6, "actor")
        assert_close(arrays(loss.critic), reference.critic, 1e-6, "critic")
        assert_close(arrays(loss.target_critic), reference.target, 1e-6, "target")


def test_first_update_in_float32_matches_the_reference_to_rounding():
    learner, reference = build(Settings(), torch.float32)
    batch = tiny_batch(ROWS)
    torch.manual_seed(0)
    metrics = learner.update(batch)
    torch.manual_seed(0)
    eps_actor, eps_critic = (torch.randn(n, ACTION).double().numpy() for n in (2 * ROWS, ROWS))
    reference.update(batch_arrays(batch), eps_actor, eps_critic)
    for name, want in reference.metrics.items():
        assert metrics[name].item() == pytest.approx(want, rel=2e-5), name
    loss = learner.loss
    assert_close(gradients(loss.actor), reference.grads["actor"], 5e-5, "actor gradient")
    assert_close(gradients(loss.critic), reference.grads["critic"], 5e-5, "critic gradient")
    statistics = {n: b for n, b in arrays(loss.target_critic).items() if "running" in n}
    assert_close(statistics, reference.target, 1e-5, "target statistics")
