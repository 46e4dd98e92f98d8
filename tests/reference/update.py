"""One whole FlashSAC update in float64 NumPy, in the order the paper gives."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from reference import flashsac as ref
from reference.flashsac import Adam, Arrays


@dataclass(kw_only=True)
class Settings:
    """Constants of a run."""

    gamma: float = 0.99
    tau: float = 0.01
    bc_alpha: float = 0.0
    actor_update_period: int = 2
    lr: tuple[float, float, float] = (0.0, 3e-4, 1.5e-4)
    warmup_steps: int = 0
    decay_steps: int = 1_000_000


@dataclass(kw_only=True)
class Learner:
    """Networks, optimizers and counters; ``grads`` keeps the latest gradients for inspection."""

    actor: Arrays
    critic: Arrays
    target: Arrays
    log_alpha: np.ndarray
    settings: Settings
    updates: int = 0
    optimizers: dict[str, Adam] = field(
        default_factory=lambda: {name: Adam() for name in ("actor", "alpha", "critic")}
    )
    grads: dict[str, Arrays] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def alpha(self) -> float:
        return float(np.exp(self.log_alpha))

    def update(self, batch: Arrays, eps_actor: np.ndarray | None, eps_critic: np.ndarray) -> None:
        if self.updates % self.settings.actor_update_period == 0:
            assert eps_actor is not None
            self._actor_and_temperature(batch, eps_actor)
        self._critic(batch, eps_critic)
        self.updates += 1

    def _actor_and_temperature(self, batch: Arrays, eps: np.ndarray) -> None:
        bc, alpha, stats = self.settings.bc_alpha, self.alpha, {}
        loss, entropy = ref.actor_loss(self.actor, self.critic, batch, alpha, eps, bc, stats)
        self.grads["actor"] = ref.gradient(
            lambda p: ref.actor_loss(p, self.critic, batch, alpha, eps, bc, {})[0],
            self.actor,
            _learned(self.actor),
        )
        stepped = self._step("actor", {**self.actor, **stats})
        self.actor = ref.normalized(stepped)

        excess = entropy - ref.target_entropy(batch["action"].shape[1])
        self.metrics.update(loss_actor=loss, entropy=entropy, loss_alpha=alpha * excess)
        self.grads["alpha"] = {"log_alpha": np.asarray(alpha * excess)}
        self.log_alpha = self._step("alpha", {"log_alpha": self.log_alpha})["log_alpha"]

    def _critic(self, batch: Arrays, eps: np.ndarray) -> None:
        target_stats, stats = {}, {}
        discount = self.settings.gamma ** batch.get("steps", np.ones(len(batch["obs"])))
        target_p, next_action = ref.critic_targets(
            self.actor, self.target, batch, self.alpha, eps, discount, target_stats
        )
        loss = ref.critic_loss(self.critic, batch, target_p, next_action, stats)
        self.metrics.update(loss_qvalue=loss)
        self.grads["critic"] = ref.gradient(
            lambda p: ref.critic_loss(p, batch, target_p, next_action, {}),
            self.critic,
            _learned(self.critic),
        )
        self.critic = ref.normalized(self._step("critic", {**self.critic, **stats}))
        tau = self.settings.tau
        self.target = {
            **self.target,
            **{
                name: (1 - tau) * self.target[name] + tau * self.critic[name]
                for name in _learned(self.critic)
            },
            **target_stats,
        }

    def _step(self, name: str, params: Arrays) -> Arrays:
        optimizer, s = self.optimizers[name], self.settings
        lr = ref.learning_rate(optimizer.steps, *s.lr, s.warmup_steps, s.decay_steps)
        return optimizer.step(params, self.grads[name], lr)


def _learned(params: Arrays) -> list[str]:
    return [name for name in params if name.rpartition(".")[2] in ("weight", "bias")]
