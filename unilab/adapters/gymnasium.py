"""Adapter to Gymnasium's ``VectorEnv``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDictBase
from torch import Tensor

from unilab.checks import to_seed
from unilab.envs import TorchEnv
from unilab.errors import ConfigError

_OUTCOME = ("reward", "terminated", "truncated")


class GymnasiumVectorEnv(VectorEnv):
    """A Gymnasium vector environment around one of ours.

    Observations are a ``Box`` of the ``obs`` group, or, where the environment has a ``critic``
    group, a ``Dict`` of both.

    Args:
        env: the environment; the adapter closes it.
        autoreset_mode: when the next episode begins.
            ``SAME_STEP``: in the step that ends an episode. It returns the next episode's first
            observation, and ``info["final_obs"]`` has the ended one's last, for the rows of
            ``info["_final_obs"]``.
            ``NEXT_STEP``, which most of Gymnasium's vector wrappers need: in the step after it,
            which ignores the row's action and returns a reward of 0. Physics still takes that step
            with the row: ``env.drain_metrics()`` counts one more step an episode.
        tensors: return torch tensors on the environment's device instead of NumPy arrays.
            ``final_obs`` is then one batch, of which only the rows of ``_final_obs`` count, instead
            of an object array with None in the other rows.

    >>> import unilab
    >>> from unilab.adapters import GymnasiumVectorEnv
    >>> envs = GymnasiumVectorEnv(unilab.make("cartpole_swingup", num_envs=2))
    >>> obs, info = envs.reset(seed=0)
    >>> obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
    >>> obs.shape, reward.shape
    ((2, 5), (2,))
    """

    def __init__(
        self,
        env: Any,
        *,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        tensors: bool = False,
    ) -> None:
        if not isinstance(env, TorchEnv):
            raise ConfigError(
                f"env must be the environment of unilab.make, without transforms, got a "
                f"{type(env).__name__}"
            )
        if autoreset_mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ConfigError(
                "autoreset_mode must be AutoresetMode.SAME_STEP or AutoresetMode.NEXT_STEP, got "
                f"{autoreset_mode!r}"
            )
        self.env = env
        self.autoreset_mode = autoreset_mode
        self.metadata = {"autoreset_mode": autoreset_mode, "render_modes": []}
        self.tensors = tensors
        self.num_envs = env.num_envs
        groups: dict[str, gymnasium.Space[Any]] = {
            name: gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
            for name, width in env.obs_groups_spec.items()
        }
        self.single_observation_space = (
            gymnasium.spaces.Dict(groups) if len(groups) > 1 else groups["obs"]
        )
        bounds = env.action_spec.space
        low, high = (bound[0].cpu().numpy() for bound in (bounds.low, bounds.high))
        self.single_action_space = gymnasium.spaces.Box(low, high, low.shape, np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._root: TensorDictBase | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, or in some.

        Args:
            seed: one seed for all environments; None continues the random sequence.
            options: ``reset_mask``, ``[num_envs]`` bool, selects the environments to reset.
        """
        if seed is not None:
            seed = to_seed(seed)
            super().reset(seed=seed)
            self.env.set_seed(seed, static_seed=True)
        if options and "reset_mask" in options:
            mask = torch.as_tensor(options["reset_mask"], device=self.env.device)
            self._root = self.env.reset(self._begun().set("_reset", mask))
        else:
            self._root = self.env.reset()
        return self._observation(self._root), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a control step, and begin the next episode where one ended."""
        action = torch.as_tensor(actions, dtype=torch.float32, device=self.env.device)
        root = self._begun()
        info = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            data, self._root = self.env.step_and_maybe_reset(root.set("action", action))
            after = data["next"]
            if after["done"].any():
                info = self._final(after)
        else:
            ended = root["done"]  # in the step before
            after = self.env.step(root.set("action", action.masked_fill(ended, 0.0)))["next"]
            self._root = after.exclude("reward")
            if ended.any():
                self._root = self.env.reset(self._root.set("_reset", ended))
                after = after.select(*_OUTCOME).apply(lambda value: value.masked_fill(ended, 0))
        outcome = (self._array(after[key].squeeze(-1)) for key in _OUTCOME)
        return (self._observation(self._root), *outcome, info)

    def _begun(self) -> TensorDictBase:
        if self._root is None:
            raise ConfigError("the environments need a reset first: call reset()")
        return self._root

    def _final(self, after: TensorDictBase) -> dict[str, Any]:
        ended = self._array(after["done"].squeeze(-1))
        last = self._observation(after)
        if not self.tensors:
            rows = np.full(self.num_envs, None, dtype=object)
            for i in ended.nonzero()[0]:
                several = isinstance(last, dict)
                rows[i] = {k: v[i] for k, v in last.items()} if several else last[i]
            last = rows
        return {"final_obs": last, "_final_obs": ended, "final_info": {}, "_final_info": ended}

    def _observation(self, data: TensorDictBase) -> Any:
        groups = {name: self._array(data[name]) for name in self.env.obs_groups_spec}
        return groups if len(groups) > 1 else groups["obs"]

    def _array(self, value: Tensor) -> Any:
        return value if self.tensors else value.cpu().numpy()

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()
