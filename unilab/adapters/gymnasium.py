"""Gymnasium's ``VectorEnv`` over one of our environments."""

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

__all__ = ["GymnasiumVectorEnv"]


class GymnasiumVectorEnv(VectorEnv):
    """An environment for code that speaks Gymnasium's vector interface.

    Observations are a ``Box`` of the ``obs`` group, or, where the environment has a ``critic``
    group, a ``Dict`` of both. An episode that ends is followed by the next one in the same step
    (``AutoresetMode.SAME_STEP``): the step returns the next episode's first observation, and
    ``info["final_obs"]`` has the ended one's last, for the rows of ``info["_final_obs"]``.

    Args:
        env: the environment, which belongs to the adapter from now on.
        tensors: whether arrays are torch tensors on the environment's device instead of NumPy's.
            ``final_obs`` is then one batch, whose other rows mean nothing, instead of an object
            array with None in them.

    Raises:
        ConfigError: the environment is not one of ours.

    >>> import unilab
    >>> from unilab.adapters import GymnasiumVectorEnv
    >>> envs = GymnasiumVectorEnv(unilab.make("cartpole_swingup", num_envs=2))
    >>> obs, info = envs.reset(seed=0)
    >>> obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
    >>> obs.shape, reward.shape
    ((2, 5), (2,))
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, env: Any, *, tensors: bool = False) -> None:
        if not isinstance(env, TorchEnv):
            raise ConfigError(
                f"env is a {type(env).__name__}: give the environment that unilab.make returns, "
                "without transforms"
            )
        self.env = env
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
        self._action_shape = tuple(env.action_spec.shape)
        self._root: TensorDictBase | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, or in some.

        Args:
            seed: seed of all environments together; None goes on with the random numbers.
            options: ``reset_mask``, ``[num_envs]`` bool, says which; the others stay as they are.

        Raises:
            ConfigError: a seed that is not one integer from 0 to 2^32 - 1, other options, another
                mask, or a mask before the first reset.
        """
        if seed is not None:
            seed = to_seed(seed)
            super().reset(seed=seed)
            self.env.set_seed(seed, static_seed=True)
        options = {} if options is None else options
        if not isinstance(options, dict) or set(options) - {"reset_mask"}:
            raise ConfigError(f"options are {options}: there is only 'reset_mask'")
        mask = options.get("reset_mask")
        if mask is None:
            self._root = self.env.reset()
        else:
            rows = self._tensor("reset_mask is", mask, (self.num_envs,))
            if rows.dtype != torch.bool:
                raise ConfigError(f"reset_mask has dtype {rows.dtype}: expected torch.bool")
            self._root = self.env.reset(self._begun().set("_reset", rows))
        return self._observation(self._root), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a control step and begin the next episode where one ended.

        Args:
            actions: ``[num_envs, action_dim]``, within ``action_space``.

        Raises:
            ConfigError: there was no reset before, or none since a step failed once it had moved
                the environments; or the actions are no numbers or have another shape.
        """
        given = self._tensor("actions are", actions, self._action_shape, torch.float32)
        root, steps = self._begun().set("action", given), self.env.common_step_counter
        try:
            data, self._root = self.env.step_and_maybe_reset(root)
        except BaseException:
            if self.env.common_step_counter > steps:
                self._root = None  # whose episodes ended in this step, nobody was told
            raise
        after = data["next"]
        info = {}
        if after["done"].any():
            info = self._final(after)
        flags = (self._array(after[k].squeeze(-1)) for k in ("reward", "terminated", "truncated"))
        return (self._observation(self._root), *flags, info)

    def _begun(self) -> TensorDictBase:
        """Where the episodes are."""
        if self._root is None:
            raise ConfigError("the environments were not reset: call reset() first")
        return self._root

    def _tensor(
        self, what: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> Tensor:
        """What a caller gave as an array, if it has the shape."""
        try:
            given = torch.as_tensor(value, dtype=dtype, device=self.env.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{what} {value!r}: expected an array of shape {shape}") from error
        if given.shape != shape:
            raise ConfigError(f"{what} of shape {tuple(given.shape)}: expected {shape}")
        return given

    def _final(self, after: TensorDictBase) -> dict[str, Any]:
        """What Gymnasium's info has of the episodes that ended."""
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
