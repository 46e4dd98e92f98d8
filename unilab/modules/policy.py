"""The rollout policy over an actor, as a TensorDict module."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, exploration_type

from unilab.errors import ConfigError

_CALL, _MOST_ENVS = "_call", 8
_numbers = itertools.count(1)


class _Calls(dict[int, tuple[TensorDictBase, Tensor, Tensor]]):
    """Data, mark and flags of the latest calls, by number; empty in a copy."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Calls, ()


class FlashSACPolicy(TensorDictModuleBase):
    """Writes the actor's action for a rollout; the actor stays the instance that is optimised.

    Follows TorchRL's :class:`~torchrl.envs.utils.set_exploration_type`: ``RANDOM`` explores with
    held noise, any other type gives ``transform(mean)``. The actor is told which rows were just
    reset: those of ``is_init``, if :class:`~torchrl.envs.InitTracker` writes it. In data without
    an environment's flags, ``done`` marks them.

    With an environment's flags and no ``is_init``, the policy writes the number of the call,
    ``_call``, beside the action; the environment must step the TensorDict that the policy got.
    Rows begin that ended in the step of that call, or that a reset gave to data without its
    number; all rows do when a reset has replaced the flags that the step left. A reset of all rows
    that was neither after an end nor in the step's own data (a copy of them, or
    :meth:`Collector.reset() <torchrl.collectors.Collector.reset>`, which overwrites the flags)
    cannot be seen: use InitTracker there. The latest eight environments are told apart.

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
        self._calls = _Calls()

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
        flags = tensordict.get("terminated")
        # TorchRL carries it from step to step; a reset of some rows sets theirs to 0, one of all
        # rows leaves it, and the data of a new rollout lack it.
        before = tensordict.get(_CALL, None)
        number = next(_numbers)
        mark = torch.full_like(flags, number, dtype=torch.long)
        tensordict.set(_CALL, mark)
        last = None if before is None else self._calls.pop(int(before.max()), None)
        self._calls[number] = tensordict, mark, flags
        if len(self._calls) > _MOST_ENVS:
            del self._calls[next(iter(self._calls))]
        if before is None:
            return torch.ones_like(flags, dtype=torch.bool)
        begun = before == 0
        if last is not None:
            data, last_mark, last_flags = last
            ended = data.get(("next", "done"), None)  # written by the step
            if ended is not None or data is tensordict:
                left = (last_flags, data.get(("next", "terminated"), None))
                if before is last_mark and not any(flags is each for each in left):
                    return torch.ones_like(begun)
                return begun if ended is None else begun | ended
        if explores and not begun.all():
            raise ConfigError(
                "is_init must be in the data to explore where the environment steps a copy of what "
                "the policy gets: use TransformedEnv(env, InitTracker()) of torchrl.envs"
            )
        return begun


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
