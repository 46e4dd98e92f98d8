"""FlashSAC's update, in the order of the paper."""

from __future__ import annotations

import inspect
import time
import warnings
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torchrl import timeit
from torchrl.objectives import SoftUpdate

from unilab.errors import ActorContractError, CheckpointError, ConfigError
from unilab.modules import actor_semantics
from unilab.modules.actor_contract import validate_unbuilt
from unilab.modules.layers import check_at_least
from unilab.objectives import FlashSACLoss
from unilab.objectives.functional import learning_rate
from unilab.trainers.compilation import (
    CompiledOrEager,
    Step,
    capture,
    matmul_dtype,
    product_precision,
    use_cuda_graph,
)
from unilab.trainers.ranks import SyncGradients
from unilab.trainers.slow_updates import SlowUpdates
from unilab.trainers.state_check import (
    adam_moments,
    learner_problem,
    load_moments,
    moments_problem,
    scalars_problem,
)
from unilab.trainers.update_checks import TrainedParameters, check_losses

_AUX = "loss_aux_"
_LOOK_INTERVAL, _MOST_CLIPPED = 1000, 0.25  # updates; share of the target's mass


class FlashSACLearner:
    """Optimises a :class:`~unilab.objectives.FlashSACLoss` (FlashSAC, arXiv 2604.04539).

    Every ``actor_update_period`` updates, actor and temperature take a step first; then the critic
    takes one and its target follows.

    Args:
        loss: the loss module; its actor and critic are optimised in place. Its ``actor_loss``,
            ``alpha_loss`` and ``qvalue_loss`` are called, a subclass's too.

    Keyword Args:
        lr_init: rate at the first step of the warm-up.
        warmup_steps, decay_steps: as ``lr_warmup_steps`` and ``lr_decay_steps``; each optimizer
            counts its own steps.
        sync_gradients: called between backward and step, with the parameters and their losses by
            name, e.g. :meth:`~unilab.trainers.Ranks.average_gradients`.

    All others are those of :class:`~unilab.conf.flashsac.FlashSACParamsCfg`.
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
        allow_tf32: bool = False,
        compile: bool = False,
        use_whole_cycle_cuda_graph: bool | None = None,
        actor_normalize_parameters: bool = True,
        sync_gradients: SyncGradients | None = None,
    ) -> None:
        check_at_least(1, actor_update_period=actor_update_period, decay_steps=decay_steps)
        check_at_least(0, warmup_steps=warmup_steps, lr_init=lr_init, lr_end=lr_end)
        if not lr > 0.0:
            raise ConfigError(f"lr must be above 0, got {lr}")
        if not 0.0 < tau <= 1.0:
            raise ConfigError(f"tau must be in (0, 1], got {tau}")
        if inspect.unwrap(type(loss).forward) is not inspect.unwrap(FlashSACLoss.forward):
            raise ConfigError(
                f"forward of {type(loss).__name__} must be FlashSACLoss's, because the learner "
                "does not call it: override actor_loss, alpha_loss or qvalue_loss"
            )
        custom = actor_semantics(loss.actor)["kind"] == "custom"
        if custom and not actor_normalize_parameters:
            raise ConfigError(
                "actor_normalize_parameters must be True with a custom actor: let its "
                "normalize_parameters do nothing instead"
            )
        validate_unbuilt(loss.actor)
        device = loss.log_alpha.device
        dtype = matmul_dtype(amp_dtype, device=device)
        use_graph = use_cuda_graph(use_whole_cycle_cuda_graph, device=device, custom=custom)
        self.loss = loss
        self._precision = partial(product_precision, loss, dtype, allow_tf32=allow_tf32)
        self.actor_update_period = actor_update_period
        self.update_count = 0
        self._on_cpu, self._slow_updates = device.type == "cpu", SlowUpdates()
        self._sync_gradients = sync_gradients
        self._rate = partial(
            learning_rate,
            init=lr_init,
            peak=lr,
            end=lr_end,
            warmup_steps=warmup_steps,
            decay_steps=decay_steps,
        )
        parameters = {
            "actor": list(loss.actor.parameters()),
            "alpha": [loss.log_alpha],
            "critic": list(loss.critic.parameters()),
        }
        trained = {id(p) for group in parameters.values() for p in group}
        self._trained = TrainedParameters(actor=loss.actor, critic=loss.critic)
        own = [k for k, p in loss.named_parameters() if p.requires_grad and id(p) not in trained]
        if own:
            raise ConfigError(
                f"parameters of {type(loss).__name__} must be the actor's or the critic's, got "
                f"{', '.join(own)}, which no optimizer trains: give them to a custom actor with "
                "aux_losses, or freeze them with requires_grad_(False)"
            )
        # LambdaLR multiplies 1 by the rate; a captured step reads the product from the device.
        self._optimizers = {
            name: torch.optim.Adam(
                params,
                lr=torch.ones((), device=device) if use_graph else 1.0,
                fused=True,
                capturable=use_graph,
            )
            for name, params in parameters.items()
        }
        self._schedules = {
            name: LambdaLR(adam, self._rate) for name, adam in self._optimizers.items()
        }
        self._target_update = SoftUpdate(loss, tau=tau)
        loss.__dict__.pop("critic_terms", None)  # an earlier learner's
        if compile:
            # The critic is most of an update. Compiling the actor's part gained nothing, and
            # without it any actor of the contract works.
            loss.__dict__["critic_terms"] = CompiledOrEager(loss.critic_terms)
        self._normalize_actor = actor_normalize_parameters
        self._use_graph = use_graph
        self._looks_clipped, self._warned = 0, False
        self._actor_step, self._critic_step = self._steps()
        self._actor_metrics: dict[str, Tensor] = {}
        # Optimizers whose step of the present update is made; set only after an error in it.
        self._stepped = {"actor": False, "alpha": False}

    def update(self, tensordict: TensorDictBase) -> TensorDict:
        """One update on one batch, timed as ``torchrl.timeit("update")``.

        An error about the batch, the actor's forward pass in training, its losses or
        ``sync_gradients`` of the actor's step comes before anything has moved, but for random
        generators and statistics that the networks' own forward passes move. After a later error
        (in the critic's step, or of an actor that fails with ``training=False``) the actor's step
        of this update is done: the next call does not repeat it, but makes the critic's. Once the
        critic's optimizer has stepped the update counts as made, even if what follows it raises.

        Args:
            tensordict: batch ``[B]`` with the loss's ``in_keys``; rewards already normalised. It
                gets the rows' ``td_error``.

        Returns:
            detached 0-dim metrics: ``loss_actor``, ``loss_alpha``, ``loss_aux_<name>``, ``entropy``
            (of the latest actor step), ``loss_qvalue``, ``q_mean``, ``q_clipped``, ``alpha``. The
            device is not synchronised, but for a look at ``q_clipped`` in every 1000th update.
        """
        began = time.perf_counter()
        self._trained.check(self.update_count)
        with timeit("update"), self._precision():
            self.loss.check_batch(tensordict)
            is_due = self.update_count % self.actor_update_period == 0
            if is_due and not all(self._stepped.values()):
                self._actor_metrics = self._actor_step(tensordict)
                if self._use_graph:
                    self._count_steps("actor", "alpha")
            critic_metrics = self._critic_step(tensordict)
            if self._use_graph:
                self._count_steps("critic")
            self.loss.write_priority(tensordict, critic_metrics)
            if self.update_count % _LOOK_INTERVAL == 0 and "q_clipped" in critic_metrics:
                self._check_clipped(critic_metrics["q_clipped"].item())
            metrics = {**self._actor_metrics, **critic_metrics, "alpha": self.loss.alpha}
        if self._on_cpu:
            self._slow_updates.add(time.perf_counter() - began)
        return TensorDict(metrics)

    def _check_clipped(self, share: float) -> None:
        """Warns once, when two looks in a row find much of the target's mass clipped."""
        self._looks_clipped = self._looks_clipped + 1 if share > _MOST_CLIPPED else 0
        if self._looks_clipped == 2 and not self._warned:
            self._warned = True
            v_min, *_, v_max = self.loss.critic.support.tolist()
            warnings.warn(
                f"{share:.0%} of the target's mass (q_clipped) is beyond the critic's support "
                f"[{v_min:g}, {v_max:g}] and clipped to it: scale rewards with "
                "unilab.data.RewardNormalizer, or give the critic another v_min and v_max",
                RuntimeWarning,
                stacklevel=3,
            )

    def _step_actor(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        loss_actor, info = self.loss.loss_and_metrics("actor_loss", tensordict)
        aux = {key: value for key, value in info.items() if key.startswith(_AUX)}
        loss_alpha, _ = self.loss.loss_and_metrics("alpha_loss", info["entropy"])
        losses = {"loss_actor": loss_actor, "loss_alpha": loss_alpha, **aux}
        metrics = _detached({**losses, **info})
        self._minimize(losses, actor=sum(aux.values(), loss_actor), alpha=loss_alpha)
        self._actor_metrics = metrics
        if self._normalize_actor:
            self.loss.actor.normalize_parameters()
        return metrics

    def _check_losses(self, losses: dict[str, Tensor]) -> None:
        """C14: auxiliary losses keep their names; and all are finite."""
        aux, before = (
            {k for k in of if k.startswith(_AUX)} for of in (losses, self._actor_metrics)
        )
        if self._actor_metrics and "loss_actor" in losses and aux != before:
            raise ActorContractError(
                f"aux losses must keep their names (ADR-0017 C14), but in update "
                f"{self.update_count} appeared {_names(aux - before)} and vanished "
                f"{_names(before - aux)}: return 0 for a loss that is off"
            )
        check_losses(self.update_count, **losses)

    def _step_critic(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        loss_qvalue, info = self.loss.loss_and_metrics("qvalue_loss", tensordict)
        self._minimize({"loss_qvalue": loss_qvalue}, critic=loss_qvalue)
        self.loss.critic.normalize_parameters()
        self._target_update.step()
        return _detached({"loss_qvalue": loss_qvalue, **info})

    def _minimize(self, losses: dict[str, Tensor], **totals: Tensor) -> None:
        """One step of each named optimizer; none before all gradients are there."""
        parameters: list[nn.Parameter] = []
        for name, total in totals.items():
            self._optimizers[name].zero_grad(set_to_none=True)
            total.backward()
            parameters += self._optimizers[name].param_groups[0]["params"]
        if self._sync_gradients is not None:
            self._sync_gradients(parameters, losses)
        self._check_losses(losses)
        for name in totals:
            if not self._stepped.get(name):
                self._optimizers[name].step()
                if not self._use_graph:  # whose replays run no Python
                    self._count_steps(name)

    def _count_steps(self, *names: str) -> None:
        """Directly after a step, so that an error in what follows it leaves counts that agree."""
        for name in names:
            self._schedules[name].step()
        if "critic" in names:
            self.update_count += 1
        for key in self._stepped:
            self._stepped[key] = "critic" not in names and (self._stepped[key] or key in names)

    def _steps(self) -> tuple[Step, Step]:
        """The two parts of an update, captured if wanted."""
        if not self._use_graph:
            return self._step_actor, self._step_critic
        return capture(self._step_actor, self.loss), capture(self._step_critic, self.loss)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, except the random generators."""
        return {
            "actor_semantics": actor_semantics(self.loss.actor),
            "loss": self.loss.state_dict(),
            # The rest of an optimizer's state comes from the configuration.
            "optimizers": {k: adam_moments(adam) for k, adam in self._optimizers.items()},
            "schedules": {k: schedule.last_epoch for k, schedule in self._schedules.items()},
            "actor_metrics": dict(self._actor_metrics),
            "update_count": self.update_count,
            "stepped": dict(self._stepped),
        }

    def check_state(self, state: Any) -> str:
        """Why this learner cannot load a saved state, or ``""``."""
        if isinstance(state, dict):
            state = _with_stepped(state)
        if problem := learner_problem(state, self.state_dict(), self.loss, self.loss.actor):
            return problem
        # The support is a buffer and a setting: loading it would overrule the configuration.
        support = state["loss"]["critic.support"]
        mine = self.loss.critic.support
        if not torch.equal(support.to(mine), mine):
            saved, own = (f"v_min={t[0]:g}, v_max={t[-1]:g}" for t in (support, mine))
            return f"the critic's support has {saved} in the checkpoint, {own} here"
        steps, count = state["schedules"], state["update_count"]
        if set(steps) != set(self._schedules) or set(state["optimizers"]) != set(self._optimizers):
            return "the optimizer or schedule of actor, alpha or critic is missing"
        actor, alpha = (steps[name] - state["stepped"][name] for name in ("actor", "alpha"))
        if min(steps.values()) < 0 or steps["critic"] != count or actor != alpha or actor < 0:
            return f"schedules {steps} do not fit update_count {count}"
        if problem := scalars_problem(state["actor_metrics"], steps["alpha"]):
            return problem
        problems = (
            moments_problem(state["optimizers"][name], adam, steps[name], f"optimizers.{name}")
            for name, adam in self._optimizers.items()
        )
        return next(filter(None, problems), "")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of the same networks; load nothing of another."""
        problem = self.check_state(state)
        if problem:
            raise CheckpointError(f"the state does not fit this learner: {problem}")
        self.loss.load_state_dict(state["loss"])
        for name, adam in self._optimizers.items():
            load_moments(adam, state["optimizers"][name])
            steps = int(state["schedules"][name])
            self._schedules[name] = LambdaLR(adam, self._rate, last_epoch=steps - 1)
        device = self.loss.log_alpha.device
        self._actor_metrics = {k: v.to(device) for k, v in state["actor_metrics"].items()}
        self.update_count = int(state["update_count"])
        self._stepped = dict(_with_stepped(state)["stepped"])
        # A captured graph reads the tensors that the optimizers held before.
        self._actor_step, self._critic_step = self._steps()


def _with_stepped(state: dict[str, Any]) -> dict[str, Any]:
    """A saved state with the entry that earlier versions did not write."""
    return {"stepped": {"actor": False, "alpha": False}, **state}


def _detached(metrics: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).detach() for name, value in metrics.items()}


def _names(keys: set[str]) -> str:
    return ", ".join(repr(key.removeprefix(_AUX)) for key in sorted(keys)) or "none"
