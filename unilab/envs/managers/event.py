"""Events: what happens to an environment at a reset and from time to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from unilab.envs.checks import check_fields
from unilab.envs.managers.countdown import Countdown, check_waiting
from unilab.envs.managers.term import Term, bind_term
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

MODES = ("startup", "reset", "interval")


@dataclass(frozen=True, kw_only=True)
class EventTermCfg:
    """One event.

    Terms write state through the entity (``env.scene["robot"].write_...``). What they write is
    staged, checked as a whole and committed once.

    Raises:
        ConfigError: an unknown mode, or an interval that is none or not this mode's.
    """

    func: Callable[..., None]
    """``func(env, env_ids, **params)`` with ``env_ids`` ``[n]`` int64."""
    mode: Literal["startup", "reset", "interval"]
    """startup: once, for all; reset: when episodes begin; interval: from time to time."""
    interval_range_s: tuple[float, float] | None = None
    """Seconds between two events of one environment, uniform; only for ``interval``."""
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "event")
        if self.mode not in MODES:
            raise ConfigError(
                f"event mode is {self.mode!r}{did_you_mean(self.mode, MODES)}: "
                f"expected one of {MODES}"
            )
        if (self.mode == "interval") != (self.interval_range_s is not None):
            raise ConfigError(
                f"event mode {self.mode!r} with interval_range_s {self.interval_range_s}: "
                "give interval_range_s exactly for mode 'interval'"
            )
        if self.interval_range_s is not None:
            check_waiting("interval_range_s", self.interval_range_s)


class EventManager:
    """Runs events by mode.

    Args:
        cfg: the terms.
        env: the environment.
    """

    def __init__(self, cfg: Mapping[str, EventTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._terms: dict[str, list[Term]] = {mode: [] for mode in MODES}
        self._countdowns: list[Countdown] = []
        for name, term in cfg.items():
            bound = bind_term(env, "event", name, term, leading=2)
            self._terms[term.mode].append(bound)
            if term.interval_range_s is not None:
                self._countdowns.append(Countdown(term.interval_range_s, env))

    def startup(self) -> None:
        """Run the startup events on every environment."""
        env, scene = self._env, self._env.scene
        everyone = torch.arange(env.num_envs, device=env.device)
        for term in self._terms["startup"]:
            scene.stage_current(everyone)
            try:
                term.first(env, everyone)
                scene.staged.validate()
                scene.commit_staged()
            finally:
                scene.discard_staged()

    def prepare(self) -> None:
        """Run every reset and interval event once without a write, so that a bad one fails now."""
        env, scene = self._env, self._env.scene
        everyone = torch.arange(env.num_envs, device=env.device)
        before = env.generator.get_state()
        try:
            scene.stage_reset(everyone)
            with torch.inference_mode():
                for term in self._terms["reset"]:
                    term.first(env, everyone)
            scene.staged.validate()
            for term in self._terms["interval"]:
                scene.stage_current(everyone)
                term.first(env, everyone)
                scene.staged.validate()
        finally:
            scene.discard_staged()
            env.generator.set_state(before)

    def stage_reset(self, rows: Tensor) -> None:
        """Run the reset events on the rows of the open transaction."""
        with torch.inference_mode():
            for term in self._terms["reset"]:
                term(self._env, rows)

    def reset(self, rows: Tensor) -> None:
        """Draw new intervals for environments that begin an episode."""
        for countdown in self._countdowns:
            countdown.restart(rows)

    def interval(self) -> Tensor | None:
        """Run the interval events that are due; each stages and commits its own rows.

        A row whose physics diverged is left alone: its episode ends with this step.

        Returns:
            ``[n]`` environments whose state was written, or None.
        """
        scene, written = self._env.scene, []
        for term, countdown in zip(self._terms["interval"], self._countdowns, strict=True):
            rows = countdown.advance()
            if rows is None:
                continue
            countdown.restart(rows)
            rows = rows[~scene.diverged[rows]]
            if not rows.shape[0]:
                continue
            scene.stage_current(rows)
            try:
                term(self._env, rows)
                scene.staged.validate()
                scene.commit_staged()
            finally:
                scene.discard_staged()
            written.append(rows)
        return torch.cat(written).unique() if written else None

    def __str__(self) -> str:
        lines = ["events"]
        lines += [f"  {t.name:<28} {mode}" for mode, ts in self._terms.items() for t in ts]
        return "\n".join(lines)
