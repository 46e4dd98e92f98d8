"""Adapter to RSL-RL's ``VecEnv``."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from unilab.envs import TorchEnv
from unilab.errors import ConfigError

# Our observation groups and RSL-RL's names for them.
_GROUPS = {"obs": "policy", "critic": "critic"}


class RslRlVecEnv(VecEnv):
    """An environment for RSL-RL's runners (``rsl-rl-lib`` 5).

    ``obs`` becomes RSL-RL's ``policy`` group, ``critic`` stays ``critic``; an environment without
    ``critic`` has no such group. The constructor resets the environment, which a runner never does.

    Args:
        env: the environment; the adapter closes it.
        clip_actions: clamp actions to the environment's bounds, which RSL-RL's policies do not
            know.

    >>> import unilab
    >>> from unilab.adapters import RslRlVecEnv
    >>> env = RslRlVecEnv(unilab.make("cartpole_swingup", num_envs=2, seed=0))
    >>> env.obs_groups
    {'actor': ['policy'], 'critic': ['policy']}
    """

    def __init__(self, env: Any, *, clip_actions: bool = True) -> None:
        if not isinstance(env, TorchEnv):
            raise ConfigError(
                f"env must be the environment of unilab.make, without transforms, got a "
                f"{type(env).__name__}"
            )
        self.env = env
        self.cfg: Any = getattr(env, "cfg", None)
        self.num_envs: int = env.num_envs
        self.num_actions: int = env.action_spec.shape[-1]
        self.max_episode_length: int = env.max_episode_length
        self.device: torch.device = env.device
        self._bounds = env.action_spec.space if clip_actions else None
        self._root: TensorDictBase = env.reset()

    @property
    def obs_groups(self) -> dict[str, list[str]]:
        """Groups of the actor and the critic, for ``obs_groups`` of the runner's configuration.

        The critic reads ``critic`` if the environment has it, else what the actor reads.
        """
        critic = "critic" if "critic" in self.env.obs_groups_spec else "obs"
        return {"actor": [_GROUPS["obs"]], "critic": [_GROUPS[critic]]}

    @property
    def episode_length_buf(self) -> Tensor:
        return self.env.episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.env.episode_length.copy_(value)

    def get_observations(self) -> TensorDict:
        groups = {_GROUPS[name]: self._root[name] for name in self.env.obs_groups_spec}
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)

    def reset(self) -> tuple[TensorDict, dict[str, Any]]:
        self._root = self.env.reset()
        return self.get_observations(), {}

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Take a control step and begin the next episode where one ended.

        ``extras`` has ``time_outs``, the episodes that only ran out of time, which RSL-RL
        bootstraps, and, when an episode ended, ``log``, the environment's metrics.
        """
        if self._bounds is not None:
            low, high = self._bounds.low[0], self._bounds.high[0]
            # An infinite action is the environment's to refuse.
            actions = torch.where(actions.isinf(), actions, actions.clamp(low, high))
        data, self._root = self.env.step_and_maybe_reset(self._root.set("action", actions))
        after = data["next"]
        dones = after["done"].squeeze(-1)
        extras: dict[str, Any] = {
            "time_outs": (after["truncated"] & ~after["terminated"]).squeeze(-1)
        }
        if dones.any():
            extras["log"] = self.env.drain_metrics()
        return self.get_observations(), after["reward"].squeeze(-1), dones.long(), extras

    def seed(self, seed: int) -> int:
        """Seed the environment; takes effect with the next draw."""
        self.env.set_seed(seed, static_seed=True)
        return seed

    def close(self) -> None:
        self.env.close()
