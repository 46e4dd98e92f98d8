"""Gaussian actor over an MLP and its stochastic policy, for PPO and SAC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import Tensor, nn
from torchrl.modules import IndependentNormal

from unilab.errors import ConfigError
from unilab.modules.actor import per_joint
from unilab.modules.actor_calls import mean_and_std
from unilab.modules.actor_spec import record_constructor
from unilab.modules.distributions import gaussian_log_prob, squash_log_std, tanh_log_det
from unilab.modules.layers import check_at_least, check_input
from unilab.modules.mlp import ObsNormalizer, hidden_layers


class GaussianActor(nn.Module):
    """Gaussian actor over an MLP, with the normalisation of its observations inside.

    The action is ``u ~ Normal(mean, std)``, unbounded; with a range it is
    ``low + (high - low) * (tanh(u) + 1) / 2``. The normaliser's statistics move only when its
    :meth:`~unilab.modules.ObsNormalizer.update` is called.

    Args:
        obs_dim: observation width ``O``.
        action_dim: action width ``A``.
        hidden_dims: widths of the hidden layers.
        activation: ``elu``, ``relu``, ``silu`` or ``tanh``.
        layer_norm: normalise the hidden layers.
        normalize_obs: normalise the observation.
        init_std: initial standard deviation, a parameter for each joint that does not depend on
            the observation; None makes it an output of the network, between e^-10 and e^2.
        action_low: lower end of the action range, a number or one per joint; None for unbounded
            actions.
        action_high: upper end, likewise.

    Examples:
        >>> import torch
        >>> from unilab.modules import GaussianActor
        >>> actor = GaussianActor(obs_dim=45, action_dim=12, init_std=0.5)
        >>> mean, std = actor.get_mean_and_std(torch.zeros(8, 45))
        >>> mean.shape, round(std.max().item(), 3)
        (torch.Size([8, 12]), 0.5)
    """

    action_scale: Tensor
    action_offset: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int] = (128, 128, 128),
        activation: str = "elu",
        *,
        layer_norm: bool = False,
        normalize_obs: bool = True,
        init_std: float | None = 1.0,
        action_low: float | Sequence[float] | Tensor | None = None,
        action_high: float | Sequence[float] | Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, obs_dim=obs_dim, action_dim=action_dim)
        if init_std is not None and not init_std > 0.0:
            raise ConfigError(f"init_std must be above 0, or None, got {init_std}")
        self.obs_dim = obs_dim
        self.action_dim = action_dim
        self.normalizer = ObsNormalizer(obs_dim, device=device) if normalize_obs else None
        self.hidden = hidden_layers(
            obs_dim, hidden_dims, activation, layer_norm=layer_norm, device=device
        )
        self.mean_head = nn.Linear(hidden_dims[-1], action_dim, device=device)
        # The first actions do not depend on the observation (Andrychowicz et al., 2021).
        nn.init.orthogonal_(self.mean_head.weight, 0.01)
        nn.init.zeros_(self.mean_head.bias)
        self.std_head: nn.Linear | None = None
        if init_std is None:
            self.std_head = nn.Linear(hidden_dims[-1], action_dim, device=device)
        else:
            log_std = torch.full((action_dim,), init_std, device=device).log()
            self.log_std = nn.Parameter(log_std)

        if (action_low is None) != (action_high is None):
            raise ConfigError(
                f"action_low and action_high must both be given or both None, got {action_low} and "
                f"{action_high}"
            )
        bounds: dict[str, Any] = {}
        #: name of the map from the pre-transform sample to the action.
        self.action_transform_id = "none"
        if action_low is not None and action_high is not None:
            low, high = per_joint(action_low, action_high, action_dim, device)
            bounds = {"action_low": low.tolist(), "action_high": high.tolist()}
            self.action_transform_id = "tanh_affine"
            self.register_buffer("action_scale", 0.5 * (high - low))
            self.register_buffer("action_offset", 0.5 * (high + low))

        kwargs = {
            "hidden_dims": list(hidden_dims),
            "activation": activation,
            "layer_norm": layer_norm,
            "normalize_obs": normalize_obs,
            "init_std": init_std,
            **bounds,
        }
        record_constructor(self, GaussianActor, kwargs)

    def get_mean_and_std(self, obs: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[B, A]`` of the Gaussian before the transform."""
        mean, log_std = self._heads(obs)
        return mean, log_std.exp()

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw a reparameterised action; ``training`` changes nothing.

        Args:
            obs: ``[B, O]`` observations.

        Returns:
            actions ``[B, A]`` and ``{"log_prob": [B, 1], "mean": [B, A], "std": [B, A]}``.
        """
        mean, log_std = self._heads(obs)
        std = log_std.exp()
        eps = torch.randn_like(mean)
        u = mean + std * eps
        log_prob = gaussian_log_prob(eps, log_std)
        if self.action_transform_id != "none":
            log_prob = log_prob - tanh_log_det(u) - self.action_scale.log()
        info = {"log_prob": log_prob.sum(-1, keepdim=True), "mean": mean, "std": std}
        return self._transform(u), info

    @torch.no_grad()
    def explore(
        self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False
    ) -> Tensor:
        """Actions ``[N, A]`` for a rollout; ``dones`` changes nothing, as no noise is held."""
        mean, log_std = self._heads(obs)
        if deterministic:
            return self._transform(mean)
        return self._transform(torch.addcmul(mean, log_std.exp(), torch.randn_like(mean)))

    def as_export_module(self) -> nn.Module:
        """A plain ``obs -> transform(mean)`` module that shares this actor's parameters."""
        return _DeterministicActor(self)

    def normalize_parameters(self) -> None:
        """Do nothing: the weights of this actor are free."""

    def _heads(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        check_input("observation", obs, self.obs_dim, self.mean_head.weight.dtype)
        h = self.hidden(obs if self.normalizer is None else self.normalizer(obs))
        mean = self.mean_head(h)
        if self.std_head is not None:
            return mean, squash_log_std(self.std_head(h))
        return mean, self.log_std.expand_as(mean)

    def _transform(self, u: Tensor) -> Tensor:
        if self.action_transform_id == "none":
            return u
        return torch.addcmul(self.action_offset, torch.tanh(u), self.action_scale)


class _DeterministicActor(nn.Module):
    def __init__(self, actor: GaussianActor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor) -> Tensor:
        return self.actor.explore(obs, deterministic=True)


class GaussianPolicy(ProbabilisticTensorDictSequential):
    """TorchRL's stochastic policy over an actor, which stays the instance that is optimised.

    It acts in rollouts, where it writes ``action`` and ``action_log_prob`` (and ``loc`` and
    ``scale``), and gives losses their distribution (``get_dist``). It follows TorchRL's
    :class:`~torchrl.envs.utils.set_exploration_type`.

    Args:
        actor: an actor of the contract without an action transform: its ``get_mean_and_std`` is
            the distribution of the actions.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from unilab.modules import GaussianActor, GaussianPolicy
        >>> policy = GaussianPolicy(GaussianActor(obs_dim=3, action_dim=2))
        >>> data = policy(TensorDict({"obs": torch.zeros(4, 3)}, [4]))
        >>> data["action"].shape, data["action_log_prob"].shape
        (torch.Size([4, 2]), torch.Size([4]))
    """

    def __init__(
        self, actor: nn.Module, *, obs_key: NestedKey = "obs", action_key: NestedKey = "action"
    ) -> None:
        transform = getattr(actor, "action_transform_id", None)
        if transform != "none":
            raise ConfigError(
                f"action_transform_id of {type(actor).__name__} must be 'none', got {transform!r}: "
                "the density of a transformed action is another one; give the actor no action "
                "range"
            )
        super().__init__(
            TensorDictModule(_MeanAndStd(actor), in_keys=[obs_key], out_keys=["loc", "scale"]),
            ProbabilisticTensorDictModule(
                in_keys=["loc", "scale"],
                out_keys=[action_key],
                distribution_class=IndependentNormal,
                distribution_kwargs={"validate_args": False},
                return_log_prob=True,
            ),
        )

    @property
    def actor(self) -> Any:
        """The actor."""
        return self[0].module.actor


class _MeanAndStd(nn.Module):
    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor: Any = actor

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = mean_and_std(self.actor, obs.reshape(-1, obs.shape[-1]))
        return mean.reshape(*obs.shape[:-1], -1), std.reshape(*obs.shape[:-1], -1)
