"""Events: writes to the simulation at startup, at a reset, in every step or from time to time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unilab.checks import check_fields
from unilab.envs.managers.countdown import Countdown, check_waiting
from unilab.envs.managers.term import Term, TermCfg, bind_term, table
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class EventTermCfg(TermCfg):
    """One event: ``func(env, env_ids, **params)`` with ``env_ids`` ``[n]`` int64.

    Terms write state through the entity (``env.scene["robot"].write_...``). What they write is
    staged, checked as a whole and committed once.
    """

    mode: Literal["startup", "reset", "interval", "step"]
    """startup: once, for all; reset: when episodes begin; interval: from time to time; step: in
    every control step, for all."""
    interval_range_s: tuple[float, float] | None = None
    """Seconds between two events of one environment, uniform; for mode ``interval`` only. Each
    episode begins a new interval."""

    def __post_init__(self) -> None:
        check_fields(self, "event")
        if (self.mode == "interval") != (self.interval_range_s is not None):
            raise ConfigError(
                "interval_range_s must be given exactly for mode 'interval', got "
                f"{self.interval_range_s} for {self.mode!r}"
            )
        if self.interval_range_s is not None:
            check_waiting("interval_range_s", self.interval_range_s)


class EventManager:
    """Runs events by mode; the startup events run when the manager is made.

    Every other event runs once as well, without a write, so that a bad one fails now and the scene
    records what it reads.
    """

    def __init__(self, cfg: Mapping[str, EventTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._terms: dict[str, list[Term]] = {
            "startup": [],
            "reset": [],
            "interval": [],
            "step": [],
        }
        self._countdowns: list[Countdown] = []
        for name, term in cfg.items():
            bound = bind_term(env, "event", name, term, leading=2)
            self._terms[term.mode].append(bound)
            if term.interval_range_s is not None:
                lasts, least = env.max_episode_length * env.step_dt, term.interval_range_s[0]
                if least > lasts + 1e-6:
                    warnings.warn(
                        f"{bound.label} never happens: its interval_range_s begins at {least:g} s, "
                        f"each episode begins a new interval and lasts {lasts:g} s at most",
                        stacklevel=2,
                    )
                self._countdowns.append(Countdown(term.interval_range_s, env))
        self._all_rows = all_rows = torch.arange(env.num_envs, device=env.device)
        for bound in self._terms["startup"]:
            with self._writing(bound, all_rows):
                bound.dry_run(env, all_rows)
            if env.scene.wrenches is not None:  # no other term has run so far
                raise ConfigError(
                    f"mode of {bound.label} must be 'reset', 'interval' or 'step', got 'startup': "
                    "the first reset ends the forces on bodies"
                )
        self._dry_run(all_rows)

    def _dry_run(self, rows: Tensor) -> None:
        env, scene = self._env, self._env.scene
        before = env.generator.get_state()
        try:
            scene.stage_reset(rows)
            with torch.inference_mode():
                for term in self._terms["reset"]:
                    term.dry_run(env, rows)
                    scene.staged.validate(term.label)
            for term in (*self._terms["step"], *self._terms["interval"]):
                scene.stage_current(rows)
                term.dry_run(env, rows)
                scene.staged.validate(term.label)
        finally:
            scene.discard_staged()
            env.generator.set_state(before)

    def stage_reset(self, rows: Tensor, check_each: bool = False) -> None:
        """Run the reset events on the rows of the open transaction, and check what they staged.

        ``check_each`` checks after each event, which is slower, so that an error names the event.
        """
        with torch.inference_mode():
            for term in self._terms["reset"]:
                term(self._env, rows)
                if check_each:
                    self._env.scene.staged.validate(term.label)
        self._env.scene.staged.validate("a reset event")

    def reset(self, rows: Tensor) -> None:
        """Draw new intervals for environments that begin an episode."""
        for countdown in self._countdowns:
            countdown.restart(rows)

    def interval(self) -> None:
        """Run the step events, and the interval events that are due.

        A row whose physics diverged is left alone: its episode ends with this step.
        """
        scene = self._env.scene
        due = [(term, self._all_rows) for term in self._terms["step"]]
        for term, countdown in zip(self._terms["interval"], self._countdowns, strict=True):
            rows = countdown.advance()
            if rows is not None:
                countdown.restart(rows)
                due.append((term, rows))
        for term, rows in due:
            rows = rows[~scene.diverged[rows]]
            if rows.shape[0]:
                with self._writing(term, rows):
                    term(self._env, rows)

    @contextmanager
    def _writing(self, term: Term, rows: Tensor) -> Iterator[None]:
        """Open a transaction on the current state, and commit what the block stages."""
        scene = self._env.scene
        scene.stage_current(rows)
        try:
            yield
            scene.staged.validate(term.label)
            scene.commit_staged()
        finally:
            scene.discard_staged()

    def __str__(self) -> str:
        rows = []
        derived = self._env.backend.get_tensor_capabilities().derived_from
        for mode, terms in self._terms.items():
            for term in terms:
                written = getattr(term.func, "writes_fields", ())
                shown = mode + (f", writes {', '.join(written)}" if written else "")
                if derived.intersection(written):
                    shown += " and what follows from it"
                rows.append((term.name, shown))
        return table("events", rows)
