"""One FlashSAC update, in the exact order of the paper."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import SoftUpdate

from unilab.errors import ActorContractError, CheckpointError, ConfigError, NonFiniteError
from unilab.modules import actor_semantics
from unilab.modules.layers import UnitLinear
from unilab.objectives import FlashSACLoss
from unilab.objectives.functional import learning_rate
from unilab.trainers.compilation import (
    CompiledOrEager,
    Step,
    captured,
    matmul_dtype,
    use_cuda_graph,
)
from unilab.trainers.optimizer import ScheduledAdam
from unilab.trainers.state_check import semantics_problem, state_problem

__all__ = ["FlashSACLearner"]

_AUX = "loss_aux_"


class FlashSACLearner:
    """Optimises a :class:`~unilab.objectives.FlashSACLoss` (FlashSAC, arXiv 2604.04539).

    Every ``actor_update_period`` updates the actor and the temperature take a step; then, with
    those, the critic takes one and its target follows.

    Args:
        loss: the loss module; its actor and critic are the instances that are optimised.

    Keyword Args:
        lr: peak learning rate of all three optimizers.
        lr_init: rate at the first step of the warm-up.
        lr_end: rate at the end of the cosine decay.
        warmup_steps: optimizer steps of linear warm-up from ``lr_init`` to ``lr``.
        decay_steps: optimizer steps of cosine decay from ``lr`` to ``lr_end`` after the warm-up;
            each optimizer counts its own steps.
        actor_update_period: updates for each step of actor and temperature.
        tau: rate of the target critic.
        amp_dtype: ``"bfloat16"`` computes the matrix products of the linear layers, and nothing
            else, in bfloat16; ``"auto"`` does so on a CPU with units for it.
        compile: put the critic's part of the update through ``torch.compile``. Where no compiler is
            usable, the first update warns and all run eagerly.
        use_whole_cycle_cuda_graph: capture whole updates as CUDA graphs; None: where the loss lies
            on an NVIDIA device. The built-in actor alone can be captured.
        actor_normalize_parameters: bring the built-in actor back to its norms after each step; an
            actor of another kind always has its ``normalize_parameters`` called.
        sync_gradients: called with the parameters of an optimizer between the gradient and the
            step, e.g. to average the gradients of several processes.

    Raises:
        ConfigError: a setting out of range, or one that the actor or device cannot have.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from unilab.modules import FlashSACActor, FlashSACCritic
        >>> from unilab.objectives import FlashSACLoss
        >>> from unilab.trainers import FlashSACLearner
        >>> loss = FlashSACLoss(FlashSACActor(3, 1), FlashSACCritic(3, 1), gamma=0.97)
        >>> loss.set_keys(critic_obs="obs")
        >>> learner = FlashSACLearner(loss)
        >>> batch = TensorDict({
        ...     "obs": torch.randn(8, 3),
        ...     "action": torch.rand(8, 1),
        ...     ("next", "obs"): torch.randn(8, 3),
        ...     ("next", "reward"): torch.randn(8, 1),
        ...     ("next", "terminated"): torch.zeros(8, 1, dtype=torch.bool),
        ... }, [8])
        >>> sorted(learner.update(batch).keys())
        ['alpha', 'entropy', 'loss_actor', 'loss_alpha', 'loss_qvalue', 'q_mean']
    """

    def __init__(
        self,
        loss: FlashSACLoss,
        *,
        lr: float = 3e-4,
        lr_init: float = 0.0,
        lr_end: float = 1.5e-4,
        warmup_steps: int = 0,
        decay_steps: int = 1_000_000,
        actor_update_period: int = 2,
        tau: float = 0.01,
        amp_dtype: str | None = None,
        compile: bool = False,
        use_whole_cycle_cuda_graph: bool | None = None,
        actor_normalize_parameters: bool = True,
        sync_gradients: Callable[[list[nn.Parameter]], None] | None = None,
    ) -> None:
        if actor_update_period < 1:
            raise ConfigError(f"actor_update_period={actor_update_period}: expected at least 1")
        if not 0.0 < tau <= 1.0:
            raise ConfigError(f"tau={tau}: expected 0 < tau <= 1")
        if not lr > 0.0:
            raise ConfigError(f"lr={lr}: expected a positive learning rate")
        for name, rate in (("lr_init", lr_init), ("lr_end", lr_end)):
            if not rate >= 0.0:
                raise ConfigError(f"{name}={rate}: expected at least 0")
        if warmup_steps < 0:
            raise ConfigError(f"warmup_steps={warmup_steps}: expected at least 0")
        if decay_steps < 1:
            raise ConfigError(f"decay_steps={decay_steps}: expected at least 1")
        custom = actor_semantics(loss.actor)["kind"] == "custom"
        if custom and not actor_normalize_parameters:
            raise ConfigError(
                "actor_normalize_parameters=False with a custom actor: it is an option of the "
                "built-in one; leave it True, and let the actor's normalize_parameters do nothing"
            )
        device = loss.log_alpha.device
        precision = matmul_dtype(amp_dtype, device=device)
        use_graph = use_cuda_graph(use_whole_cycle_cuda_graph, device=device, custom=custom)
        for layer in loss.modules():
            if isinstance(layer, UnitLinear):
                layer.matmul_dtype = precision
        self.loss = loss
        self.actor_update_period = actor_update_period
        self.update_count = 0

        def schedule(step: int) -> float:
            return learning_rate(
                step,
                init=lr_init,
                peak=lr,
                end=lr_end,
                warmup_steps=warmup_steps,
                decay_steps=decay_steps,
            )

        networks = {
            "actor": loss.actor.parameters(),
            "alpha": [loss.log_alpha],
            "critic": loss.critic.parameters(),
        }
        self._optimizers = {
            name: ScheduledAdam(params, schedule, sync_gradients, capturable=use_graph)
            for name, params in networks.items()
        }
        self._target_update = SoftUpdate(loss, tau=tau)
        # The critic is most of an update. Compiling the actor's part gained nothing, and leaving it
        # out lets any module that keeps the actor contract take part.
        self._critic_terms = CompiledOrEager(loss.critic_terms) if compile else loss.critic_terms
        self._normalize_actor = actor_normalize_parameters
        self._use_graph = use_graph
        self._actor_step, self._critic_step = self._steps()
        self._actor_metrics: dict[str, Tensor] = {}

    def update(self, tensordict: TensorDictBase) -> TensorDict:
        """One update on one batch.

        Args:
            tensordict: batch ``[B]`` with the loss's ``in_keys``; rewards already normalised.

        Returns:
            detached 0-dim metrics: ``loss_actor``, ``loss_alpha``, ``loss_aux_<name>``, ``entropy``
            (those of the latest actor step), ``loss_qvalue``, ``q_mean``, ``alpha``. Nothing waits
            for the device.
        """
        if self.update_count % self.actor_update_period == 0:
            self._optimizers["actor"].begin()
            self._optimizers["alpha"].begin()
            self._actor_metrics = self._actor_step(tensordict)
        self._optimizers["critic"].begin()
        critic_metrics = self._critic_step(tensordict)
        self.update_count += 1
        return TensorDict({**self._actor_metrics, **critic_metrics, "alpha": self.loss.alpha})

    def _step_actor(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        loss_actor, info = self.loss.actor_loss(tensordict)
        aux = {key: value for key, value in info.items() if key.startswith(_AUX)}
        self._check_aux(aux)
        self._optimizers["actor"].minimize(sum(aux.values(), loss_actor))
        if self._normalize_actor:
            self.loss.actor.normalize_parameters()
        loss_alpha, _ = self.loss.alpha_loss(info["entropy"])
        self._optimizers["alpha"].minimize(loss_alpha)
        metrics = {"loss_actor": loss_actor, "loss_alpha": loss_alpha, **info}
        return {key: value.detach() for key, value in metrics.items()}

    def _check_aux(self, aux: dict[str, Tensor]) -> None:
        """ADR-0017 C14 and C15, before any parameter moves.

        Raises:
            ActorContractError: not the names of the first update.
            NonFiniteError: a value is NaN or infinite. On an accelerator, where looking would wait
                for the device, this is left to who reads the metrics.
        """
        before = {key for key in self._actor_metrics if key.startswith(_AUX)}
        if self._actor_metrics and set(aux) != before:
            raise ActorContractError(
                f"auxiliary losses changed in update {self.update_count}: appeared "
                f"{_names(set(aux) - before)}, vanished {_names(before - set(aux))}; the actor "
                "must give the same names in every training pass (ADR-0017 C14), with the value 0 "
                "where a loss is off"
            )
        for key, value in aux.items():
            if value.device.type == "cpu" and not value.isfinite():
                raise NonFiniteError(
                    f"auxiliary loss {key.removeprefix(_AUX)!r} is {value.item()} in update "
                    f"{self.update_count}: look for a division or a logarithm in the actor; no "
                    "parameter has moved"
                )

    def _step_critic(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        loss_qvalue, info = self._critic_terms(*self.loss.critic_inputs(tensordict))
        self._optimizers["critic"].minimize(loss_qvalue)
        self.loss.critic.normalize_parameters()
        self._target_update.step()
        return {"loss_qvalue": loss_qvalue.detach(), **info}

    def _steps(self) -> tuple[Step, Step]:
        """The two parts of an update, captured if wanted."""
        if not self._use_graph:
            return self._step_actor, self._step_critic
        return captured(self._step_actor, self.loss), captured(self._step_critic, self.loss)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, except the random generators."""
        return {
            "actor_semantics": actor_semantics(self.loss.actor),
            "loss": self.loss.state_dict(),
            # The rest of an optimizer's state is the configuration's.
            "optimizers": {k: o.adam.state_dict()["state"] for k, o in self._optimizers.items()},
            "schedules": {k: o.steps for k, o in self._optimizers.items()},
            "actor_metrics": dict(self._actor_metrics),
            "update_count": self.update_count,
        }

    def check_state(self, state: Any) -> str:
        """Why a saved state is not this learner's, or ``""``."""
        semantics = state.get("actor_semantics") if isinstance(state, dict) else None
        problem = semantics_problem(semantics, actor_semantics(self.loss.actor))
        problem = problem or state_problem(state, self.state_dict(), "learner")
        if problem:
            return problem
        # The one buffer that is a setting: with the checkpoint's the run would not have its own.
        support = state["loss"]["critic.support"]
        mine = self.loss.critic.support
        if not torch.equal(support.to(mine), mine):
            ends, own = (f"v_min={t[0]:g}, v_max={t[-1]:g}" for t in (support, mine))
            return f"the critic's support is that of {ends} in the checkpoint, of {own} here"
        counts = {"update_count": state["update_count"], **state["schedules"]}
        if min(counts.values()) < 0:
            return f"learner counts are {counts}: expected at least 0"
        moments = state["optimizers"]
        problems = (o.check_state(moments.get(k, {})) for k, o in self._optimizers.items())
        return next(filter(None, problems), "")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned.

        Args:
            state: a learner state of the same networks.

        Raises:
            CheckpointError: it is of another actor or of other networks; nothing was loaded.
        """
        problem = self.check_state(state)
        if problem:
            raise CheckpointError(f"this state is not of this learner: {problem}")
        self.loss.load_state_dict(state["loss"])
        for key, optimizer in self._optimizers.items():
            groups = optimizer.adam.state_dict()["param_groups"]
            optimizer.adam.load_state_dict(
                # A copy: Adam would go on with the very tensors that it is given.
                {"state": copy.deepcopy(state["optimizers"][key]), "param_groups": groups}
            )
            optimizer.steps = int(state["schedules"][key])
        self._actor_metrics = dict(state["actor_metrics"])
        self.update_count = int(state["update_count"])
        # What was captured before reads the tensors that the optimizers held then.
        self._actor_step, self._critic_step = self._steps()


def _names(keys: set[str]) -> str:
    return ", ".join(repr(key.removeprefix(_AUX)) for key in sorted(keys)) or "none"
