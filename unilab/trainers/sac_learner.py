"""SAC's update: critics, actor, temperature and target critics, one batch at a time."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl import timeit
from torchrl.objectives import SACLoss, SoftUpdate

from unilab.errors import CheckpointError, ConfigError
from unilab.modules import FlashSACPolicy, actor_semantics
from unilab.modules.layers import check_at_least
from unilab.trainers.ranks import SyncGradients
from unilab.trainers.state_check import (
    adam_moments,
    learner_problem,
    load_moments,
    moments_problem,
    scalars_problem,
)
from unilab.trainers.update_checks import TrainedParameters, check_losses


class SACLearner:
    """Optimises a ``SACLoss`` of TorchRL (SAC, Haarnoja et al., arXiv 1812.05905).

    Every update is a step of the critics; in every ``actor_update_period``-th one, the first
    included, actor and temperature follow. Then the target critics move towards the critics.

    Args:
        loss: over a :class:`~unilab.modules.FlashSACPolicy` and action values; the actor is
            optimised in place. ``loss.make_value_estimator(gamma=...)`` sets its discount.

    Keyword Args:
        lr: Adam's learning rate for actor, critics and temperature.
        actor_update_period: updates of the critics for each of actor and temperature.
        tau: how far the target critics move in an update.
        sync_gradients: called between backward and step, with the parameters and their losses by
            name, e.g. :meth:`~unilab.trainers.Ranks.average_gradients`.
    """

    def __init__(
        self,
        loss: SACLoss,
        *,
        lr: float = 3e-4,
        actor_update_period: int = 1,
        tau: float = 0.005,
        sync_gradients: SyncGradients | None = None,
    ) -> None:
        check_at_least(1, actor_update_period=actor_update_period)
        if not lr > 0.0:
            raise ConfigError(f"lr must be above 0, got {lr}")
        if not 0.0 < tau <= 1.0:
            raise ConfigError(f"tau must be in (0, 1], got {tau}")
        if not isinstance(loss.actor_network, FlashSACPolicy):
            raise ConfigError(
                f"actor_network must be a FlashSACPolicy, got {type(loss.actor_network).__name__}: "
                "it works with any actor of the contract"
            )
        if loss.value_network_params is not None or loss.fixed_alpha:
            raise ConfigError(
                "loss must have no value_network, which SAC has given up, and fixed_alpha=False"
            )
        self.actor = loss.actor_network.actor
        read = dict(loss.actor_network_params.get("actor").flatten_keys(".").items())
        copied = [name for name, value in _tensors(self.actor) if not _same(value, read.get(name))]
        if copied:
            raise ConfigError(
                f"{', '.join(copied)} of the actor must be the tensors that the loss reads: give "
                "networks their device and dtype before the loss is made, not after"
            )
        self.loss = loss
        self.actor_update_period = actor_update_period
        self.update_count = 0
        self._target_update = SoftUpdate(loss, tau=tau)
        self._sync_gradients = sync_gradients
        # SACLoss has its own copies of the critics, one stacked on the other.
        self._networks = nn.ModuleDict(
            {
                "actor": self.actor,  # what load_play_actor reads
                "temperature": nn.ParameterDict({"log_alpha": loss.log_alpha}),
                "critics": loss.qvalue_network_params,
                "target_critics": loss.target_qvalue_network_params,
            }
        )
        self._critic_normalizer = getattr(loss.qvalue_network.module, "normalizer", None)
        if self._critic_normalizer is not None:
            self._networks["critic_normalizer"] = self._critic_normalizer
        self._optimizers = {
            name: torch.optim.Adam(self._networks[name].parameters(), lr=lr, fused=True)
            for name in ("actor", "temperature", "critics")
        }
        self._trained = TrainedParameters(actor=self.actor)
        self._actor_steps = 0
        self._actor_metrics: dict[str, Tensor] = {}

    def update(self, tensordict: TensorDictBase) -> TensorDict:
        """One update on one batch, timed as ``torchrl.timeit("update")``.

        Args:
            tensordict: batch ``[B]`` with the loss's ``in_keys``; with ``steps_to_next_obs`` the
                discount is ``gamma`` to that power. It gets the rows' ``td_error``.

        Returns:
            detached 0-dim metrics: ``loss_qvalue``, ``alpha``; ``loss_actor``, ``loss_alpha``,
            ``entropy`` and ``q_mean``, the mean of the lower critic's values of the policy's
            actions, of the latest actor step.
        """
        self._trained.check(self.update_count)
        with timeit("update"):
            loss_qvalue, info = self.loss.qvalue_v2_loss(tensordict)
            self._minimize(critics=("loss_qvalue", loss_qvalue))
            tensordict.set(self.loss.tensor_keys.priority, info["td_error"])
            if self.update_count % self.actor_update_period == 0:
                self._actor_metrics = self._step_actor(tensordict)
            self._target_update.step()
            self.update_count += 1
            metrics = {
                "loss_qvalue": loss_qvalue.detach(),
                "alpha": self.loss.log_alpha.detach().exp(),
                **self._actor_metrics,
            }
        return TensorDict(metrics)

    def _step_actor(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        alpha = self.loss.log_alpha.detach().exp()
        loss_actor, info = self.loss.actor_loss(tensordict)
        loss_alpha = self.loss.alpha_loss(info["log_prob"]).mean()
        self._minimize(actor=("loss_actor", loss_actor), temperature=("loss_alpha", loss_alpha))
        self.actor.normalize_parameters()
        self._actor_steps += 1
        log_prob = info["log_prob"].mean()
        return {
            "loss_actor": loss_actor.detach(),
            "loss_alpha": loss_alpha.detach(),
            "entropy": -log_prob,
            "q_mean": alpha * log_prob - loss_actor.detach(),  # the loss is the opposite
        }

    def _minimize(self, **losses: tuple[str, Tensor]) -> None:
        """One step of each named optimizer, with the name of its loss and the loss."""
        parameters: list[nn.Parameter] = []
        for name, (_, loss) in losses.items():
            self._optimizers[name].zero_grad(set_to_none=True)
            loss.backward()
            parameters += self._optimizers[name].param_groups[0]["params"]
        named = dict(losses.values())
        if self._sync_gradients is not None:
            self._sync_gradients(parameters, named)
        check_losses(self.update_count, **named)
        for name in losses:
            self._optimizers[name].step()

    @torch.no_grad()
    def update_normalizers(self, data: TensorDictBase) -> None:
        """Add collected observations to the statistics of the networks that normalise them."""
        normalizer = getattr(self.actor, "normalizer", None)
        if normalizer is not None:
            normalizer.update(data.get(self.loss.actor_network.in_keys[0]))
        if self._critic_normalizer is not None:
            self._critic_normalizer.update(data.get(self.loss.qvalue_network.in_keys[0]))
            critics = (self.loss.qvalue_network_params, self.loss.target_qvalue_network_params)
            for name, value in self._critic_normalizer.named_buffers():
                for params in critics:
                    params.get(("module", "normalizer", name)).copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, except the random generators."""
        return {
            "actor_semantics": actor_semantics(self.actor),
            "loss": self._networks.state_dict(),
            "optimizers": {k: adam_moments(adam) for k, adam in self._optimizers.items()},
            "actor_steps": self._actor_steps,
            "actor_metrics": dict(self._actor_metrics),
            "update_count": self.update_count,
        }

    def check_state(self, state: Any) -> str:
        """Why this learner cannot load a saved state, or ``""``."""
        if problem := learner_problem(state, self.state_dict(), self._networks, self.actor):
            return problem
        if set(state["optimizers"]) != set(self._optimizers):
            return "the optimizer of actor, critics or temperature is missing"
        count, actor_steps = state["update_count"], state["actor_steps"]
        if not 0 <= actor_steps <= count:
            return f"actor_steps {actor_steps} do not fit update_count {count}"
        if problem := scalars_problem(state["actor_metrics"], actor_steps):
            return problem
        problems = (
            moments_problem(
                state["optimizers"][name],
                adam,
                count if name == "critics" else actor_steps,
                f"optimizers.{name}",
            )
            for name, adam in self._optimizers.items()
        )
        return next(filter(None, problems), "")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of the same networks; load nothing of another."""
        problem = self.check_state(state)
        if problem:
            raise CheckpointError(f"the state does not fit this learner: {problem}")
        self._networks.load_state_dict(state["loss"])
        for name, adam in self._optimizers.items():
            load_moments(adam, state["optimizers"][name])
        device = self.loss.log_alpha.device
        self._actor_metrics = {k: v.to(device) for k, v in state["actor_metrics"].items()}
        self._actor_steps = int(state["actor_steps"])
        self.update_count = int(state["update_count"])


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and (a.data_ptr(), a.shape) == (b.data_ptr(), b.shape)
