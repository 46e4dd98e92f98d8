"""Reward normalisation by running statistics of the discounted return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from unilab.data.ticks import as_ticks
from unilab.errors import ConfigError, NonFiniteError


class RewardNormalizer:
    """Scales rewards so that returns fit the critic's support (FlashSAC, arXiv 2604.04539).

    Per environment ``G <- gamma * (1 - done) * G + r`` over the collected transitions; a sampled
    reward is divided by ``max(sqrt(var(G) + 1e-8), max|G| / v_max)``. As in the authors' code,
    ``G = r`` on a done step, which carries into the next episode's first step.

    Args:
        gamma: discount of one step.
        v_max: end of the critic's support; ``max|G|`` is scaled to it at most.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from unilab.data import RewardNormalizer
        >>> rewards = RewardNormalizer(gamma=0.97)
        >>> data = TensorDict({
        ...     ("next", "reward"): torch.full((256, 1, 1), 20.0),
        ...     ("next", "done"): torch.zeros(256, 1, 1, dtype=torch.bool),
        ... }, [256, 1])
        >>> rewards.update(data)                            # [N, T], in time order
        >>> rewards.normalize(data)["next", "reward"].max()  # max|G| = 20 fits the support's 5
        tensor(5.)
    """

    def __init__(self, gamma: float, *, v_max: float = 5.0) -> None:
        if not 0.0 < gamma <= 1.0:
            raise ConfigError(f"gamma must be in (0, 1], got {gamma}")
        if not v_max > 0.0:
            raise ConfigError(f"v_max must be above 0, got {v_max}")
        self.gamma = gamma
        self.v_max = v_max
        self._returns: Tensor | None = None
        self._count = torch.zeros((), dtype=torch.float64)
        self._mean = torch.zeros((), dtype=torch.float64)
        self._var = torch.ones((), dtype=torch.float64)
        self._max = torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def update(self, data: TensorDictBase) -> None:
        """Update the running statistics with collected transitions.

        Args:
            data: ``[N, T]`` in time order, or ``[N]`` for one tick, with ``("next", "reward")`` and
                ``("next", "done")``; the same ``N`` environments each call. ``[T]`` of one
                environment needs the dimension's name ``"time"``, as collectors give it.

        Raises:
            NonFiniteError: a reward is NaN or infinite; the statistics stay as they were. On an
                accelerator, where the check would wait for the device, the scale becomes NaN
                instead, and so does the critic's loss.
        """
        data = as_ticks(data)
        rows, ticks = data.batch_size
        reward = data["next", "reward"].reshape(rows, ticks).double()
        done = data["next", "done"].reshape(rows, ticks)
        if reward.device.type == "cpu" and not math.isfinite(reward.sum().item()):
            bad = reward.isfinite().all(1).logical_not().nonzero().flatten().tolist()
            raise NonFiniteError(
                f"reward must be finite, got NaN or infinity from environments {bad}: look for a "
                "division or an exponential in the reward",
                bad,
            )
        if self._returns is None:
            self._returns = torch.zeros(rows, dtype=torch.float64)
        elif self._returns.shape[0] != rows:
            raise ConfigError(
                f"data must be of {self._returns.shape[0]} environments as before, got {rows}: "
                "pass the collector's own [N, T] data, or call begin_episodes() for other "
                "environments"
            )
        if self._returns.device != reward.device:
            self._to(reward.device)
        # Not a bool times a float, which would round gamma to float32.
        keep = done.logical_not().double() * self.gamma
        for t in range(reward.shape[1]):
            self._returns = self._returns * keep[:, t] + reward[:, t]
            self._merge(self._returns)

    def _merge(self, returns: Tensor) -> None:
        """Parallel-variance update of the running moments with one tick's ``[N]`` returns."""
        rows = returns.shape[0]
        var, mean = torch.var_mean(returns, correction=0)
        total = self._count + rows
        delta = mean - self._mean
        spread = self._var * (self._count + 1e-4) + var * rows
        self._var = (spread + delta.square() * self._count * rows / total) / total
        self._mean = self._mean + delta * rows / total
        self._count = total
        self._max = torch.maximum(self._max, returns.abs().amax())

    @property
    def scale(self) -> Tensor:
        """The divisor of rewards, 0-dim float64."""
        return torch.maximum((self._var + 1e-8).sqrt(), self._max / self.v_max)

    def normalize(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A shallow copy of a batch with ``("next", "reward")`` divided by :attr:`scale`."""
        reward = tensordict.get(("next", "reward"))
        dtype = reward.dtype if reward.is_floating_point() else torch.get_default_dtype()
        scale = self.scale.to(device=reward.device, dtype=dtype)
        return tensordict.copy().set(("next", "reward"), reward / scale)

    def state_dict(self) -> dict[str, Tensor | None]:
        """The running statistics and each environment's current return."""
        return {
            "count": self._count,
            "mean": self._mean,
            "var": self._var,
            "max": self._max,
            "returns": self._returns,
        }

    def check_state(self, state: Any) -> str:
        """The reason why a saved state is invalid, or ``""``."""
        names = self.state_dict().keys()
        if not isinstance(state, Mapping) or state.keys() != names:
            return f"rewards must have {', '.join(names)}"
        for name, value in state.items():
            if name == "returns" and value is None:
                continue
            kind = (torch.float64, int(name == "returns"))
            if not isinstance(value, Tensor) or (value.dtype, value.ndim) != kind:
                return f"rewards.{name} must be a float64 tensor of {kind[1]} dimensions"
            if not value.isfinite().all() or (name in ("count", "var", "max") and value < 0):
                return f"rewards.{name} must be finite, and not negative, got {value}"
        return ""

    def load_state_dict(self, state: dict[str, Tensor | None]) -> None:
        """Continue from a :meth:`state_dict`."""
        for key in ("count", "mean", "var", "max", "returns"):
            setattr(self, f"_{key}", state[key])

    def begin_episodes(self) -> None:
        """All environments begin new episodes: their returns start at 0."""
        self._returns = None

    def _to(self, device: torch.device) -> None:
        for name in ("_count", "_mean", "_var", "_max", "_returns"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.to(device))
