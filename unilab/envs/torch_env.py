"""The lifecycle of every environment: one step, one reset, in one order."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from unilab.checks import to_device, to_num_envs, to_seed
from unilab.envs.given import (
    TRAINING_STATE_VERSION,
    checked_action,
    control_steps_of,
    rows_left_out,
    rows_of_ids,
    rows_of_mask,
)
from unilab.envs.life import FLAGS, Life
from unilab.envs.threads import PARALLEL_GRAIN, OneThread
from unilab.errors import CapabilityError, ConfigError


class TorchEnv(EnvBase):
    """A batch of environments as a TorchRL ``EnvBase`` of batch size ``[num_envs]``.

    A step validates the action, advances physics, evaluates the new state and returns it under
    ``"next"``. All environments take it: TorchRL's ``"_step"`` mask may leave out only those whose
    episodes have ended, which then show their end again. Rows that are done keep their terminal,
    pre-reset observation in ``"next"``; TorchRL's ``step_and_maybe_reset`` then resets those rows
    only and puts their first observation at the root. A reset is one transaction: the whole payload
    is built and checked, then written once. A failure before the write leaves the environment as it
    was; a failure after it, or in a step once physics has begun, faults the environment for good.

    Args:
        num_envs: environments in the batch.
        device: where observations, rewards and terminations are computed.
        seed: seed of the environment's own random generator, 0 to 2^32 - 1; None draws one.

    Raises:
        ConfigError: num_envs, device or seed is none.
        CapabilityError: the device is not there.

    Attributes:
        generator: the environment's random generator; nothing else is drawn from.
        episode_length: ``[num_envs]`` int64, control steps since each episode began.
        on_span: called with ``"physics"`` (controls, physics and its packed read), ``"managers"``
            or ``"reset"`` and the begin and end of each in ns of ``time.perf_counter_ns``; None:
            nobody wants to know.
    """

    _supports_set_state = False
    on_span: Callable[[str, int, int], None] | None = None

    def __init__(
        self, *, num_envs: int, device: torch.device | str = "cpu", seed: int | None = None
    ) -> None:
        device, num_envs, seed = to_device(device), to_num_envs(num_envs), to_seed(seed)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise CapabilityError(
                f"device is {str(device)!r}, but PyTorch sees {torch.cuda.device_count()} CUDA "
                "devices: use device='cpu' or a device that is there"
            )
        super().__init__(device=device, batch_size=torch.Size([num_envs]))
        self.num_envs = num_envs
        self.generator = torch.Generator(device=self.device)
        # A seed of the generator's own: torch.seed() would reseed the caller's global one.
        self.generator.seed() if seed is None else self.generator.manual_seed(seed)
        self.episode_length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._all_rows = torch.arange(num_envs, device=self.device)
        self._life = Life(num_envs, self.device)

    @property
    def common_step_counter(self) -> int:
        """Control steps so far, over all episodes; what a curriculum goes by."""
        return self._life.control_steps

    @property
    def standing_rows(self) -> Tensor | None:
        """``[n]``, ended environments that the step under way leaves out; None: there are none."""
        return self._life.standing

    @property
    def obs_buf(self) -> dict[str, Tensor]:
        """The last observation of every environment by group; zeros before the first reset."""
        return self._life.observation or {
            group: torch.zeros(self.num_envs, width, device=self.device)
            for group, width in self.obs_groups_spec.items()
        }

    def extra_repr(self) -> str:
        """What ``repr`` shows: how many, the widths of observations and actions, where."""
        widths = {**self.obs_groups_spec, "action": self._action_shape[-1]}
        shown = {"num_envs": self.num_envs, **widths, "device": self.device}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    def describe(self) -> str:
        """What the environment is made of, for people."""
        return repr(self)

    def set_output_dir(self, path: str) -> None:
        """Choose the folder of what the environment writes, if it writes anything.

        A training run gives its own folder.
        """

    # What an environment fills in ---------------------------------------------------------------

    @property
    @abstractmethod
    def obs_groups_spec(self) -> dict[str, int]:
        """Widths of the observation groups: ``obs`` and, if there is one, ``critic``."""

    @abstractmethod
    def _physics(self, action: Tensor) -> None:
        """Turn the action into controls, advance physics by a control step and read it."""

    @abstractmethod
    def _evaluate(self) -> tuple[Tensor, Tensor, Tensor]:
        """Reward, terminated and truncated of the new state, ``[num_envs]`` each."""

    @abstractmethod
    def _observe(self, rows: Tensor | None = None) -> dict[str, Tensor]:
        """New tensors for every observation group, ``[n, width]``.

        Args:
            rows: environments that begin an episode; None: all have gone on by a step.
        """

    @abstractmethod
    def _stage_reset(self, rows: Tensor) -> None:
        """Build and check the whole reset payload; write nothing."""

    @abstractmethod
    def _commit_reset(self, rows: Tensor) -> None:
        """Write the payload, begin the rows' episodes and read their new state."""

    def _discard_reset(self) -> None:
        """Drop a payload that was not written."""

    def _after_step(self) -> None:
        """Look at a step that is whole."""

    def _end_episodes(self, rows: Tensor) -> None:
        """Look at the episodes that end in some rows, before the reset writes over them.

        A failure in it is one before the write.
        """

    def _after_reset(self, rows: Tensor) -> None:
        """Look at the episodes that have begun in some rows."""

    def _on_refused_reset(self, error: BaseException, rows: Tensor) -> None:
        """Look into a reset that failed before the write; what this draws is drawn again."""

    def _on_fault(self, error: BaseException) -> None:
        """Keep what may explain a failure, before the environment is given up."""

    # The lifecycle ------------------------------------------------------------------------------

    def _make_specs(self, action_dim: int) -> None:
        """Publish TorchRL's specs; call at the end of construction."""
        groups = self.obs_groups_spec
        unknown = sorted(set(groups) - {"obs", "critic"})
        if unknown or "obs" not in groups:
            raise ConfigError(
                f"observation groups are {sorted(groups)}: expected 'obs' and, optionally, 'critic'"
            )
        n, device = self.num_envs, self.device
        self._action_shape = torch.Size((n, action_dim))
        small = device.type == "cpu" and n * max(action_dim, *groups.values()) < PARALLEL_GRAIN
        self._threads: AbstractContextManager[None] = OneThread() if small else nullcontext()
        self.observation_spec = Composite(
            {k: Unbounded((n, width), device=device) for k, width in groups.items()},
            shape=(n,),
            device=device,
        )
        self.action_spec = Bounded(-1.0, 1.0, (n, action_dim), device=device)
        self.reward_spec = Unbounded((n, 1), device=device)
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool, device=device)
        self.done_spec = Composite(
            {k: flag.clone() for k in FLAGS},
            shape=(n,),
            device=device,
        )

    @torch.inference_mode(False)  # what is kept must outlive the caller's inference mode
    @torch.no_grad()
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._life.check_usable()
        action = checked_action(tensordict.get("action", None), self._action_shape, self.device)
        standing = self._life.standing = rows_left_out(
            tensordict.get("_step", None), self._life.ended, self.num_envs
        )
        with self._threads:
            try:
                began = time.perf_counter_ns()
                self._physics(action)
                moved = time.perf_counter_ns()
                self._life.control_steps += 1
                self.episode_length.add_(1)
                reward, terminated, truncated = self._evaluate()
                observation = self._observe()
                if standing is not None:
                    self.episode_length[standing] -= 1
                    reward = reward.index_fill(0, standing, 0.0)
                    terminated, truncated, observation = self._life.as_ended(
                        standing, terminated, truncated, observation
                    )
                self._life.ended, self._life.observation = (terminated, truncated), observation
                self._after_step()
                # Copies: the caller may write into what it was given.
                observation = {k: v.clone() for k, v in observation.items()}
                flags = torch.stack((terminated, truncated)).unsqueeze(-1)
                reward = reward.unsqueeze(-1).clone()
            except BaseException as error:
                self._set_fault(error, "step")
        if self.on_span is not None:
            self.on_span("physics", began, moved)
            self.on_span("managers", moved, time.perf_counter_ns())
        return TensorDict._new_unsafe(
            {
                **observation,
                "reward": reward,
                "terminated": flags[0],
                "truncated": flags[1],
                "done": flags[0] | flags[1],
            },
            batch_size=self.batch_size,
            device=self.device,
        )

    def reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        env_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> TensorDictBase:
        """TorchRL's reset, or one of some environments.

        Args:
            tensordict: with a ``"_reset"`` mask ``[num_envs, 1]`` for a part of the environments.
            env_ids: ``[n]`` integers, in place of the mask.
            **kwargs: as TorchRL's.

        Returns:
            Every environment's observation and flags.

        Raises:
            ConfigError: a mask or rows that do not fit, or both.
        """
        if env_ids is None:
            return super().reset(tensordict, **kwargs)
        if tensordict is not None and "_reset" in tensordict:
            raise ConfigError("reset was given env_ids and a '_reset' mask: give one of them")
        rows = rows_of_ids(env_ids, self.num_envs, self.device)
        if tensordict is None and not kwargs:  # nothing of the caller's to merge with
            begun = self._reset_rows(rows)
            return TensorDict._new_unsafe(begun, batch_size=self.batch_size, device=self.device)
        given = self._standing() if tensordict is None else tensordict.copy()
        mask = torch.zeros(self.num_envs, 1, dtype=torch.bool, device=self.device)
        return super().reset(given.set("_reset", mask.index_fill_(0, rows, True)), **kwargs)

    def _reset(
        self, tensordict: TensorDictBase | None = None, *, env_ids: Tensor | None = None
    ) -> TensorDictBase:
        """Begin episodes in the rows of ``_reset``, or in all."""
        if env_ids is not None:
            raise ConfigError(
                "reset was given env_ids through a transform, which would take them as all rows: "
                "give a TensorDict with a '_reset' mask"
            )
        mask = None if tensordict is None else tensordict.get("_reset", None)
        rows = self._all_rows if mask is None else rows_of_mask(mask, self.num_envs)
        begun = self._reset_rows(rows)
        return TensorDict._new_unsafe(begun, batch_size=self.batch_size, device=self.device)

    def _reset_rows(self, rows: Tensor) -> dict[str, Tensor]:
        """Begin episodes in some rows; every row's observations and flags."""
        self._life.check_usable()
        begun = self._begin_episodes(rows)
        self._life.begin(rows)
        return begun | self._life.flags()

    def _standing(self) -> TensorDict:
        """What the environments show now, of ended episodes as well."""
        root = {k: v.clone() for k, v in self.obs_buf.items()} | self._life.flags()
        return TensorDict(root, self.batch_size, device=self.device)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _begin_episodes(self, rows: Tensor) -> dict[str, Tensor]:
        """Reset some rows as one transaction.

        Returns:
            What a reset returns of every row: its observations and three flags that are False. The
            observations of rows that were not reset are the last ones.
        """
        began = time.perf_counter_ns()
        whole = rows.shape[0] == self.num_envs
        with self._threads:
            before = self.generator.get_state()
            try:
                if rows.shape[0]:
                    self._stage_reset(rows)
                    self._end_episodes(rows)
            except BaseException as error:
                self._discard_reset()
                self.generator.set_state(before)
                self._on_refused_reset(error, rows)
                self.generator.set_state(before)
                error.add_note(
                    f"The reset, after {self.common_step_counter} control steps, wrote nothing: "
                    "the environment is as it was before."
                )
                raise
            try:
                if rows.shape[0]:
                    self.episode_length.index_fill_(0, rows, 0)
                    self._commit_reset(rows)
                fresh = self._observe(rows)
                if not whole:
                    last = self._life.observation or self._observe(self._all_rows)
                    fresh = {k: last[k].index_copy(0, rows, value) for k, value in fresh.items()}
                self._life.observation = fresh
                self._after_reset(rows)
            except BaseException as error:
                self._set_fault(error, "reset")
        if self.on_span is not None:
            self.on_span("reset", began, time.perf_counter_ns())
        flags = torch.zeros(3, self.num_envs, 1, dtype=torch.bool, device=self.device)
        fresh = {k: v.clone() for k, v in fresh.items()}
        return {**fresh, **dict(zip(FLAGS, flags, strict=True))}

    @classmethod
    def _complete_done(cls, done_spec: Composite, data: TensorDictBase) -> TensorDictBase:
        # A step and a reset return all three flags in their final shape.
        return data

    def _step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """TorchRL's loop body for the one level of keys that this environment has.

        The same result as TorchRL's own, which walks trees of keys to get there; whatever goes
        beyond (entries of a caller that are not plain tensors, partial steps, hooks) is left to it.
        """
        plain = (
            type(tensordict) is TensorDict
            and tensordict.device == self.device
            and self._post_step_mdp_hooks is None
            and not self.run_type_checks
            and all(
                isinstance(value, Tensor) and key not in ("_step", "_reset")
                for key, value in tensordict.items()
            )
        )
        if not plain:
            return super()._step_and_maybe_reset(tensordict)
        self._assert_tensordict_shape(tensordict)
        after = self._step(tensordict)
        tensordict._set_str("next", after, validated=True, inplace=False, non_blocking=False)
        root = {k: v for k, v in tensordict.items() if k not in ("next", "reward")}
        root.update((key, after.get(key)) for key in (*self._life.observation, *FLAGS))
        done = root["done"]
        if done.any():
            rows = done.flatten().nonzero().flatten()
            begun = self._begin_episodes(rows)
            self._life.ended = None
            if rows.shape[0] < self.num_envs:
                # Nothing of an episode that ended stays at the root of the next one.
                for key, value in root.items():
                    if key not in begun:
                        ended = done.reshape(-1, *(1,) * (value.ndim - 1))
                        root[key] = value.masked_fill(ended, 0)
            root.update(begun)
        return tensordict, TensorDict._new_unsafe(
            root, batch_size=self.batch_size, device=self.device
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds physics in this process's memory and cannot be copied or "
            "sent: give a function that makes one, such as unilab.registry.factory(task)"
        )

    def close(self, *, raise_if_closed: bool = True) -> None:
        """End the environment; a second call does nothing."""
        self._life.released = True
        super().close(raise_if_closed=raise_if_closed)

    def _set_seed(self, seed: int | None) -> None:
        if (seed := to_seed(seed)) is not None:
            self.generator.manual_seed(seed)

    def export_training_state(self) -> dict[str, int]:
        """What a checkpoint keeps of the environment: version 1, control steps so far."""
        return {"version": TRAINING_STATE_VERSION, "control_steps": self._life.control_steps}

    def import_training_state(self, state: dict[str, int]) -> None:
        """Continue from a checkpoint.

        Raises:
            ConfigError: another version, or a counter that is not a non-negative integer.
        """
        self._life.control_steps = control_steps_of(state)

    def _set_fault(self, error: BaseException, what: str) -> NoReturn:
        self._life.fail(error, what)
        self._on_fault(error)
        raise error
