"""Replay buffers of TorchRL, set up for off-policy learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.envs.transforms import MultiStepTransform, Transform

from unilab.data.ticks import as_ticks, has_time
from unilab.errors import ConfigError, did_you_mean

#: The entries that learning reads; all others of a collector are dropped.
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
    time order and with the same ``N`` each call, and holds the last ``n_step`` ticks back until
    the following ones arrive (``T`` may be 1). Rewards are then discounted sums, ``("next", ...)``
    is ``steps_to_next_obs`` steps ahead, and no window crosses the end of an episode. Use one
    buffer for each collector: data of another one would be joined to the ticks held back.

    Args:
        capacity: transitions held; the oldest are overwritten.
        batch_size: transitions that ``sample()`` returns.
        device: where the storage lives.
        n_step: look-ahead in steps.
        gamma: discount of one step; required when ``n_step > 1``.
        prefetch: batches sampled ahead by a thread.
        seed: seed of the sampler's own generator; ``None`` uses torch's global one.
        keys: the entries to store, where the data has them.

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
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if n_step > 1 and (gamma is None or not 0.0 < gamma <= 1.0):
        raise ConfigError(f"gamma must be in (0, 1] with n_step={n_step}, got {gamma}")
    buffer = _ReplayBuffer(
        # compilable: counters without named semaphores, which a killed process leaves behind.
        storage=_Storage(capacity, device=device, compilable=True),
        compilable=True,
        sampler=RandomSampler(),
        transform=_SelectKeys(keys, n_step, gamma),
        batch_size=batch_size,
        prefetch=prefetch or None,
    )
    if seed is not None:
        buffer.set_rng(torch.Generator(device).manual_seed(seed))
    return buffer


class _ReplayBuffer(TensorDictReplayBuffer):
    """TorchRL's buffer, whose ``empty`` drops ticks held back and batches sampled ahead too."""

    def empty(self, empty_write_count: bool = True) -> None:
        with self._futures_lock:
            self._clear_prefetch_queue_locked()
            super().empty(empty_write_count)
        for transform in self._transform:
            if isinstance(transform, _SelectKeys):
                transform.empty()


class _Storage(LazyTensorStorage):
    """Storage that copies sampled rows column by column, which is faster from cold memory."""

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
        """Write rows like the first ones; TorchRL would broadcast, cast or leave others stale."""
        if self.initialized and isinstance(data, TensorDictBase):
            before, now = (
                {k: (v.dtype, v.shape[rows.batch_dims :]) for k, v in rows.items(True, True)}
                for rows in (self._storage, data)
            )
            if before.keys() != now.keys():
                more, fewer = (
                    ", ".join(sorted(map(str, keys)))
                    for keys in (now.keys() - before.keys(), before.keys() - now.keys())
                )
                raise ConfigError(
                    f"the data has {f'{more} as well' if more else f'no {fewer}'}, unlike the rows "
                    "in the buffer: every batch needs the same entries, and a resumed run the same "
                    "n_step"
                )
            for key, (dtype, shape) in before.items():
                if now[key] != (dtype, shape):
                    raise ConfigError(
                        f"{key} must be {dtype} of shape {list(shape)} in each row, as in the "
                        f"buffer, got {now[key][0]} of shape {list(now[key][1])}"
                    )
        super().set(cursor, data, set_cursor=set_cursor)

    def _init(self, data: TensorDictBase) -> None:
        try:
            super()._init(data)
        except RuntimeError as error:  # allocators raise it, as torch.OutOfMemoryError on CUDA
            size = self.max_size * sum(v.nbytes for v in data.values(True, True))
            raise ConfigError(
                f"capacity={self.max_size:,} transitions take {size / 2**30:,.1f} GiB, which "
                f"cannot be allocated on {self.device}: lower it (algo.replay_capacity)"
            ) from error


class _SelectKeys(Transform):
    """On ``extend``: select the keys, join ``n_step`` ticks, flatten to single rows."""

    def __init__(self, keys: Sequence[NestedKey], n_step: int, gamma: float | None) -> None:
        super().__init__()
        self._keys = list(keys)
        self._n_step = None if n_step == 1 else _NStep(n_step, gamma)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    def empty(self) -> None:
        """Drop the ticks held back."""
        if self._n_step is not None:
            self._n_step.empty()

    def get_extra_state(self) -> dict[str, Any]:
        return {} if self._n_step is None else self._n_step.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if self._n_step is not None:
            self._n_step.load_state_dict(state)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        kept = tensordict.select(*self._keys, strict=False)
        present = set(kept.keys(include_nested=True, leaves_only=True))
        ends = [("next", "done")] if self._n_step is not None else []
        for key in ("obs", "action", ("next", "obs"), ("next", "reward"), *ends):
            if key in self._keys and key not in present:
                given = [str(k) for k in tensordict.keys(include_nested=True, leaves_only=True)]
                raise ConfigError(
                    f"the data has no {key!r}, only {', '.join(sorted(given))}"
                    f"{did_you_mean(str(key), given)}; name the entries to keep with keys= of "
                    "make_replay_buffer"
                )
        return kept.reshape(-1) if self._n_step is None else self._n_step(kept)


class _NStep:
    """Joins the ticks of each environment to transitions over ``n_step`` ticks.

    TorchRL's transform gets rewards, flags and tick numbers only, and returns how far each row
    looks ahead. The observations, which are most of the data, are then copied once instead of at
    every step of the transform.
    """

    def __init__(self, n_step: int, gamma: float | None) -> None:
        self._settings = (n_step, gamma)
        self.empty()

    def empty(self) -> None:
        """Drop the ticks held back."""
        self._multi_step = MultiStepTransform(*self._settings)
        self._held: TensorDictBase | None = None  # The last n_step ticks, [n_step, N].
        self._ticks = 0

    def state_dict(self) -> dict[str, Any]:
        """The ticks held back, on the CPU."""
        held = None if self._held is None else self._held.cpu().clone().to_dict()
        return {"ticks": self._ticks, "held": held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.empty()
        if state.get("held") is not None:
            self._ticks = state["ticks"]
            shape = state["held"]["next"]["reward"].shape[:2]
            self._held = TensorDict(state["held"], shape)
            self._multi_step._buffer = self._outcomes(self._held)

    def __call__(self, data: TensorDictBase) -> TensorDictBase | None:
        """The ``[M]`` transitions that are complete after these ``[N, T]`` ticks."""
        if data.batch_dims == 1 and not has_time(data):
            raise ConfigError(
                "data must have batch size [N, T] in time order with n_step > 1, got "
                f"{list(data.batch_size)}: extend the buffer before flattening"
            )
        data = as_ticks(data)
        envs, new = data.batch_size
        if self._held is not None and self._held.batch_size[1] != envs:
            raise ConfigError(
                f"data must be of {self._held.batch_size[1]} environments as before, got {envs}: "
                "n_step > 1 joins the ticks of each environment"
            )
        # Copies: the caller may overwrite its memory while ticks are held back.
        arrived = data.transpose(0, 1)
        device = data.get(("next", "reward")).device
        if self._held is not None and self._held.get(("next", "reward")).device != device:
            self._held = self._held.to(device)  # after load_state_dict
            self._multi_step._buffer = self._multi_step._buffer.to(device)
        ticks: TensorDictBase = (
            arrived.clone() if self._held is None else torch.cat([self._held, arrived])
        )
        self._held = ticks[-self._multi_step.n_steps :]
        self._ticks += new
        ahead = self._multi_step._inv_call(self._outcomes(ticks[-new:]))
        if ahead is None:
            return None
        began = ticks[: ahead.batch_size[1]].transpose(0, 1).reshape(-1)
        last = ahead.get(("next", "tick")) - (self._ticks - len(ticks))
        env = torch.arange(envs, device=device).unsqueeze(-1)
        reached = _rows(ticks.get("next").reshape(-1), (last * envs + env).reshape(-1))
        reached.set("reward", ahead.get(("next", "reward")).flatten(0, 1))
        began.set("steps_to_next_obs", ahead.get("steps_to_next_obs").reshape(-1, 1))
        return began.set("next", reached)

    def _outcomes(self, ticks: TensorDictBase) -> TensorDictBase:
        """Rewards, flags and numbers ``[N, k]`` of the last ticks ``[k, N]``."""
        outcomes = ticks.transpose(0, 1).select(("next", "reward"), ("next", "done"))
        done = outcomes.get(("next", "done"))
        number = torch.arange(self._ticks - len(ticks), self._ticks, device=done.device)
        outcomes.set(("next", "tick"), number.expand(outcomes.batch_size))
        return outcomes.set(("next", "done"), done.bool())


def _rows(data: TensorDictBase, index: Tensor) -> TensorDictBase:
    """``data[index]`` in half to two thirds of the time from cold memory."""
    return data.apply(lambda column: column.index_select(0, index), batch_size=index.shape)
