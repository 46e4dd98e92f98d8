"""Recorders: what is kept of whole episodes, which leave as TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict
from torch import Tensor

from unilab.checks import check_fields
from unilab.envs.managers.term import ANY_ROWS, Term, bind_term, evaluate
from unilab.envs.recording import EpisodeFolder, RecordingCfg
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

MODES = ("pre_step", "post_step", "pre_reset", "post_reset")


@dataclass(frozen=True, kw_only=True)
class RecorderTermCfg:
    """One thing that is recorded of every episode, under the term's name.

    Raises:
        ConfigError: an unknown mode.
    """

    func: Callable[..., Any]
    """``func(env, **params) -> [num_envs, ...]``: any observation, reward or termination term, or
    one of your own. It only looks; it is called once at construction."""
    mode: Literal["pre_step", "post_step", "pre_reset", "post_reset"]
    """pre_step: of every step, once the action is known and before physics moves; post_step: of
    every step, when all is computed and before a reset; post_reset: once, when the episode has
    begun; pre_reset: once, before the reset that ends it."""
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "recorder")
        if self.mode not in MODES:
            raise ConfigError(
                f"recorder mode is {self.mode!r}{did_you_mean(self.mode, MODES)}: "
                f"expected one of {MODES}"
            )


class RecorderManager:
    """Keeps what the terms show of each episode until it ends.

    An episode leaves as a TensorDict: ``steps`` of batch size ``[length]`` with the terms of
    every step, ``start`` (post_reset) and ``end`` (pre_reset) without one, and beside them
    ``env_id``, ``terminated``, ``truncated`` and ``complete``: whether ``steps`` holds all of its
    steps. An episode that a reset breaks off is neither terminated nor truncated; one that runs
    when the environment is closed does not leave.

    Args:
        cfg: the terms.
        recording: how much is kept.
        env: the environment.

    Raises:
        ConfigError: a name or a value does not fit.
    """

    def __init__(
        self,
        cfg: Mapping[str, RecorderTermCfg],
        recording: RecordingCfg,
        env: ManagerBasedRlEnv,
    ) -> None:
        self._env = env
        self._terms: dict[str, list[Term]] = {mode: [] for mode in MODES}
        for name, term in cfg.items():
            if not name.isidentifier():  # it becomes a file's name
                raise ConfigError(f"recorder term {name!r}: expected a name of letters and digits")
            self._terms[term.mode].append(bind_term(env, "recorder", name, term, ANY_ROWS))
        self.active = bool(cfg)
        """Whether anything is recorded."""
        self._rows = min(recording.num_envs or env.num_envs, env.num_envs)
        self._max_steps = recording.max_steps or env.max_episode_length
        self._max_episodes = recording.max_episodes
        self._folder: EpisodeFolder | None = None
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
                    # The last place takes the steps that are too many.
                    shape = (self._max_steps + 1, *shape)
                kept = torch.zeros(self._rows, *shape, dtype=dtype, device=env.device)
                (self._steps if mode.endswith("step") else self._once)[bound.name] = kept

    def set_folder(self, folder: Path) -> None:
        """Write episodes to a folder from now on; they are no longer kept to be drained."""
        self._folder = EpisodeFolder(folder, self._max_episodes)

    def record_pre_step(self) -> None:
        """Keep what the step begins from."""
        self._keep_step("pre_step")

    def record_post_step(self) -> None:
        """Keep what the step led to."""
        self._keep_step("post_step")
        self._length += 1

    def record_post_reset(self, env_ids: Tensor) -> None:
        """Keep how the episodes of some environments begin.

        Args:
            env_ids: ``[n]`` int64.
        """
        rows = env_ids[env_ids < self._rows]
        self._length.index_fill_(0, rows, 0)
        self._keep_once("post_reset", rows)

    def record_pre_reset(self, env_ids: Tensor) -> None:
        """Keep how the episodes of some environments end, and let them leave.

        Args:
            env_ids: ``[n]`` int64.
        """
        rows = env_ids[env_ids < self._rows]
        rows = rows[self._length[rows] > 0]
        if not rows.shape[0]:
            return
        self._keep_once("pre_reset", rows)
        for row in rows.tolist():
            if self._folder is None:
                if len(self._ended) < self._max_episodes:
                    self._ended.append(self._episode(row))
            elif not self._folder.full:
                self._folder.write(self._episode(row))
            self._length[row] = 0  # now, so that after a failure it does not leave twice

    def drain(self) -> list[TensorDict]:
        """Episodes that ended since the last call, on the CPU; none where they go to a folder."""
        ended, self._ended = self._ended, []
        return ended

    def _keep_step(self, mode: str) -> None:
        terms = self._terms[mode]
        place = self._length.clamp(max=self._max_steps)
        for term, value in zip(terms, evaluate(terms, self._env), strict=True):
            self._steps[term.name][self._all, place] = value[: self._rows]

    def _keep_once(self, mode: str, rows: Tensor) -> None:
        terms = self._terms[mode]
        for term, value in zip(terms, evaluate(terms, self._env), strict=True):
            self._once[term.name][rows] = value[rows]

    def _episode(self, row: int) -> TensorDict:
        length = int(self._length[row])
        kept = min(length, self._max_steps)
        steps = {name: value[row, :kept].cpu().clone() for name, value in self._steps.items()}
        once = {
            key: TensorDict(
                {term.name: self._once[term.name][row].cpu().clone() for term in self._terms[mode]}
            )
            for key, mode in (("start", "post_reset"), ("end", "pre_reset"))
        }
        done = self._env.termination_manager
        return TensorDict(
            {
                "steps": TensorDict(steps, batch_size=[kept]),
                **once,
                "env_id": torch.tensor(row),
                "terminated": done.terminated[row].cpu().clone(),
                "truncated": done.truncated[row].cpu().clone(),
                "complete": torch.tensor(kept == length),
            }
        )

    def __str__(self) -> str:
        where = "in memory" if self._folder is None else f"in {self._folder.path}"
        lines = ["recorders"]
        if self.active:
            lines = [
                f"recorders ({self._rows} environments, {self._max_episodes} episodes {where})"
            ]
        lines += [f"  {t.name:<28} {mode}" for mode, ts in self._terms.items() for t in ts]
        return "\n".join(lines)
