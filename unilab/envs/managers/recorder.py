"""Recorders: whole episodes as TensorDicts, in memory or in memory-mapped folders."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from unilab.checks import Count, check_fields
from unilab.envs.managers.term import ANY_ROWS, Term, bind_term, evaluate
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_MODES = ("pre_step", "post_step", "post_reset", "pre_reset")
_PREFIX = "episode_"


@dataclass(frozen=True, kw_only=True)
class RecorderTermCfg:
    """One quantity that is recorded of every episode, under the term's name."""

    func: Callable[..., Tensor]
    """``func(env, **params) -> [num_envs, ...]``: any observation, reward or termination term, or
    your own. It must not change the environment."""
    mode: Literal["pre_step", "post_step", "pre_reset", "post_reset"]
    """pre_step: in every step, before physics; post_step: in every step, after everything else;
    post_reset: once, when the episode has begun; pre_reset: once, before the reset that ends it."""
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "recorder")


@dataclass(frozen=True, kw_only=True)
class RecordingCfg:
    """Limits of the recorders."""

    num_envs: Count | None = None
    """Environments that are recorded, the first ones; None records all."""
    max_steps: Count | None = None
    """Control steps that are kept of an episode, the first ones; None keeps ``episode_length_s``.
    Each environment takes the memory of an episode of this length."""
    max_episodes: Count = 1000
    """Episodes that are kept in memory until they are drained, or in the folder in all. Later ones
    are not recorded."""

    def __post_init__(self) -> None:
        check_fields(self, "recording")


class RecorderManager:
    """Keeps the values of its terms until an episode ends.

    An episode is a TensorDict: ``steps`` of batch size ``[length]`` with the terms of every step,
    ``start`` (post_reset) and ``end`` (pre_reset), and ``env_id``, ``terminated``, ``truncated``
    and ``complete``: whether ``steps`` holds all of its steps. An episode that a reset interrupts
    is neither terminated nor truncated; one that runs when the environment is closed is lost.

    Args:
        cfg: the terms.
        recording: the limits.
        env: the environment.
    """

    def __init__(
        self,
        cfg: Mapping[str, RecorderTermCfg],
        recording: RecordingCfg,
        env: ManagerBasedRlEnv,
    ) -> None:
        self._env = env
        self._terms: dict[str, list[Term]] = {mode: [] for mode in _MODES}
        for name, term in cfg.items():
            if not name.isidentifier():  # it becomes a file's name
                raise ConfigError(f"recorder term {name!r} must be named like a Python variable")
            self._terms[term.mode].append(bind_term(env, "recorder", name, term, ANY_ROWS))
        self.active = bool(cfg)
        """Whether anything is recorded."""
        self._rows = min(recording.num_envs or env.num_envs, env.num_envs)
        self._max_steps = recording.max_steps or env.max_episode_length
        self._max_episodes = recording.max_episodes
        self._folder: _EpisodeFolder | None = None
        self._all = torch.arange(self._rows, device=env.device)
        self._length = torch.zeros_like(self._all)
        self._steps: dict[str, Tensor] = {}
        self._once: dict[str, Tensor] = {}
        self._ended: list[TensorDict] = []
        for mode, terms in self._terms.items():
            for bound in terms:
                with torch.inference_mode():
                    shape, dtype = (value := bound.dry_run(env)).shape[1:], value.dtype
                if mode.endswith("step"):
                    # The last place takes the steps beyond the limit.
                    shape = (self._max_steps + 1, *shape)
                kept = torch.zeros(self._rows, *shape, dtype=dtype, device=env.device)
                (self._steps if mode.endswith("step") else self._once)[bound.name] = kept

    def set_folder(self, folder: Path) -> None:
        """Write episodes to a folder from now on, instead of keeping them to be drained."""
        self._folder = _EpisodeFolder(folder, self._max_episodes)

    def record_pre_step(self) -> None:
        """Record the pre-step terms."""
        self._record_step("pre_step")

    def record_post_step(self) -> None:
        """Record the post-step terms."""
        self._record_step("post_step")
        self._length += 1

    def record_post_reset(self, env_ids: Tensor) -> None:
        """Record the beginning of episodes of rows ``[n]``."""
        rows = env_ids[env_ids < self._rows]
        self._length.index_fill_(0, rows, 0)
        self._record_once("post_reset", rows)

    def record_pre_reset(self, env_ids: Tensor) -> None:
        """Record the end of episodes of rows ``[n]`` and store them."""
        rows = env_ids[env_ids < self._rows]
        rows = rows[self._length[rows] > 0]
        if not rows.shape[0]:
            return
        self._record_once("pre_reset", rows)
        for row in rows.tolist():
            if self._folder is not None:
                if not self._folder.full:
                    self._folder.write(self._episode(row))
            elif len(self._ended) < self._max_episodes:
                self._ended.append(self._episode(row))
            self._length[row] = 0  # now, so that it is not stored twice after a failure

    def drain(self) -> list[TensorDict]:
        """Episodes that ended since the last call, on the CPU; empty if they go to a folder."""
        ended, self._ended = self._ended, []
        return ended

    def _record_step(self, mode: str) -> None:
        terms = self._terms[mode]
        place = self._length.clamp(max=self._max_steps)
        for term, value in zip(terms, evaluate(terms, self._env), strict=True):
            self._steps[term.name][self._all, place] = value[: self._rows]

    def _record_once(self, mode: str, rows: Tensor) -> None:
        terms = self._terms[mode]
        for term, value in zip(terms, evaluate(terms, self._env), strict=True):
            self._once[term.name][rows] = value[rows]

    def _episode(self, row: int) -> TensorDict:
        length = int(self._length[row])
        kept = min(length, self._max_steps)
        steps = {name: value[row, :kept].cpu().clone() for name, value in self._steps.items()}
        start, end = (
            {term.name: self._once[term.name][row].cpu().clone() for term in self._terms[mode]}
            for mode in ("post_reset", "pre_reset")
        )
        done = self._env.termination_manager
        return TensorDict(
            {
                "steps": TensorDict(steps, batch_size=[kept]),
                "start": TensorDict(start),
                "end": TensorDict(end),
                "env_id": torch.tensor(row),
                "terminated": done.terminated[row].cpu().clone(),
                "truncated": done.truncated[row].cpu().clone(),
                "complete": torch.tensor(kept == length),
            }
        )

    def __str__(self) -> str:
        where = "in memory" if self._folder is None else f"in {self._folder.path}"
        limits = f" ({self._rows} environments, {self._max_episodes} episodes {where})"
        lines = ["recorders" + (limits if self.active else "")]
        lines += [f"  {t.name:<28} {mode}" for mode, ts in self._terms.items() for t in ts]
        return "\n".join(lines)


class _EpisodeFolder:
    """A folder of numbered episodes, which several environments may write to."""

    def __init__(self, path: Path, max_episodes: int) -> None:
        self.path = path
        self._max = max_episodes
        found = _episodes(path)
        self._count = len(found)
        self._next = _number(found[-1]) + 1 if found else 0

    @property
    def full(self) -> bool:
        return self._count >= self._max

    def write(self, episode: TensorDict) -> None:
        """Write an episode, which gets its name once it is complete."""
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f".{uuid.uuid4().hex}.tmp"
        try:
            episode.memmap(str(partial))
            while not self.full and partial.exists():
                named = self.path / f"{_PREFIX}{self._next:06d}"
                if not named.exists():  # another environment may have taken the number
                    partial.rename(named)
                self._count += 1
                self._next += 1
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def load_episodes(path: str | Path) -> list[TensorDictBase]:
    """The recorded episodes of a run, in the order in which they ended, memory-mapped.

    Args:
        path: the ``episodes`` folder of a run.

    Returns:
        Episodes as :meth:`RecorderManager.drain` returns them. Nothing is unpickled.
    """
    found = _episodes(Path(path))
    if not found:
        raise ConfigError(f"{path} must be the 'episodes' folder of a run: it holds no episode")
    return [TensorDict.load_memmap(str(episode), allow_pickle=False) for episode in found]


def _episodes(path: Path) -> list[Path]:
    found = path.glob(f"{_PREFIX}*")
    return sorted((p for p in found if p.name.removeprefix(_PREFIX).isdecimal()), key=_number)


def _number(episode: Path) -> int:
    return int(episode.name.removeprefix(_PREFIX))
