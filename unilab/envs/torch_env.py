"""The lifecycle of every environment: one step, one reset, in one order."""

from __future__ import annotations

import hashlib
import math
import re
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from unilab.checks import to_device, to_num_envs, to_seed
from unilab.envs.nonfinite import MAX_VALUE, is_within, non_finite
from unilab.envs.torch_settings import PARALLEL_GRAIN, TorchSettings
from unilab.errors import CapabilityError, ConfigError, EnvFaultedError

FLAGS = ("done", "terminated", "truncated")
TRAINING_STATE_VERSION = 1
EPISODES_VERSION = 2
_UNSAVED_SETTINGS = r" at 0x[0-9a-f]+|num_threads=\d+|(?<=['\"])[^'\"]*/"
"""Parts of a configuration's text that may differ between runs: addresses, threads, folders."""


def control_steps(seconds: float, step_dt: float) -> int:
    """Whole control steps of a duration, rounded up."""
    return max(1, math.ceil(seconds / step_dt - 1e-6))  # 1.1 / 0.1 is a little above 11


@dataclass
class _State:
    """Mutable state; a separate object, as writing an attribute of an ``EnvBase`` is slow."""

    control_steps: int = 0
    observation: dict[str, Tensor] = field(default_factory=dict)
    """The last one, for the rows that a reset leaves alone. Callers get copies."""
    ended: tuple[Tensor, Tensor] | None = None
    """terminated and truncated, ``[num_envs]``, of episodes that ended and were not reset."""
    fault: BaseException | None = None
    fault_at: str = ""
    released: bool = False
    staggering: bool = False
    """Whether the next reset of all environments draws ``episode_length``."""
    seconds: dict[str, float] = field(
        default_factory=lambda: {"physics": 0.0, "managers": 0.0, "reset": 0.0}
    )
    timed_steps: int = 0


_SAVED = ("control_steps", "observation", "ended", "staggering")
"""Attributes of ``_State`` that are saved with the episodes."""


def _copied(tree: Any, device: torch.device | str) -> Any:
    """Copies on a device of the tensors in nested containers."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device, copy=True), tree)


class TorchEnv(EnvBase):
    """A batch of environments as a TorchRL ``EnvBase`` of batch size ``[num_envs]``.

    ``is_init`` marks the first observations of episodes, as TorchRL's ``InitTracker`` does.
    ``("next", ...)`` of a done row holds its terminal, pre-reset observation. TorchRL's
    ``step_and_maybe_reset`` then resets those rows only and puts their first observation at the
    root. A reset is one transaction: the whole payload is built and checked, then written once. A
    failure before the write leaves the environment as it was; a failure after it, or in a step once
    physics has begun, marks the environment as faulted: every later call raises
    :class:`~unilab.errors.EnvFaultedError`.

    Args:
        num_envs: environments in the batch.
        device: where observations, rewards and terminations are computed.
        seed: seed of ``generator``, 0 to 2^32 - 1; None draws one.
        staggered: whether the first episodes after seeding begin at random points of their time.

    Attributes:
        generator: the environment's random generator, the only source of its random numbers.
        max_episode_length: control steps until an episode times out; the task sets it.
        episode_length: ``[num_envs]`` int64, control steps since each episode began.
    """

    max_episode_length: int
    _supports_set_state = False
    _generator_device: ClassVar[str | None] = None
    """Device of ``generator``; None: the environment's."""

    def __init__(
        self,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        staggered: bool = False,
    ) -> None:
        device, num_envs, seed = to_device(device), to_num_envs(num_envs), to_seed(seed)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise CapabilityError(
                f"device must be available, got {str(device)!r}, but PyTorch sees "
                f"{torch.cuda.device_count()} CUDA devices: use device='cpu'"
            )
        super().__init__(device=device, batch_size=torch.Size([num_envs]))
        self.num_envs = num_envs
        self.generator = torch.Generator(device=self._generator_device or self.device)
        # generator.seed() and not torch.seed(), which would reseed the caller's global generator.
        self.generator.seed() if seed is None else self.generator.manual_seed(seed)
        self.episode_length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._all_rows = torch.arange(num_envs, device=self.device)
        self._state = _State(staggering=staggered)
        # Now, because a term may change what is in its params.
        settings = re.sub(_UNSAVED_SETTINGS, "", repr(getattr(self, "cfg", None)))
        self._digest = hashlib.sha256(settings.encode()).hexdigest()
        self._staggered = staggered
        self.episodes_problem = ""
        """Why the last :meth:`export_episodes` returned nothing."""

    @property
    def common_step_counter(self) -> int:
        """Control steps so far, over all episodes; curricula read it."""
        return self._state.control_steps

    @property
    def obs_buf(self) -> dict[str, Tensor]:
        """Copies of every environment's last observation; zeros before the first reset."""
        if self._state.observation:
            return {group: value.clone() for group, value in self._state.observation.items()}
        return {
            group: torch.zeros(self.num_envs, width, dtype=torch.float32, device=self.device)
            for group, width in self.obs_groups_spec.items()
        }

    def extra_repr(self) -> str:
        shown: dict[str, object] = {"num_envs": self.num_envs}
        if "_action_shape" in vars(self):  # not while the environment is built
            shown |= {**self.obs_groups_spec, "action": self._action_shape[-1]}
        shown["device"] = self.device
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    def describe(self) -> str:
        """A printable description of the task."""
        return repr(self)

    def set_output_dir(self, path: str) -> None:
        """Choose the folder for files that the environment writes, such as NaN dumps."""

    def drain_metrics(self) -> dict[str, float]:
        """Milliseconds a control step since the last call; empty if there was no step.

        ``Perf/physics_ms`` is controls, physics and its packed read, ``Perf/managers_ms`` the rest
        of a step, ``Perf/reset_ms`` resets.
        """
        steps, seconds = self._state.timed_steps, self._state.seconds
        if not steps:
            return {}
        self._state.timed_steps, self._state.seconds = 0, dict.fromkeys(seconds, 0.0)
        return {f"Perf/{name}_ms": 1e3 * spent / steps for name, spent in seconds.items()}

    @property
    def mirror(self) -> dict[str, tuple[Tensor, Tensor]] | None:
        """The task's left-right mirror; None if it declares none.

        By key of the data, ``obs``, ``critic`` and ``action``: the index and the sign, ``[width]``
        on the CPU, with which ``mirrored = value[..., index] * sign``.
        """
        return None

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

        ``rows`` are environments whose episodes begin; None: all environments, after a step.
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
        """Called at the end of a step, before its results are returned."""

    def _end_episodes(self, rows: Tensor) -> None:
        """Called before a reset writes over the episodes of some rows; may still fail safely."""

    def _after_reset(self, rows: Tensor) -> None:
        """Called when the episodes of some rows have begun."""

    def _on_refused_reset(self, error: BaseException, rows: Tensor) -> None:
        """Diagnose a reset that failed before the write; the generator is restored afterwards."""

    def _on_fault(self, error: BaseException) -> None:
        """Save diagnostics before the environment is marked as faulted."""

    def _export_task(self) -> dict[str, Any] | None:
        """What the task and its physics keep; None: it cannot be saved. The caller copies it."""
        return None

    def _import_task(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`_export_task`; may fail halfway."""

    def _make_specs(self, action_dim: int, max_action: float = MAX_VALUE) -> None:
        """Publish TorchRL's specs; call at the end of construction.

        Larger actions than ``max_action`` are refused: physics would take their controls as 0.
        """
        groups, n, device = self.obs_groups_spec, self.num_envs, self.device
        self._action_shape, self._max_action = torch.Size((n, action_dim)), max_action
        small = device.type == "cpu" and n * max(action_dim, *groups.values()) < PARALLEL_GRAIN
        self._settings = TorchSettings(one_thread=small)
        self.observation_spec = Composite(
            {k: Unbounded((n, width), device=device) for k, width in groups.items()},
            shape=(n,),
            device=device,
        )
        self.action_spec = Bounded(-1.0, 1.0, (n, action_dim), device=device)
        self.reward_spec = Unbounded((n, 1), device=device)
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool, device=device)
        self.done_spec = Composite({k: flag.clone() for k in FLAGS}, shape=(n,), device=device)
        self.observation_spec["is_init"] = flag

    @torch.inference_mode(False)  # tensors that are kept must outlive the caller's inference mode
    @torch.no_grad()
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_usable()
        action = self._checked_action(tensordict)
        with self._settings:
            try:
                began = time.perf_counter()
                self._physics(action)
                moved = time.perf_counter()
                self._state.control_steps += 1
                self.episode_length.add_(1)
                reward, terminated, truncated = self._evaluate()
                observation = self._observe()
                self._state.ended, self._state.observation = (terminated, truncated), observation
                self._after_step()
                # Copies: the caller may write into the returned tensors.
                observation = {k: v.clone() for k, v in observation.items()}
                flags = torch.stack((terminated, truncated)).unsqueeze(-1)
                reward = reward.unsqueeze(-1).clone()
            except BaseException as error:
                self._set_fault(error, "step")
        self._state.seconds["physics"] += moved - began
        self._state.seconds["managers"] += time.perf_counter() - moved
        self._state.timed_steps += 1
        return TensorDict._new_unsafe(
            {
                **observation,
                "reward": reward,
                "terminated": flags[0],
                "truncated": flags[1],
                "done": flags[0] | flags[1],
                "is_init": torch.zeros_like(flags[0]),
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
        """TorchRL's reset, or a reset of some environments by their indices.

        Args:
            tensordict: with a ``"_reset"`` mask ``[num_envs, 1]`` to reset part of the batch.
            env_ids: ``[n]`` integers, in place of the mask.
            **kwargs: as TorchRL's.
        """
        if env_ids is None:
            return super().reset(tensordict, **kwargs)
        if tensordict is None:
            current = self.obs_buf | self._flags()
            tensordict = TensorDict(current, self.batch_size, device=self.device)
        mask = torch.zeros(self.num_envs, 1, dtype=torch.bool, device=self.device)
        mask.index_fill_(0, self._checked_rows(env_ids), True)
        return super().reset(tensordict.copy().set("_reset", mask), **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        self._check_usable()
        mask, rows = None if tensordict is None else tensordict.get("_reset", None), self._all_rows
        if mask is not None:
            n = self.num_envs
            if mask.dtype != torch.bool or mask.shape not in ((n,), (n, 1)):
                raise ConfigError(
                    f"_reset must be a torch.bool mask of shape {(n, 1)}, got {mask.dtype} of "
                    f"shape {tuple(mask.shape)}"
                )
            rows = mask.reshape(n).nonzero().flatten()
        begun = self._begin_episodes(rows)
        if self._state.ended is not None:
            terminated, truncated = (flag.index_fill(0, rows, False) for flag in self._state.ended)
            self._state.ended = terminated, truncated
        return TensorDict._new_unsafe(
            begun | self._flags(), batch_size=self.batch_size, device=self.device
        )

    @torch.inference_mode(False)
    @torch.no_grad()
    def _begin_episodes(self, rows: Tensor) -> dict[str, Tensor]:
        """Reset some rows as one transaction; return every row's observation and new flags."""
        began = time.perf_counter()
        whole = rows.shape[0] == self.num_envs
        with self._settings:
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
                    "the environment is unchanged."
                )
                raise
            try:
                if rows.shape[0]:
                    self.episode_length.index_fill_(0, rows, 0)
                    self._commit_reset(rows)
                    if whole and self._state.staggering:
                        self._state.staggering = False
                        most = self.max_episode_length
                        drawn = self.episode_length.to(self.generator.device)
                        self.episode_length.copy_(drawn.random_(0, most, generator=self.generator))
                last = self._state.observation
                fresh = self._observe(rows if last else self._all_rows)
                if last and not whole:
                    fresh = {k: last[k].index_copy(0, rows, value) for k, value in fresh.items()}
                self._state.observation = fresh
                self._after_reset(rows)
            except BaseException as error:
                self._set_fault(error, "reset")
        self._state.seconds["reset"] += time.perf_counter() - began
        flags = torch.zeros(4, self.num_envs, 1, dtype=torch.bool, device=self.device)
        flags[3].index_fill_(0, rows, True)
        fresh = {k: v.clone() for k, v in fresh.items()}
        return {**fresh, **dict(zip((*FLAGS, "is_init"), flags, strict=True))}

    @classmethod
    def _complete_done(cls, done_spec: Composite, data: TensorDictBase) -> TensorDictBase:
        # A step and a reset return all three flags in their final shape.
        return data

    def _step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """TorchRL's loop body, specialised to one level of plain tensors.

        It gives the same result as TorchRL's own, which walks trees of keys. Anything else
        (entries that are not plain tensors, partial steps, hooks) goes to TorchRL's.
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
        kept = (*self._state.observation, *FLAGS, "is_init")
        root.update((key, after.get(key)) for key in kept)
        done = root["done"]
        if done.any():
            rows = done.flatten().nonzero().flatten()
            begun = self._begin_episodes(rows)
            self._state.ended = None
            if rows.shape[0] < self.num_envs:
                # The root of a new episode keeps nothing of the one that ended.
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
            "sent: pass a function that makes one, such as unilab.registry.factory(task)"
        )

    def close(self, *, raise_if_closed: bool = True) -> None:
        self._state.released = True
        super().close(raise_if_closed=raise_if_closed)

    def _set_seed(self, seed: int | None) -> None:
        if (seed := to_seed(seed)) is not None:
            self.generator.manual_seed(seed)
        self._state.staggering = self._staggered

    def export_training_state(self) -> dict[str, Any]:
        """The environment's part of a checkpoint: version 1 and the control steps so far."""
        return {"version": TRAINING_STATE_VERSION, "control_steps": self._state.control_steps}

    def import_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`export_training_state`."""
        version, steps = state.get("version"), state.get("control_steps")
        if version != TRAINING_STATE_VERSION or type(version) is not int:
            raise ConfigError(
                f"version of an environment's training state must be {TRAINING_STATE_VERSION}, "
                f"got {version!r}"
            )
        if type(steps) is not int or steps < 0:
            raise ConfigError(f"control_steps must be a non-negative integer, got {steps!r}")
        self._state.control_steps = steps

    def export_episodes(self) -> dict[str, Any]:
        """The running episodes: all that later steps depend on, physics and generator included.

        Nested dicts of tensors on the CPU and plain values; empty if the task cannot be saved
        (``episodes_problem`` says why), and once the environment has failed or is closed.
        """
        self.episodes_problem = ""
        usable = self._state.fault is None and not self._state.released
        try:
            task = self._export_task() if usable else None
        except ConfigError as error:
            task, self.episodes_problem = None, str(error)
        if task is None:
            return {}
        own = {name: getattr(self._state, name) for name in _SAVED}
        return {
            "version": EPISODES_VERSION,
            **self._episodes_of(),
            "generator": self.generator.get_state(),
            "episode_length": _copied(self.episode_length, "cpu"),
            "own": _copied(own, "cpu"),
            "task": _copied(task, "cpu"),
        }

    def import_episodes(self, state: Mapping[str, Any]) -> None:
        """Continue bit for bit from :meth:`export_episodes` of an environment with these settings.

        After an error the environment continues its own episodes.
        """
        self._check_usable()
        if state.get("version") != EPISODES_VERSION:
            raise ConfigError(
                f"version of the saved episodes must be {EPISODES_VERSION}, got "
                f"{state.get('version', 1)}"
            )
        before = self.export_episodes()
        for name, value in self._episodes_of().items():
            if state.get(name) != value:
                raise ConfigError(f"{name} must be those of the saved episodes, got others")
        try:
            self._import_episodes(state)
        except Exception as error:
            if before:
                self._import_episodes(before)
            raise ConfigError(
                f"saved episodes must be those of this task and version of unilab, got {error!r}"
            ) from error

    def _episodes_of(self) -> dict[str, Any]:
        """What must agree between the saved episodes and the environment that continues them."""
        return {"settings": self._digest, "num_envs": self.num_envs, "device": self.device.type}

    def _import_episodes(self, state: Mapping[str, Any]) -> None:
        self._import_task(state["task"])
        self.generator.set_state(state["generator"])
        self.episode_length.copy_(state["episode_length"])
        for name in _SAVED:
            setattr(self._state, name, _copied(state["own"][name], self.device))

    def _checked_action(self, tensordict: TensorDictBase) -> Tensor:
        """The action of a step that advances every environment."""
        mask = tensordict.get("_step", None)
        if mask is not None and not mask.all():
            rows = (~mask).flatten().nonzero().flatten()[:8].tolist()
            raise CapabilityError(
                f"'_step' must be true for every environment, got False for {rows}: instead of "
                "break_when_all_done=True, use env.rollout(n, break_when_any_done=False)"
            )
        action = tensordict["action"]
        wanted = (torch.float32, self._action_shape, self.device)
        if (action.dtype, action.shape, action.device) != wanted:
            raise ConfigError(
                f"action must be {wanted[0]} of shape {tuple(wanted[1])} on {wanted[2]}, got "
                f"{action.dtype} of shape {tuple(action.shape)} on {action.device}"
            )
        if not is_within(action, self._max_action):
            what = f"actions are not finite or beyond {self._max_action:g} (look at the policy)"
            raise non_finite(what, {"action": action}, limit=self._max_action)
        return action

    def _checked_rows(self, env_ids: Tensor) -> Tensor:
        """``[n]`` int64 in ascending order, on the environment's device."""
        integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
        if isinstance(env_ids, Tensor) and env_ids.ndim == 1 and env_ids.dtype in integers:
            rows = env_ids.to(self.device, torch.int64).sort().values
            outside = (rows < 0) | (rows >= self.num_envs)
            outside[1:] |= rows[1:] == rows[:-1]  # twice
            if not outside.any():
                return rows
        raise ConfigError(
            f"env_ids must be a 1-D integer tensor of distinct rows in [0, {self.num_envs}), "
            f"got {env_ids}"
        )

    def _flags(self) -> dict[str, Tensor]:
        """New ``[num_envs, 1]`` flags of episodes that ended and were not reset."""
        zeros = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        terminated, truncated = self._state.ended or (zeros, zeros)
        flags = (terminated | truncated, terminated.clone(), truncated.clone())
        return {k: flag.unsqueeze(-1) for k, flag in zip(FLAGS, flags, strict=True)}

    def _check_usable(self) -> None:
        if self._state.fault is not None:
            raise EnvFaultedError(
                f"the environment failed earlier, {self._state.fault_at} "
                f"({type(self._state.fault).__name__}: {self._state.fault}); "
                "its state is undefined: make a new one"
            ) from self._state.fault
        if self._state.released:
            raise EnvFaultedError("the environment is closed: make a new one")

    def _set_fault(self, error: BaseException, what: str) -> NoReturn:
        self._state.fault = error
        self._state.fault_at = f"in a {what} after {self._state.control_steps} control steps"
        error.add_note(f"The environment failed {self._state.fault_at} and can no longer be used.")
        self._on_fault(error)
        raise error
