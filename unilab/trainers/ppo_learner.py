"""PPO's update: advantages of a rollout, and one step on a minibatch."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl import timeit
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import ValueEstimatorBase

from unilab.data.symmetry import Mirror, mirrored
from unilab.data.ticks import as_ticks
from unilab.errors import CheckpointError, ConfigError
from unilab.modules import GaussianPolicy, actor_semantics
from unilab.trainers.ranks import SyncGradients
from unilab.trainers.state_check import (
    adam_moments,
    learner_problem,
    load_moments,
    moments_problem,
)
from unilab.trainers.update_checks import TrainedParameters, check_losses

MIN_LR, MAX_LR = 1e-5, 1e-2
"""Range of the adaptive learning rate."""


class PPOLearner:
    """Optimises a ``ClipPPOLoss`` of TorchRL (PPO, Schulman et al., arXiv 1707.06347).

    For each rollout: :meth:`add_advantages`, then :meth:`update` on minibatches of it for a few
    epochs, then :meth:`update_normalizers`.

    Args:
        loss: over a :class:`~unilab.modules.GaussianPolicy` and a value operator, with
            ``functional=False``; both are optimised in place.
        advantages: over the same value operator: TorchRL's ``GAE``, or
            :class:`~unilab.objectives.VTrace` for rollouts of an earlier policy (APPO).

    Keyword Args:
        lr: Adam's learning rate, at the start if it is adaptive.
        desired_kl: divergence of the policy from the rollout's that the learning rate aims at;
            None keeps the rate.
        max_grad_norm: longest gradient of the actor, and of the critic.
        sync_gradients: called between backward and step, with all parameters and the losses by
            name, e.g. :meth:`~unilab.trainers.Ranks.average_gradients`. The last parameter is no
            weight: its gradient is the divergence, so that all ranks adapt their learning rate
            alike.
    """

    def __init__(
        self,
        loss: ClipPPOLoss,
        advantages: ValueEstimatorBase,
        *,
        lr: float = 1e-3,
        desired_kl: float | None = 0.01,
        max_grad_norm: float = 1.0,
        sync_gradients: SyncGradients | None = None,
    ) -> None:
        if not isinstance(loss.actor_network, GaussianPolicy) or loss.functional:
            raise ConfigError(
                "loss must be over a GaussianPolicy and have functional=False, because a "
                "functional one would read copies of the normalisers"
            )
        if not max_grad_norm > 0.0:
            raise ConfigError(f"max_grad_norm must be above 0, got {max_grad_norm}")
        if desired_kl is not None and not desired_kl > 0.0:
            raise ConfigError(f"desired_kl must be above 0, or None, got {desired_kl}")
        self.loss = loss
        self.advantages = advantages
        self.desired_kl = desired_kl
        if not self._is_rate(lr):
            raise ConfigError(
                f"lr must be above 0 and finite, and {MIN_LR:g} to {MAX_LR:g} with a desired_kl, "
                f"got {lr}"
            )
        self.max_grad_norm = max_grad_norm
        self.update_count = 0
        self.actor = loss.actor_network.actor
        self.critic = loss.critic_network.module
        self._networks = nn.ModuleDict({"actor": self.actor, "critic": self.critic})
        self._parameters = list(self._networks.parameters())
        self._trained = TrainedParameters(actor=self.actor, critic=self.critic)
        self._optimizer = torch.optim.Adam(self._parameters, lr=lr, fused=True)
        self._kl = nn.Parameter(torch.zeros((), device=self._parameters[0].device))
        self._sync_gradients = sync_gradients

    @property
    def lr(self) -> float:
        """The current learning rate."""
        return self._optimizer.param_groups[0]["lr"]

    @torch.no_grad()
    def add_advantages(self, data: TensorDictBase) -> TensorDictBase:
        """Estimate the advantages of a rollout with the present value network.

        Args:
            data: ``[N, T]`` in time order, as the policy collected it. Where an episode ended only
                by a time limit, the value of the observation before the reset, which TorchRL keeps
                under ``"next"``, continues its return.

        Returns:
            its rows ``[N * T]``, with ``advantage`` (mean 0, standard deviation 1 over the
            rollout), ``value_target`` and ``state_value``.
        """
        data = self.advantages(as_ticks(data).copy())
        keys = self.loss.tensor_keys
        observed = data.select(*self.loss.in_keys, strict=False).exclude("next")
        added = data.select(keys.advantage, keys.value_target, keys.value)
        return observed.update(added).reshape(-1)

    @torch.no_grad()
    def add_mirror_image(self, rollout: TensorDictBase, mirror: Mirror) -> TensorDictBase:
        """A rollout and its mirror image from left to right, as rows ``[2 B]``.

        The image has the advantages of the rollout, and the log-probabilities that the present
        policy gives the mirrored actions: all ratios start at 1.

        Args:
            rollout: rows ``[B]`` of :meth:`add_advantages`.
            mirror: ``env.mirror``.
        """
        image = mirrored(rollout, mirror)
        keys = self.loss.tensor_keys
        dist = self.loss.actor_network.get_dist(image)
        image.set(keys.sample_log_prob, dist.log_prob(image.get(keys.action)))
        return torch.cat((rollout, image.select(*rollout.keys(True, True))))

    def update(self, tensordict: TensorDictBase) -> TensorDict:
        """One step on a minibatch, timed as ``torchrl.timeit("update")``.

        Args:
            tensordict: rows ``[B]`` of a rollout with its advantages.

        Returns:
            detached 0-dim metrics: the loss's ``loss_objective``, ``loss_critic``,
            ``loss_entropy``, ``entropy``, ``clip_fraction``, ``explained_variance``; ``kl``, the
            policy's divergence from the rollout's before this step; ``learning_rate``.
        """
        self._trained.check(self.update_count)
        with timeit("update"):
            out = self.loss(tensordict)
            losses = {key: value for key, value in out.items() if key.startswith("loss_")}
            self._optimizer.zero_grad(set_to_none=True)
            sum(losses.values()).backward()
            self._kl.grad = divergence(out)
            if self._sync_gradients is not None:
                self._sync_gradients([*self._parameters, self._kl], losses)
            check_losses(self.update_count, **losses)
            if self.desired_kl is not None:
                self._set_lr(adapted_lr(self.lr, self._kl.grad.item(), self.desired_kl))
            for network in self._networks.values():
                nn.utils.clip_grad_norm_(network.parameters(), self.max_grad_norm)
            self._optimizer.step()
            self.update_count += 1
            names = ("entropy", "clip_fraction", "explained_variance")
            metrics = losses | {key: value for key, value in out.items() if key in names}
            metrics |= {"kl": self._kl.grad, "learning_rate": torch.full_like(self._kl, self.lr)}
        return TensorDict({key: value.detach().mean() for key, value in metrics.items()})

    def update_normalizers(self, rollout: TensorDictBase) -> None:
        """Add a rollout's observations to the statistics of the networks that normalise them.

        After its last :meth:`update`: before, the policy would differ from the one that collected
        the rollout without having learned.
        """
        operators = (self.loss.actor_network, self.loss.critic_network)
        for network, operator in zip(self._networks.values(), operators, strict=True):
            normalizer = getattr(network, "normalizer", None)
            if normalizer is not None:
                normalizer.update(rollout.get(operator.in_keys[0]))

    def _is_rate(self, lr: float) -> bool:
        """Whether a learning rate is one that this learner may have."""
        if self.desired_kl is None:
            return 0.0 < lr < math.inf
        return MIN_LR <= lr <= MAX_LR

    def _set_lr(self, lr: float) -> None:
        self._optimizer.param_groups[0]["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, except the random generators."""
        return {
            "actor_semantics": actor_semantics(self.actor),
            "loss": self._networks.state_dict(),  # what load_play_actor reads
            "optimizer": adam_moments(self._optimizer),
            "lr": self.lr,
            "update_count": self.update_count,
        }

    def check_state(self, state: Any) -> str:
        """Why this learner cannot load a saved state, or ``""``."""
        if problem := learner_problem(state, self.state_dict(), self._networks, self.actor):
            return problem
        if not self._is_rate(state["lr"]) or state["update_count"] < 0:
            return f"lr {state['lr']} or update_count {state['update_count']} is out of range"
        steps = state["update_count"]
        return moments_problem(state["optimizer"], self._optimizer, steps, "optimizer")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of the same networks; load nothing of another."""
        problem = self.check_state(state)
        if problem:
            raise CheckpointError(f"the state does not fit this learner: {problem}")
        self._networks.load_state_dict(state["loss"])
        load_moments(self._optimizer, state["optimizer"])
        if self.desired_kl is not None:
            self._set_lr(float(state["lr"]))
        self.update_count = int(state["update_count"])


def divergence(out: TensorDictBase) -> torch.Tensor:
    """Kullback-Leibler divergence of the rollout's policy from the present one, in nats.

    The mean of ``ratio - 1 - log(ratio)`` over a minibatch, which is never negative (k3 of
    Schulman, 2020, http://joschu.net/blog/kl-approx.html).

    Args:
        out: a ``ClipPPOLoss``'s.
    """
    return (out["mean_ratio"] - 1.0 + out["kl_approx"]).detach().reshape(())


def adapted_lr(lr: float, kl: float, desired_kl: float) -> float:
    """The learning rate divided by 1.5 if ``kl`` is above twice the desired one, else times 1.5 if
    it is below half.

    A ``kl`` of 0 up to rounding, of a policy that has not moved since the rollout, changes nothing.
    """
    if kl > 2.0 * desired_kl:
        return max(MIN_LR, lr / 1.5)
    if 1e-6 < kl < 0.5 * desired_kl:
        return min(MAX_LR, lr * 1.5)
    return lr
