"""The rollout policy over an actor, as a TensorDict module."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type

from unilab.errors import ConfigError

_CONTINUES = "_continues"


class FlashSACPolicy(TensorDictModuleBase):
    """Writes the actor's action for a rollout; the actor stays the instance that is optimised.

    Follows TorchRL's :class:`~torchrl.envs.utils.set_exploration_type`: ``RANDOM`` explores with
    held noise, any other type gives ``transform(mean)``. The actor is told which rows were just
    reset: those of ``is_init``, if :class:`~torchrl.envs.InitTracker` writes it. Without it they
    are the rows that ended in the step before, and every row of a rollout's first step; for that
    the policy writes ``_continues`` beside the action, and must get the TensorDict that the
    environment steps. In data without an environment's flags, ``done`` marks them.

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
        self._last: TensorDictBase | None = None

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read the observation ``[*, O]``, write the action ``[*, A]``."""
        obs = tensordict.get(self.in_keys[0])
        explores = exploration_type() is ExplorationType.RANDOM
        reset = tensordict.get("is_init", None)
        if reset is None:
            if "terminated" in tensordict:  # an environment's flags, which its reset has cleared
                reset = self._begun(tensordict, explores)
            else:
                reset = tensordict.get("done", None)
        action = self.actor.explore(
            obs.reshape(-1, obs.shape[-1]),
            dones=None if reset is None else reset.reshape(-1),
            deterministic=not explores,
        )
        tensordict.set(self.out_keys[0], action.reshape(*obs.shape[:-1], action.shape[-1]))
        return tensordict

    def get_dist(self, tensordict: TensorDictBase) -> ActorSamples:
        """The distribution of the actor's actions at the observations ``[*, O]``, for a loss."""
        return ActorSamples(self.actor, tensordict.get(self.in_keys[0]))

    def _begun(self, tensordict: TensorDictBase, explores: bool) -> Tensor:
        """``[*, 1]`` bool, the rows whose episodes begin here."""
        last, self._last = self._last, tensordict
        done = tensordict.get("terminated")
        # TorchRL carries it from step to step; a reset of some rows clears theirs, one of all rows
        # leaves it, and the data of a new rollout lack it.
        continues = tensordict.get(_CONTINUES, None)
        tensordict.set(_CONTINUES, torch.ones_like(done, dtype=torch.bool))
        if continues is None:
            return torch.ones_like(done, dtype=torch.bool)
        ended = None if last is None else last.get(("next", "done"), None)  # written by the step
        if ended is not None:
            return ended | ~continues
        if explores and last is not tensordict:
            raise ConfigError(
                "is_init must be in the data to explore where the environment steps a copy of what "
                "the policy gets: use TransformedEnv(env, InitTracker()) of torchrl.envs"
            )
        return ~continues


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
        actions, info = self.actor(self.obs.reshape(-1, self.obs.shape[-1]), training=training)
        if training and info.get("aux_losses"):
            raise ConfigError(
                f"actor must have no aux_losses here, got {', '.join(info['aux_losses'])} of "
                f"{type(self.actor).__name__}: TorchRL's losses would drop them; FlashSACLoss "
                "minimises them"
            )
        return actions.reshape(*lead, -1), info["log_prob"].reshape(lead)
