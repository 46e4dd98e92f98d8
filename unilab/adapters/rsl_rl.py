"""RSL-RL's ``VecEnv`` over one of our environments."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from unilab.envs import TorchEnv
from unilab.errors import ConfigError

__all__ = ["RslRlVecEnv"]

# Our observation groups, as RSL-RL's users know them.
_GROUPS = {"obs": "policy", "critic": "critic"}


class RslRlVecEnv(VecEnv):
    """An environment for RSL-RL's runners (``rsl-rl-lib`` 5).

    ``obs`` becomes RSL-RL's ``policy`` group, ``critic`` stays ``critic``; an environment without
    ``critic`` has no such group. The constructor resets the environment, which a runner never does.

    Args:
        env: the environment, which belongs to the adapter from now on.
        clip_actions: whether to bring actions within the environment's bounds, which RSL-RL's
            policies do not know; False is for a task whose actions are not meant to have any.

    Raises:
        ConfigError: the environment is not one of ours, or does not say how long an episode is.

    >>> import unilab
    >>> from unilab.adapters import RslRlVecEnv
    >>> env = RslRlVecEnv(unilab.make("cartpole_swingup", num_envs=2, seed=0))
    >>> env.obs_groups
    {'actor': ['policy'], 'critic': ['policy']}
    """

    def __init__(self, env: Any, *, clip_actions: bool = True) -> None:
        if not isinstance(env, TorchEnv):
            raise ConfigError(
                f"env is a {type(env).__name__}: give the environment that unilab.make returns, "
                "without transforms"
            )
        length = getattr(env, "max_episode_length", None)
        if length is None:
            raise ConfigError(
                f"{type(env).__name__} has no max_episode_length, which RSL-RL asks for: set it to "
                "the control steps of an episode"
            )
        self.env = env
        self.cfg: Any = getattr(env, "cfg", None)
        self.num_envs: int = env.num_envs
        self.num_actions: int = env.action_spec.shape[-1]
        self.max_episode_length: int = int(length)
        self.device: torch.device = env.device
        self._shape = env.action_spec.shape
        self._bounds = env.action_spec.space if clip_actions else None
        self._root: TensorDictBase | None = env.reset()

    @property
    def obs_groups(self) -> dict[str, list[str]]:
        """What actor and critic read, for ``obs_groups`` of the runner's configuration.

        The critic reads ``critic`` if the environment has it, else what the actor reads.
        """
        critic = "critic" if "critic" in self.env.obs_groups_spec else "obs"
        return {"actor": [_GROUPS["obs"]], "critic": [_GROUPS[critic]]}

    @property
    def episode_length_buf(self) -> Tensor:
        """``[num_envs]`` int64, control steps since each episode began."""
        return self.env.episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.env.episode_length.copy_(value)

    def get_observations(self) -> TensorDict:
        """The observations that the next actions answer, by RSL-RL's groups."""
        root = self._begun()
        groups = {_GROUPS[name]: root[name] for name in self.env.obs_groups_spec}
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)

    def _begun(self) -> TensorDictBase:
        """Where the episodes are."""
        if self._root is None:
            raise ConfigError("a step failed after it had moved the robots: call reset() first")
        return self._root

    def reset(self) -> tuple[TensorDict, dict[str, Any]]:
        """Begin an episode in every environment."""
        self._root = self.env.reset()
        return self.get_observations(), {}

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Take a control step and begin the next episode where one ended.

        Args:
            actions: ``[num_envs, num_actions]`` float32.

        Returns:
            Observations after those resets; rewards ``[num_envs]``; dones ``[num_envs]`` int64; and
            ``time_outs``, ``[num_envs]`` bool: the episodes that only ran out of time, which
            RSL-RL bootstraps. When an episode ended, ``log`` has the means over those that did,
            by our metrics' names.

        Raises:
            ConfigError: the actions are no float32 tensor of this shape.
        """
        if not isinstance(actions, Tensor) or actions.shape != self._shape:
            is_a = type(actions).__name__
            given = (
                f"of shape {tuple(actions.shape)}" if isinstance(actions, Tensor) else f"a {is_a}"
            )
            raise ConfigError(
                f"actions are {given}: expected a tensor of shape {tuple(self._shape)}"
            )
        if self._bounds is not None:
            actions = torch.clamp(actions, self._bounds.low, self._bounds.high)
        root, steps = self._begun().set("action", actions), self.env.common_step_counter
        try:
            data, self._root = self.env.step_and_maybe_reset(root)
        except BaseException:
            if self.env.common_step_counter > steps:
                self._root = None  # whose episodes ended in this step, nobody was told
            raise
        after = data["next"]
        dones = after["done"].squeeze(-1)
        extras: dict[str, Any] = {
            "time_outs": (after["truncated"] & ~after["terminated"]).squeeze(-1)
        }
        if dones.any():
            extras["log"] = self.env.drain_metrics()
        return self.get_observations(), after["reward"].squeeze(-1), dones.long(), extras

    def seed(self, seed: int) -> int:
        """Seed what is random in the environment; takes effect with the next draw.

        Raises:
            ConfigError: it is no integer from 0 to 2^32 - 1.
        """
        self.env.set_seed(seed, static_seed=True)
        return seed

    def close(self) -> None:
        """End the environment; a second call does nothing."""
        self.env.close()
