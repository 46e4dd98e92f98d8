"""The rollout policy over an actor, as a TensorDict module."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type

from unilab.errors import ConfigError
from unilab.modules.actor_calls import forward_outputs


class FlashSACPolicy(TensorDictModuleBase):
    """Writes the actor's action for a rollout; the actor stays the instance that is optimised.

    Follows TorchRL's :class:`~torchrl.envs.utils.set_exploration_type`: ``RANDOM`` explores with
    held noise, any other type gives ``transform(mean)``. The actor is told which rows begin an
    episode: those of ``is_init``, which unilab's environments write, and
    :class:`~torchrl.envs.InitTracker` for others.

    It is also the stochastic actor that TorchRL's ``SACLoss`` takes (:meth:`get_dist`).

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from unilab.modules import FlashSACActor, FlashSACPolicy
        >>> policy = FlashSACPolicy(FlashSACActor(obs_dim=3, action_dim=1))
        >>> policy(TensorDict({"obs": torch.zeros(4, 3)}, [4]))["action"].shape
        torch.Size([4, 1])
    """

    def __init__(
        self, actor: nn.Module, *, obs_key: NestedKey = "obs", action_key: NestedKey = "action"
    ) -> None:
        super().__init__()
        self.actor: Any = actor
        self.in_keys = [obs_key]
        self.out_keys = [action_key]
        self.dist_sample_keys = [action_key]
        self.log_prob_keys = ["action_log_prob"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read the observation ``[*, O]`` and ``is_init``, write the action ``[*, A]``."""
        obs = tensordict.get(self.in_keys[0])
        begun = tensordict.get("is_init", None)
        if begun is None and "done" in tensordict:
            raise ConfigError(
                "is_init must be in an environment's data, to tell the actor where episodes "
                "begin: use TransformedEnv(env, InitTracker()) of torchrl.envs"
            )
        action = self.actor.explore(
            obs.reshape(-1, obs.shape[-1]),
            dones=None if begun is None else begun.reshape(-1),
            deterministic=exploration_type() is not ExplorationType.RANDOM,
        )
        tensordict.set(self.out_keys[0], action.reshape(*obs.shape[:-1], action.shape[-1]))
        return tensordict

    def get_dist(self, tensordict: TensorDictBase) -> ActorSamples:
        """The distribution of the actor's actions at the observations ``[*, O]``, for a loss."""
        return ActorSamples(self.actor, tensordict.get(self.in_keys[0]))


class ActorSamples:
    """Actions of an actor and their log-densities, from its forward pass.

    TorchRL's losses draw both at once, which needs no density of an action from elsewhere. So any
    actor of the contract fits, whatever its transform.
    """

    def __init__(self, actor: Any, obs: Tensor) -> None:
        self.actor = actor
        self.obs = obs

    def rsample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Actions ``[*, A]`` and log-densities ``[*]``; a training pass if gradients are on."""
        lead, training = self.obs.shape[:-1], torch.is_grad_enabled()
        rows = self.obs.reshape(-1, self.obs.shape[-1])
        out = self.actor(rows, training=training)
        actions, log_prob, aux = forward_outputs(
            self.actor, out, training=training, rows=len(rows), like=rows
        )
        if aux:
            raise ConfigError(
                f"actor must have no aux_losses here, got {', '.join(aux)} of "
                f"{type(self.actor).__name__}: TorchRL's losses would drop them; FlashSACLoss "
                "minimises them"
            )
        return actions.reshape(*lead, -1), log_prob.reshape(lead)
