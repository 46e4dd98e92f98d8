"""The rollout policy over an actor, as a TensorDict module."""

from __future__ import annotations

from typing import Any

from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.envs.utils import ExplorationType, exploration_type

from unilab.errors import ConfigError


class FlashSACPolicy(TensorDictModuleBase):
    """Writes the actor's action for a rollout; the actor stays the instance that is optimised.

    Follows TorchRL's :class:`~torchrl.envs.utils.set_exploration_type`: ``RANDOM`` explores with
    held noise, any other type gives ``transform(mean)``. Noise is redrawn where ``is_init`` says
    that a row was just reset: an environment needs :class:`~torchrl.envs.InitTracker` to explore.
    In a loop of your own without ``is_init``, ``done`` says so.

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

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read the observation ``[*, O]``, write the action ``[*, A]``."""
        obs = tensordict.get(self.in_keys[0])
        explores = exploration_type() is ExplorationType.RANDOM
        reset = tensordict.get("is_init", None)
        if reset is None:
            if explores and "terminated" in tensordict:
                # An environment's flags, which its reset has cleared.
                raise ConfigError(
                    "is_init must be in the data of an environment to explore, or noise would run "
                    "on across episode ends: use TransformedEnv(env, InitTracker()) of torchrl.envs"
                )
            reset = tensordict.get("done", None)
        action = self.actor.explore(
            obs.reshape(-1, obs.shape[-1]),
            dones=None if reset is None else reset.reshape(-1),
            deterministic=not explores,
        )
        tensordict.set(self.out_keys[0], action.reshape(*obs.shape[:-1], action.shape[-1]))
        return tensordict
