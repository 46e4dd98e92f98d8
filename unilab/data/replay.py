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
    ``steps_to_next_obs`` steps ahead, and no window crosses an episode's end. Data of another
    collector or rollout would be joined to what is held back: give each a buffer, or ``n_step=1``.

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
            extended: data without observations, action or reward where ``keys`` have them, or with
            other entries than before; with ``n_step > 1``, data without done, not ``[N, T]`` or of
            another ``N`` than before; ``capacity`` transitions of the data that do not fit into
            memory.

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
            return _rows(self._storage, index)
        return super().get(index)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write rows; all have the entries of the first ones.

        Raises:
            ConfigError: they have others, which the storage would fill up with what lay there.
        """
        if self.initialized and isinstance(data, TensorDictBase):
            before, now = (
                set(rows.keys(include_nested=True, leaves_only=True))
                for rows in (self._storage, data)
            )
            if before != now:
                more, fewer = (
                    ", ".join(sorted(map(str, keys))) for keys in (now - before, before - now)
                )
                raise ConfigError(
                    f"the data has {f'{more} as well' if more else f'no {fewer}'}, unlike the rows "
                    "in the buffer: every batch needs the same entries (a run that is continued "
                    "with its replay buffer also the same n_step)"
                )
        super().set(cursor, data, set_cursor=set_cursor)

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
        self._look_ahead = None if n_step == 1 else _LookAhead(n_step, gamma)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        kept = tensordict.select(*self._keys, strict=False)
        present = set(kept.keys(include_nested=True, leaves_only=True))
        ends = [("next", "done")] if self._look_ahead is not None else []
        for key in ("obs", "action", ("next", "obs"), ("next", "reward"), *ends):
            if key in self._keys and key not in present:
                given = [str(k) for k in tensordict.keys(include_nested=True, leaves_only=True)]
                raise ConfigError(
                    f"the data has no {key!r}, only {', '.join(sorted(given))}"
                    f"{did_you_mean(str(key), given)}; name the entries to keep with keys= of "
                    "make_replay_buffer"
                )
        return kept.reshape(-1) if self._look_ahead is None else self._look_ahead(kept)


class _LookAhead:
    """Joins the ticks of each environment to transitions over ``n_step`` of them.

    TorchRL's transform is given rewards, flags and the number of each tick only, and tells how far
    every row looks: the observations, which are most of the data, are copied once and not at every
    step of it.
    """

    def __init__(self, n_step: int, gamma: float | None) -> None:
        self._multi_step = MultiStepTransform(n_step, gamma)
        self._held: TensorDictBase | None = None  # The last n_step ticks, [n_step, N].
        self._ticks = 0

    def __call__(self, data: TensorDictBase) -> TensorDictBase | None:
        """What of the next ``[N, T]`` and those before is complete now, as ``[M]`` transitions."""
        if data.batch_dims != 2:
            raise ConfigError(
                f"data of batch size {list(data.batch_size)}: a buffer with n_step > 1 needs "
                "[N, T] in time order; extend it before flattening"
            )
        envs, new = data.batch_size
        if self._held is not None and self._held.batch_size[1] != envs:
            raise ConfigError(
                f"data of {envs} environments, {self._held.batch_size[1]} before: a buffer with "
                "n_step > 1 joins the ticks of each environment, so they must stay the same"
            )
        # Copies: what is held back must outlive the caller's next write to its own memory.
        arrived = data.transpose(0, 1)
        ticks: TensorDictBase = (
            arrived.clone() if self._held is None else torch.cat([self._held, arrived])
        )
        self._held = ticks[-self._multi_step.n_steps :]
        self._ticks += new
        device = data.get(("next", "reward")).device
        number = torch.arange(self._ticks - new, self._ticks, device=device)
        narrow = ticks[-new:].transpose(0, 1).select(("next", "reward"), ("next", "done"))
        narrow.set(("next", "tick"), number.expand(envs, new))
        narrow.set(("next", "done"), narrow.get(("next", "done")).bool())
        ahead = self._multi_step._inv_call(narrow)
        if ahead is None:
            return None
        began = ticks[: ahead.batch_size[1]].transpose(0, 1).reshape(-1)
        last = ahead.get(("next", "tick")) - (self._ticks - len(ticks))
        env = torch.arange(envs, device=device).unsqueeze(-1)
        reached = _rows(ticks.get("next").reshape(-1), (last * envs + env).reshape(-1))
        reached.set("reward", ahead.get(("next", "reward")).flatten(0, 1))
        began.set("steps_to_next_obs", ahead.get("steps_to_next_obs").reshape(-1, 1))
        return began.set("next", reached)


def _rows(data: TensorDictBase, index: Tensor) -> TensorDictBase:
    """``data[index]``; copies whole rows, in half to two thirds of the time from cold memory."""
    return data.apply(lambda column: column.index_select(0, index), batch_size=index.shape)
