"""One FlashSAC update, in the exact order of the paper."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torchrl.objectives import SoftUpdate

from unilab.errors import ConfigError
from unilab.modules import actor_semantics
from unilab.modules.layers import UnitLinear
from unilab.objectives import FlashSACLoss
from unilab.objectives.functional import learning_rate

__all__ = ["FlashSACLearner"]


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
            else, in bfloat16.
        compile: put the critic's part of the update through ``torch.compile``. Where no compiler is
            usable, the first update warns and all run eagerly.

    Raises:
        ConfigError: a setting out of range.

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
        if amp_dtype not in (None, "bfloat16"):
            raise ConfigError(f"amp_dtype={amp_dtype!r}: expected None or 'bfloat16'")
        for layer in loss.modules():
            if isinstance(layer, UnitLinear):
                layer.matmul_dtype = torch.bfloat16 if amp_dtype else None
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

        self._optimizers = {
            "actor": _ScheduledAdam(loss.actor.parameters(), schedule),
            "alpha": _ScheduledAdam([loss.log_alpha], schedule),
            "critic": _ScheduledAdam(loss.critic.parameters(), schedule),
        }
        self._target_update = SoftUpdate(loss, tau=tau)
        # The critic is most of an update. Compiling the actor's part gained nothing, and leaving it
        # out lets any module that keeps the actor contract take part.
        self._critic_terms = _CompiledOrEager(loss.critic_terms) if compile else loss.critic_terms
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
            self._actor_metrics = self._step_actor(tensordict)
        critic_metrics = self._step_critic(tensordict)
        self.update_count += 1
        return TensorDict({**self._actor_metrics, **critic_metrics, "alpha": self.loss.alpha})

    def _step_actor(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        loss_actor, info = self.loss.actor_loss(tensordict)
        aux = [value for key, value in info.items() if key.startswith("loss_aux_")]
        self._optimizers["actor"].minimize(sum(aux, loss_actor))
        self.loss.actor.normalize_parameters()
        loss_alpha, _ = self.loss.alpha_loss(info["entropy"])
        self._optimizers["alpha"].minimize(loss_alpha)
        metrics = {"loss_actor": loss_actor, "loss_alpha": loss_alpha, **info}
        return {key: value.detach() for key, value in metrics.items()}

    def _step_critic(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        loss_qvalue, info = self._critic_terms(*self.loss.critic_inputs(tensordict))
        self._optimizers["critic"].minimize(loss_qvalue)
        self.loss.critic.normalize_parameters()
        self._target_update.step()
        return {"loss_qvalue": loss_qvalue.detach(), **info}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, except the random generators."""
        return {
            "actor_semantics": actor_semantics(self.loss.actor),
            "loss": self.loss.state_dict(),
            "optimizers": {k: o.adam.state_dict() for k, o in self._optimizers.items()},
            "schedules": {k: o.steps for k, o in self._optimizers.items()},
            "actor_metrics": dict(self._actor_metrics),
            "update_count": self.update_count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned.

        Args:
            state: a learner state of the same networks.
        """
        self.loss.load_state_dict(state["loss"])
        for key, optimizer in self._optimizers.items():
            optimizer.adam.load_state_dict(state["optimizers"][key])
            optimizer.steps = int(state["schedules"][key])
        self._actor_metrics = dict(state["actor_metrics"])
        self.update_count = int(state["update_count"])


class _ScheduledAdam:
    """Adam whose learning rate follows a schedule of its own steps."""

    def __init__(self, params: Any, schedule: Callable[[int], float]) -> None:
        self.schedule = schedule
        self.steps = 0
        self.adam = torch.optim.Adam(list[nn.Parameter](params), lr=schedule(0), fused=True)

    def minimize(self, loss: Tensor) -> None:
        """One step down the gradient of ``loss``."""
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        for group in self.adam.param_groups:
            group["lr"] = self.schedule(self.steps)
        self.adam.step()
        self.steps += 1


class _CompiledOrEager:
    """A compiled function that turns into the plain one, with a warning, if it does not compile."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._eager = function
        # fullgraph: it compiles whole, before anything ran, or it does not. So a failure has
        # moved no running statistics when the plain function takes over.
        self._call = torch.compile(function, fullgraph=True, dynamic=False)

    def __call__(self, *args: Tensor) -> Any:
        try:
            return self._call(*args)
        except TorchDynamoException as error:
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"torch.compile does not work here ({cause}): updates run eagerly, with the same "
                "results. Install a C++ compiler, or pass compile=False to silence this",
                RuntimeWarning,
                stacklevel=4,
            )
            self._call = self._eager
        return self._eager(*args)
