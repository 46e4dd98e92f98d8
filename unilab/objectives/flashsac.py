"""FlashSAC as a TorchRL loss module."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.objectives import LossModule
from torchrl.objectives.utils import hold_out_net

from unilab.errors import ConfigError
from unilab.modules import (
    FlashSACActor,
    FlashSACCritic,
    FlashSACPolicy,
    action_range,
    actor_semantics,
)
from unilab.modules.actor_calls import forward_outputs
from unilab.modules.layers import check_input
from unilab.objectives import functional as F


class FlashSACLoss(LossModule):
    """Actor, temperature and distributional critic losses of FlashSAC (arXiv 2604.04539).

    Args:
        actor: an actor of the FlashSAC contract, e.g. :class:`~unilab.modules.FlashSACActor`.
        critic: the critic ensemble; the target critic is a copy of it.

    Keyword Args:
        gamma: discount of one step.
        target_entropy: entropy in nats of the actor's own actions that the temperature steers to;
            by default :func:`~unilab.objectives.functional.target_entropy`.
        target_entropy_sigma: standard deviation of that default, in actions scaled to [-1, 1].
        action_spec: bounded actions ``[*, A]``, the range of a custom actor. The built-in actor
            knows its own; without either the range is taken to be [-1, 1].
        alpha_init: initial temperature.
        min_alpha, max_alpha: bounds of the temperature; none by default.
        bc_alpha: weight of the behaviour-cloning term of the actor's loss, a squared distance of
            actions scaled to [-1, 1].

    Minimise the sum of the ``loss_*`` entries: each parameter gets the gradient of its own loss
    only. ``SoftUpdate(loss, tau=0.01)`` moves the target critic's parameters; the target keeps its
    own running statistics. Call :meth:`normalize_parameters` after each optimizer step, and scale
    rewards so that returns fit the critic's support (:class:`~unilab.data.RewardNormalizer`): the
    target is clipped to it, and ``q_clipped`` is the share of its mass that was beyond. Without
    TensorDict, pass the batch as keyword arguments (``next_reward=...``); the outputs come in the
    order of ``out_keys``.

    With prioritised replay, rows are weighted by ``priority_weight``, and ``td_error`` is written
    into the batch for ``buffer.update_tensordict_priority(batch)``. A subclass may override
    :meth:`actor_loss`, :meth:`alpha_loss` and :meth:`qvalue_loss`, which :meth:`forward` and
    :class:`~unilab.trainers.FlashSACLearner` call.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from unilab.modules import FlashSACActor, FlashSACCritic
        >>> from unilab.objectives import FlashSACLoss
        >>> n_obs, n_critic, n_act, batch = 45, 60, 12, [8]
        >>> actor = FlashSACActor(n_obs, n_act)
        >>> critic = FlashSACCritic(n_critic, n_act)
        >>> loss = FlashSACLoss(actor, critic, gamma=0.97)
        >>> data = TensorDict({
        ...     "obs": torch.randn(*batch, n_obs),
        ...     "critic": torch.randn(*batch, n_critic),
        ...     "action": torch.rand(*batch, n_act) * 2 - 1,
        ...     ("next", "obs"): torch.randn(*batch, n_obs),
        ...     ("next", "critic"): torch.randn(*batch, n_critic),
        ...     ("next", "reward"): torch.randn(*batch, 1),
        ...     ("next", "done"): torch.zeros(*batch, 1, dtype=torch.bool),
        ...     ("next", "terminated"): torch.zeros(*batch, 1, dtype=torch.bool),
        ... }, batch)
        >>> out = loss(data)
        >>> sorted(key for key in out.keys() if key.startswith("loss_"))
        ['loss_actor', 'loss_alpha', 'loss_qvalue']
        >>> sum(out[key] for key in out.keys() if key.startswith("loss_")).backward()

        An environment without ``critic`` observations names ``obs`` for both networks:

        >>> loss = FlashSACLoss(actor, FlashSACCritic(n_obs, n_act), gamma=0.97)
        >>> loss.set_keys(critic_obs="obs")
    """

    @dataclass
    class _AcceptedKeys:
        """Configurable keys of the input TensorDict and their defaults.

        Attributes:
            obs: the actor's observation.
            critic_obs: the critic's observation.
            action: the action taken.
            reward: reward, under ``"next"``.
            done: end of episode, under ``"next"``; accepted for TorchRL's trainers, not read.
            terminated: end of the bootstrap, under ``"next"``.
            steps_to_next_obs: steps from ``obs`` to ``("next", obs)``, as MultiStep writes them;
                1 where the batch has none.
            priority: output ``[B]``, how far the critics' values are from the target's, the larger
                of the ensemble's.
            priority_weight: weights of the rows, as prioritised buffers write them; 1 where the
                batch has none.
        """

        obs: NestedKey = "obs"
        critic_obs: NestedKey = "critic"
        action: NestedKey = "action"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"
        steps_to_next_obs: NestedKey = "steps_to_next_obs"
        priority: NestedKey = "td_error"
        priority_weight: NestedKey = "priority_weight"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    out_keys: ClassVar[list[str]] = [
        "loss_actor",
        "loss_qvalue",
        "loss_alpha",
        "alpha",
        "entropy",
        "q_mean",
        "q_clipped",
    ]

    actor: Any  # a module of the actor contract
    critic: FlashSACCritic
    _half_range: Tensor
    _target_critic: FlashSACCritic

    def __init__(
        self,
        actor: nn.Module,
        critic: FlashSACCritic,
        *,
        gamma: float = 0.99,
        target_entropy: float | None = None,
        target_entropy_sigma: float = 0.15,
        action_spec: TensorSpec | None = None,
        alpha_init: float = 0.01,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        bc_alpha: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(critic, FlashSACCritic):
            raise ConfigError(
                f"critic must be a FlashSACCritic, got {type(critic).__name__}: the actor comes "
                "first"
            )
        if not 0.0 < gamma <= 1.0:
            raise ConfigError(f"gamma must be in (0, 1], got {gamma}")
        if not 0.0 < alpha_init < math.inf:
            raise ConfigError(f"alpha_init must be above 0 and finite, got {alpha_init}")
        if min_alpha is not None and not 0.0 < min_alpha <= alpha_init:
            raise ConfigError(f"min_alpha must be in (0, alpha_init={alpha_init}], got {min_alpha}")
        if max_alpha is not None and not alpha_init <= max_alpha:
            raise ConfigError(
                f"max_alpha must be at least alpha_init={alpha_init}, got {max_alpha}"
            )
        if target_entropy is not None and not math.isfinite(target_entropy):
            raise ConfigError(f"target_entropy must be finite, got {target_entropy}")
        if not 0.0 < target_entropy_sigma < math.inf:
            raise ConfigError(
                f"target_entropy_sigma must be above 0 and finite, got {target_entropy_sigma}"
            )
        if not 0.0 <= bc_alpha < math.inf:
            raise ConfigError(f"bc_alpha must be at least 0 and finite, got {bc_alpha}")
        width = actor_semantics(actor)["action_dim"]
        if width not in (critic.action_dim, None):
            raise ConfigError(
                "action_dim must be the same for actor and critic, got "
                f"{width} and {critic.action_dim}"
            )
        in_actor = {id(parameter) for parameter in actor.parameters()}
        shared = [name for name, p in critic.named_parameters() if id(p) in in_actor]
        if shared:
            raise ConfigError(
                "critic must share no parameters with the actor, whose optimizer would move them "
                f"too, got {', '.join(shared)}: give each network its own copy"
            )
        self.gamma = gamma
        self.bc_alpha = bc_alpha
        self._log_alpha_bounds = [a and math.log(a) for a in (min_alpha, max_alpha)]
        half_range = torch.ones(critic.action_dim)
        if isinstance(actor, FlashSACActor):
            half_range = actor.action_scale.detach().cpu()
        elif action_spec is not None:
            low, high = (torch.tensor(ends) for ends in action_range(action_spec).values())
            half_range = 0.5 * (high - low)
        if half_range.shape != (critic.action_dim,):
            raise ConfigError(
                f"action_spec must have {critic.action_dim} actions, as the critic, got "
                f"{half_range.numel()}"
            )
        if target_entropy is None:
            target_entropy = F.target_entropy(critic.action_dim, target_entropy_sigma, half_range)
        self.target_entropy = target_entropy
        self.actor = actor
        self.critic = critic
        # LossModule keeps a name that starts with "_target" out of parameters().
        self._target_critic = deepcopy(critic).requires_grad_(False)
        # TargetNetUpdater looks for a child of this name and then reads the property below.
        self._modules["target_critic_params"] = nn.Module()
        self._has_update_associated["critic"] = False
        like = critic.support
        self.register_buffer("_half_range", half_range.to(like), persistent=False)
        self.log_alpha = nn.Parameter(
            torch.tensor(math.log(alpha_init), device=like.device, dtype=like.dtype)
        )

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> None:
        """Refused: FlashSAC has its own target. Other losses take ``gamma`` here."""
        raise ConfigError(
            "FlashSACLoss has no value estimator: leave make_value_estimator out and pass gamma to "
            "FlashSACLoss(...)"
        )

    @property
    def actor_network(self) -> FlashSACPolicy:
        """The rollout policy over the actor, which TorchRL's SACTrainer sends to collectors."""
        keys = self.tensor_keys
        return FlashSACPolicy(self.actor, obs_key=keys.obs, action_key=keys.action)

    @property
    def target_critic(self) -> FlashSACCritic:
        """The slowly moving copy of the critic, with its own running statistics."""
        return self._target_critic

    @property
    def critic_params(self) -> TensorDict:
        """The critic's live parameters (no buffers), as TargetNetUpdater reads them."""
        return TensorDict(dict(self.critic.named_parameters()))

    @property
    def target_critic_params(self) -> TensorDict:
        """The target critic's live parameters (no buffers), as TargetNetUpdater moves them."""
        return TensorDict(dict(self._target_critic.named_parameters()))

    @property
    def alpha(self) -> Tensor:
        """The temperature, 0-dim and detached."""
        log_alpha = self.log_alpha.detach()
        if self._log_alpha_bounds != [None, None]:
            log_alpha.clamp_(*self._log_alpha_bounds)  # the parameter itself, as TorchRL's SACLoss
        return log_alpha.exp()

    @property
    def in_keys(self) -> list[NestedKey]:
        """The entries that a batch must have."""
        keys = self.tensor_keys
        now = (keys.obs, keys.critic_obs, keys.action)
        following = (keys.obs, keys.critic_obs, keys.reward, keys.terminated)
        return list(dict.fromkeys((*now, *map(_under_next, following))))

    def normalize_parameters(self) -> None:
        """Bring actor and critic back to their unit norms, in place; not the target."""
        self.actor.normalize_parameters()
        self.critic.normalize_parameters()

    # Here and not at forward, where a subclass would lose it.
    @dispatch
    def __call__(self, tensordict: TensorDictBase) -> TensorDict:
        """:meth:`forward`, also with the batch as keyword arguments."""
        return super().__call__(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """All three losses on one batch, before any parameter moves.

        Args:
            tensordict: batch ``[B]`` with :attr:`in_keys`; gets the rows' ``td_error``.

        Returns:
            0-dim ``loss_actor``, ``loss_qvalue``, ``loss_alpha``, ``loss_aux_<name>`` for each of
            the actor's auxiliary losses, ``alpha``, ``entropy``, ``q_mean``, ``q_clipped``.
        """
        loss_actor, actor_info = self.loss_and_metrics("actor_loss", tensordict)
        loss_alpha, _ = self.loss_and_metrics("alpha_loss", actor_info["entropy"])
        loss_qvalue, critic_info = self.loss_and_metrics("qvalue_loss", tensordict)
        self.write_priority(tensordict, critic_info)
        return TensorDict(
            {
                "loss_actor": loss_actor,
                "loss_qvalue": loss_qvalue,
                "loss_alpha": loss_alpha,
                "alpha": self.alpha,
                **actor_info,
                **critic_info,
            }
        )

    def loss_and_metrics(self, name: str, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and metrics of :meth:`actor_loss`, :meth:`alpha_loss` or :meth:`qvalue_loss`."""
        result = getattr(self, name)(batch)
        method = f"{name} of {type(self).__name__}"
        match result:
            case (Tensor() as loss, dict() as metrics):
                if name == "actor_loss" and "entropy" not in metrics:
                    raise ConfigError(
                        f"{method} must return 'entropy' in its metrics, got {list(metrics)}: the "
                        "temperature's loss needs it"
                    )
                return loss, metrics
        raise ConfigError(
            f"{method} must return a loss and a dict of metrics, got {type(result).__name__}: "
            "return (loss, metrics)"
        )

    def write_priority(self, tensordict: TensorDictBase, critic_info: dict[str, Tensor]) -> None:
        """Move ``td_error`` from the metrics of :meth:`qvalue_loss` into the batch."""
        if "td_error" in critic_info:
            tensordict.set(self.tensor_keys.priority, critic_info.pop("td_error"))

    def check_batch(self, tensordict: TensorDictBase) -> None:
        """Refuse a batch that a loss or the learner cannot use, before any loss has run.

        Looks at entries, shapes, dtypes and devices, not at values.
        """
        keys, like = self.tensor_keys, self.critic.support
        batch = {key: self._read(tensordict, key) for key in self.in_keys}
        obs, next_obs = batch[keys.obs], batch[_under_next(keys.obs)]
        critic_obs = batch[keys.critic_obs], batch[_under_next(keys.critic_obs)]
        _check_same_shape(f"{keys.obs!r} and {_under_next(keys.obs)!r}", obs, next_obs)
        for when, value in zip(("", "next "), critic_obs, strict=True):
            check_input(f"{when}critic observation", value, self.critic.obs_dim, like.dtype)
        check_input("action", batch[keys.action], self.critic.action_dim, like.dtype)
        rows = len(obs)
        if not rows:
            raise ConfigError("the batch must have rows, got 0: sample at least one")
        singles = [_under_next(keys.reward), _under_next(keys.terminated)]
        for key in (keys.steps_to_next_obs, keys.priority_weight):
            if (value := tensordict.get(key, None)) is not None:
                singles.append(key)
                batch[key] = value
        for key, value in batch.items():
            if len(value) != rows or (key in singles and value.numel() != rows):
                one = "one number for each" if key in singles else "all"
                raise ConfigError(
                    f"{key!r} must have {one} of {rows} rows, got shape {list(value.shape)}"
                )
            if key in singles and value.is_complex():
                raise ConfigError(f"{key!r} must be real, got {value.dtype}: pass its .real")
            if value.device != like.device:
                raise ConfigError(
                    f"{key!r} must be on {like.device} as the critic, got {value.device}: move the "
                    "batch with batch.to(device)"
                )
        if tensordict.is_locked:
            raise ConfigError(
                f"the batch must be unlocked, because it gets {keys.priority!r}: use batch.copy()"
            )

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the actor; the critic is frozen.

        Returns:
            the 0-dim loss, and ``entropy`` plus a ``loss_aux_<name>`` for each auxiliary loss,
            which belong to the actor's objective too.
        """
        keys = self.tensor_keys
        critic_obs, action_data = (
            self._read(tensordict, k) for k in (keys.critic_obs, keys.action)
        )
        rows, weight = critic_obs.shape[0], self._weight(tensordict)
        both = self._read_both(tensordict, keys.obs)
        actions, log_probs, aux = self._act(both, training=True)
        action, log_prob = actions[:rows], log_probs[:rows]
        with hold_out_net(self.critic):
            q = self.critic.value(self.critic(critic_obs, action, training=False)).amin(0)
        loss = _mean(self.alpha * log_prob - q, weight)
        if self.bc_alpha:
            apart = (action - action_data) / self._half_range
            imitation = _mean(apart.square().mean(-1), weight)
            loss = loss + self.bc_alpha * q.detach().abs().mean() * imitation
        return loss, {
            "entropy": -_mean(log_prob.detach(), weight),
            **{f"loss_aux_{name}": value for name, value in aux.items()},
        }

    def _act(self, obs: Tensor, training: bool) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Actions ``[B, A]``, log_prob ``[B]`` and auxiliary losses; does not sync the device."""
        return forward_outputs(
            self.actor,
            self.actor(obs, training=training),
            training=training,
            rows=obs.shape[0],
            action_dim=self.critic.action_dim,
            like=self.critic.support,
        )

    def alpha_loss(self, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the temperature, ``alpha * (entropy - target_entropy)``, and ``alpha``."""
        alpha = self.log_alpha.exp()
        return alpha * (entropy.detach() - self.target_entropy), {"alpha": alpha.detach()}

    def qvalue_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of the critic to the projected target distribution.

        Returns:
            the 0-dim loss, and ``q_mean``, the mean value over ensemble and rows; ``q_clipped``,
            the share of the target's mass that was beyond the support; ``td_error`` ``[B]``.
        """
        return self.critic_terms(*self.critic_inputs(tensordict))

    @torch.no_grad()
    def critic_inputs(self, tensordict: TensorDictBase) -> tuple[Tensor, ...]:
        """The arguments of :meth:`critic_terms`: the batch and the actor's next actions.

        Custom actors and random draws stay on this side, so that the other side is pure tensor
        code that compiles as a whole.
        """
        keys = self.tensor_keys
        action = self._read(tensordict, keys.action)
        next_obs, reward, terminated = (
            self._read(tensordict, _under_next(k)) for k in (keys.obs, keys.reward, keys.terminated)
        )
        rows = reward.shape[0]
        reward = reward.to(self.critic.support.dtype)
        steps = tensordict.get(keys.steps_to_next_obs, None)
        if steps is None:
            discount = reward.new_full((rows,), self.gamma)
        else:
            discount = self.gamma ** steps.reshape(rows).to(reward.dtype)
        next_action, log_prob, _ = self._act(next_obs, training=False)
        entropy_bonus = -self.alpha * log_prob
        weight = self._weight(tensordict)
        return (
            self._read_both(tensordict, keys.critic_obs),
            _joined("actions of the batch and of the actor", action, next_action),
            reward.reshape(rows),
            terminated.reshape(rows),
            discount,
            entropy_bonus,
            *(() if weight is None else (weight,)),
        )

    def critic_terms(
        self,
        critic_obs: Tensor,
        action: Tensor,
        reward: Tensor,
        terminated: Tensor,
        discount: Tensor,
        entropy_bonus: Tensor,
        weight: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss as a pure function of tensors.

        Args:
            critic_obs: ``[2B, Oc]`` critic observations, then next critic observations.
            action: ``[2B, A]`` actions, then the actor's next actions.
            reward: ``[B]`` rewards.
            terminated: ``[B]`` bool.
            discount: ``[B]``, ``gamma ** n``.
            entropy_bonus: ``[B]``, ``-alpha * log_prob`` of the next actions.
            weight: ``[B]`` weights of the rows; None weighs all the same.

        Returns:
            as :meth:`qvalue_loss`.
        """
        rows = reward.shape[0]
        support = self.critic.support
        with torch.no_grad():
            next_log_p = self._target_critic(
                critic_obs, action, training=True, rows=slice(rows, None)
            )
            # [B]: the member with the smaller value of each row
            member = self._target_critic.value(next_log_p).argmin(0)
            next_p = next_log_p.exp()[member, torch.arange(rows, device=member.device)]
            bellman = (reward, terminated, entropy_bonus, support, discount)
            target = F.project_distribution(F.target_support(*bellman), next_p, support)
        log_p = self.critic(critic_obs, action, training=True, rows=slice(rows))
        loss = _mean(F.cross_entropy(target, log_p), weight)
        q = self.critic.value(log_p.detach())
        return loss, {
            "q_mean": q.mean(),
            "q_clipped": F.clipped_mass(next_p, *bellman).mean(),
            "td_error": (q - target @ support).abs().amax(0),
        }

    def _weight(self, tensordict: TensorDictBase) -> Tensor | None:
        weight = tensordict.get(self.tensor_keys.priority_weight, None)
        return None if weight is None else weight.reshape(-1).to(self.critic.support.dtype)

    def _read_both(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        """An entry ``[B, O]`` and the one under ``"next"``, as ``[2B, O]``."""
        both = [self._read(tensordict, k) for k in (key, _under_next(key))]
        return _joined(f"{key!r} and {_under_next(key)!r}", *both)

    def _read(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        value = tensordict.get(key, None)
        if value is not None:
            return value
        here = sorted(map(str, tensordict.keys(include_nested=True, leaves_only=True)))
        critic_obs = self.tensor_keys.critic_obs
        fix = "name the entry to read with loss.set_keys(...)"
        if key in (critic_obs, _under_next(critic_obs)):
            fix = 'an environment without critic observations needs loss.set_keys(critic_obs="obs")'
        raise ConfigError(f"the batch has no {key!r}, only {', '.join(here)}: {fix}")


def _joined(what: str, first: Tensor, second: Tensor) -> Tensor:
    """Two batches ``[B, *]`` as ``[2B, *]``."""
    _check_same_shape(what, first, second)
    return torch.cat((first, second))


def _check_same_shape(what: str, first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape:
        raise ConfigError(
            f"{what} must have the same shape, got {list(first.shape)} and {list(second.shape)}"
        )


def _mean(value: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of ``[*, B]``, with the rows' weights ``[B]`` if there are any."""
    return value.mean() if weight is None else (value * weight).mean() / weight.mean()


def _under_next(key: NestedKey) -> tuple[str, ...]:
    return ("next", key) if isinstance(key, str) else ("next", *key)
