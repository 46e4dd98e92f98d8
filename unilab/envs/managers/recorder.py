"""Recorders: whole episodes as TensorDicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from tensordict import TensorDict
from torch import Tensor

from unilab.checks import Count, check_fields
from unilab.envs.managers.term import ANY_ROWS, Term, TermCfg, bind_term, evaluate, stateful, table
from unilab.envs.managers.term_state import StateSnapshot

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

_MODES = ("pre_step", "post_step", "post_reset", "pre_reset")


@dataclass(frozen=True, kw_only=True)
class RecorderTermCfg(TermCfg):
    """One quantity that is recorded of every episode, under the term's name.

    ``func(env, **params) -> [num_envs, ...]``: any observation, reward or termination term, or your
    own. It must not change the environment.
    """

    mode: Literal["pre_step", "post_step", "pre_reset", "post_reset"]
    """pre_step: in every step, before physics; post_step: in every step, after everything else;
    post_reset: once, when the episode has begun; pre_reset: once, before the reset that ends it."""

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
    """Episodes that are kept until they are drained; later ones are not recorded."""

    def __post_init__(self) -> None:
        check_fields(self, "recording")


class RecorderManager:
    """Keeps the values of its terms until an episode ends.

    An episode is a TensorDict: ``steps`` of batch size ``[length]`` with the terms of every step,
    ``start`` (post_reset) and ``end`` (pre_reset), and ``env_id``, ``terminated``, ``truncated``
    and ``complete``: whether ``steps`` holds all of its steps. An episode that a reset interrupts
    is neither terminated nor truncated; one that runs when the environment is closed is lost.
    """

    def __init__(
        self, cfg: Mapping[str, RecorderTermCfg], recording: RecordingCfg, env: ManagerBasedRlEnv
    ) -> None:
        self._env = env
        self._terms: dict[str, list[Term]] = {mode: [] for mode in _MODES}
        for name, term in cfg.items():
            self._terms[term.mode].append(bind_term(env, "recorder", name, term, ANY_ROWS))
        self.active = bool(cfg)
        """Whether anything is recorded."""
        self._rows = min(recording.num_envs or env.num_envs, env.num_envs)
        self._max_steps = recording.max_steps or env.max_episode_length
        self._max_episodes = recording.max_episodes
        self._all = torch.arange(self._rows, device=env.device)
        self._length = torch.zeros_like(self._all)
        self._steps: dict[str, Tensor] = {}
        self._once: dict[str, Tensor] = {}
        self.ended: list[TensorDict] = []
        for mode, terms in self._terms.items():
            for bound in terms:
                with torch.inference_mode():
                    value = bound.dry_run(env)
                # The last place takes the steps beyond the limit.
                steps = (self._max_steps + 1,) if mode.endswith("step") else ()
                kept = torch.zeros(self._rows, *steps, *value.shape[1:]).to(value)
                (self._steps if steps else self._once)[bound.name] = kept

    def pre_step(self) -> None:
        self._record_step("pre_step")

    def post_step(self) -> None:
        self._record_step("post_step")
        self._length += 1

    def post_reset(self, env_ids: Tensor) -> None:
        """Record the beginning of episodes."""
        rows = env_ids[env_ids < self._rows]
        self._length.index_fill_(0, rows, 0)
        self._record_once("post_reset", rows)

    def pre_reset(self, env_ids: Tensor) -> None:
        """Record the end of episodes and store them."""
        rows = env_ids[env_ids < self._rows]
        self._record_once("pre_reset", rows)
        for row, length in torch.stack((rows, self._length[rows]), 1).tolist():
            if length and len(self.ended) < self._max_episodes:
                self.ended.append(self._episode(row, length))
        self._length.index_fill_(0, rows, 0)

    def drain(self) -> list[TensorDict]:
        """Episodes that ended since the last call, on the CPU."""
        ended, self.ended = self.ended, []
        return [episode.cpu() for episode in ended]

    def _record_step(self, mode: str) -> None:
        terms = self._terms[mode]
        place = self._length.clamp(max=self._max_steps)
        for term, value in zip(terms, evaluate(terms, self._env), strict=True):
            self._steps[term.name][self._all, place] = value[: self._rows]

    def _record_once(self, mode: str, rows: Tensor) -> None:
        terms = self._terms[mode]
        before = StateSnapshot(self._env, stateful(terms))
        values = evaluate(terms, self._env)
        before.restore_but(rows)
        for term, value in zip(terms, values, strict=True):
            self._once[term.name][rows] = value[rows]

    def _episode(self, row: int, length: int) -> TensorDict:
        kept = min(length, self._max_steps)
        steps = {name: value[row, :kept].clone() for name, value in self._steps.items()}
        start, end = (
            {term.name: self._once[term.name][row].clone() for term in self._terms[mode]}
            for mode in ("post_reset", "pre_reset")
        )
        done = self._env.termination_manager
        return TensorDict(
            {
                "steps": TensorDict(steps, batch_size=[kept]),
                "start": TensorDict(start),
                "end": TensorDict(end),
                "env_id": torch.tensor(row),
                "terminated": done.terminated[row].clone(),
                "truncated": done.truncated[row].clone(),
                "complete": torch.tensor(kept == length),
            }
        )

    def __str__(self) -> str:
        limits = f" ({self._rows} environments, {self._max_episodes} episodes)"
        rows = [(term.name, mode) for mode, terms in self._terms.items() for term in terms]
        return table("recorders" + (limits if self.active else ""), rows)
