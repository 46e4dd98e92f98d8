"""TorchRL replay buffers, set up for off-policy learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.envs.transforms import MultiStepTransform, Transform

from unilab.errors import ConfigError, did_you_mean

__all__ = ["LEARNING_KEYS", "make_replay_buffer"]

#: The entries of a transition that learning reads; everything else a collector adds is dropped.
LEARNING_KEYS: tuple[NestedKey, ...] = (
    "obs",
    "critic",
    "action",
    ("next", "obs"),
    ("next", "critic"),
    ("next", "reward"),
    ("next", "done"),
    ("next", "terminated"),
    ("next", "truncated"),
)


def make_replay_buffer(
    capacity: int,
    batch_size: int,
    *,
    device: torch.device | str = "cpu",
    n_step: int = 1,
    gamma: float | None = None,
    prefetch: int = 0,
    seed: int | None = None,
    keys: Sequence[NestedKey] = LEARNING_KEYS,
) -> TensorDictReplayBuffer:
    """A uniform replay buffer of single transitions.

    ``extend`` takes ``[N]`` or ``[N, T]`` data. With ``n_step > 1`` it takes ``[N, T]`` only, in
    time order and of the same ``N`` each call: the last ``n_step`` ticks are held back until their
    successors come, so ``T`` may be 1. Rewards are then discounted sums, ``("next", ...)`` lies
    ``steps_to_next_obs`` steps ahead, and no window crosses an episode's end.

    Args:
        capacity: most transitions held; the oldest are overwritten.
        batch_size: transitions a ``sample()`` returns.
        device: where the storage lives.
        n_step: look-ahead in steps.
        gamma: discount of one step; required when ``n_step > 1``.
        prefetch: batches sampled ahead by a thread.
        seed: seeds the sampler's own generator; ``None`` follows torch's global one.
        keys: the entries that are stored, where the data has them.

    Returns:
        the buffer.

    Raises:
        ConfigError: a size below 1, ``gamma`` outside (0, 1], or ``n_step > 1`` without it. When
            extended: data without an action or a reward; with ``n_step > 1``, data not ``[N, T]``
            or of another ``N`` than before; ``capacity`` transitions of the data that do not fit
            into memory.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from unilab.data import make_replay_buffer
        >>> buffer = make_replay_buffer(1_000_000, batch_size=512)
        >>> data = TensorDict({
        ...     "obs": torch.zeros(256, 3),
        ...     "action": torch.zeros(256, 1),
        ...     ("next", "obs"): torch.zeros(256, 3),
        ...     ("next", "reward"): torch.zeros(256, 1),
        ... }, [256])
        >>> _ = buffer.extend(data)
        >>> buffer.sample()["obs"].shape
        torch.Size([512, 3])
    """
    for name, value in (("capacity", capacity), ("batch_size", batch_size), ("n_step", n_step)):
        if value < 1:
            raise ConfigError(f"{name}={value}: expected at least 1")
    if prefetch < 0:
        raise ConfigError(f"prefetch={prefetch}: expected at least 0")
    if n_step > 1 and gamma is None:
        raise ConfigError(f"n_step={n_step} without gamma: pass the discount of one step")
    if gamma is not None and not 0.0 < gamma <= 1.0:
        raise ConfigError(f"gamma={gamma}: expected 0 < gamma <= 1")
    buffer = TensorDictReplayBuffer(
        storage=_Storage(capacity, device=device),
        sampler=RandomSampler(),
        transform=_Intake(keys, n_step, gamma),
        batch_size=batch_size,
        prefetch=prefetch or None,
    )
    if seed is not None:
        buffer.set_rng(torch.Generator().manual_seed(seed))
    return buffer


class _Storage(LazyTensorStorage):
    """Allocated as a whole by the first transition; rows all over it are picked by copying them."""

    def get(self, index: Any) -> Any:
        # index_select copies whole rows: half to two thirds of indexing's time from memory that is
        # in no cache.
        if (
            isinstance(index, Tensor)
            and index.dtype == torch.int64
            and index.ndim == 1
            and index.shape[0] > 0
            and self.initialized
            and self.device.type == "cpu"
            and int(index.min()) >= 0
            and int(index.max()) < len(self)
        ):
            return self._storage.apply(
                lambda column: column.index_select(0, index), batch_size=index.shape
            )
        return super().get(index)

    def _init(self, data: TensorDictBase) -> None:
        try:
            super()._init(data)
        except RuntimeError as error:  # of the allocators, torch.OutOfMemoryError included
            size = self.max_size * sum(v.nbytes for v in data.values(True, True))
            raise ConfigError(
                f"{self.max_size:,} transitions take {size / 2**30:,.1f} GiB, which cannot be "
                f"allocated on {self.device}: lower the replay buffer's capacity "
                "(algo.replay_capacity)"
            ) from error


class _Intake(Transform):
    """On ``extend``: keep what learning needs, look ``n_step`` ahead, flatten to single rows."""

    def __init__(self, keys: Sequence[NestedKey], n_step: int, gamma: float | None) -> None:
        super().__init__()
        self._keys = list(keys)
        self._rows: int | None = None
        # done_keys=[] lets the end-of-episode flags move with the observation they belong to;
        # by default MultiStep leaves those of the window's first step, and a window that runs
        # into a terminal state would bootstrap from it.
        self._multi_step = None if n_step == 1 else MultiStepTransform(n_step, gamma, done_keys=[])

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        kept = tensordict.select(*self._keys, strict=False)
        present = set(kept.keys(include_nested=True, leaves_only=True))
        for key in ("action", ("next", "reward")):
            if key in self._keys and key not in present:
                given = [str(k) for k in tensordict.keys(include_nested=True, leaves_only=True)]
                raise ConfigError(
                    f"the data has no {key!r}, only {', '.join(sorted(given))}"
                    f"{did_you_mean(str(key), given)}; pass keys= to make_replay_buffer"
                )
        if self._multi_step is None:
            return kept.reshape(-1)
        if kept.batch_dims != 2:
            raise ConfigError(
                f"data of batch size {list(kept.batch_size)}: a buffer with n_step > 1 needs "
                "[N, T] in time order; extend it before flattening"
            )
        rows = kept.batch_size[0]
        if self._rows not in (None, rows):
            raise ConfigError(
                f"data of {rows} environments, {self._rows} before: a buffer with n_step > 1 joins "
                "the ticks of each environment, so they must stay the same"
            )
        self._rows = rows
        # What is held back must outlive the caller's next write to its own memory.
        ahead = self._multi_step._inv_call(kept.clone())
        if ahead is None:
            return None
        steps = ahead.get("steps_to_next_obs").unsqueeze(-1)
        ahead = ahead.select(*self._keys, strict=False).set("steps_to_next_obs", steps)
        return ahead.reshape(-1)
