"""Curriculum: changes to a task during training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.envs.managers.term import Term, TermCfg, bind_term, table
from unilab.errors import ConfigError, NonFiniteError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class CurriculumTermCfg(TermCfg):
    """One change: ``func(env, env_ids, **params)`` with ``env_ids`` ``[n]`` int64, the environments
    that are reset: those whose episodes end, or all of them in the first reset.

    The returned value is logged as ``Curriculum/<name>``: a number, a tensor of one element, a dict
    of these, or None for nothing. A tensor on an accelerator is read when metrics are drained.

    A class may have ``state_dict()`` and ``load_state_dict(state)``, of tensors, numbers and
    strings in dicts and lists: checkpoints then save its state, and evaluations and ``unilab
    play``, which have other numbers of environments, load it.
    """


class CurriculumManager:
    """Runs the terms whenever episodes end, before reset events and new commands."""

    def __init__(self, cfg: Mapping[str, CurriculumTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._terms = [
            bind_term(env, "curriculum", name, term, leading=2) for name, term in cfg.items()
        ]
        self._state: dict[str, float | Tensor] = {}
        for name, func in self._stateful().items():
            if not hasattr(func, "load_state_dict"):
                raise ConfigError(
                    f"curriculum term {name!r} must have load_state_dict, got state_dict alone"
                )
        no_rows = torch.zeros(0, dtype=torch.int64, device=env.device)
        for term in self._terms:
            self._log(term, term.dry_run(env, no_rows))

    def compute(self, rows: Tensor) -> None:
        """Run the terms for environments whose episodes end.

        A refused reset undoes what they changed in themselves, rewards, events and commands.
        """
        for term in self._terms:
            self._log(term, term(self._env, rows))

    def _log(self, term: Term, value: Any) -> None:
        if value is None:
            return
        values = value if isinstance(value, dict) else {"": value}
        for key, number in values.items():
            tag = f"{term.name}/{key}" if key else term.name
            if isinstance(number, Tensor) and number.device.type != "cpu":
                self._state[tag] = number.reshape(())
                continue
            try:
                shown = float(number)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"{term.label} must return a number, a dict of numbers or None, got {value!r}"
                ) from error
            if not math.isfinite(shown):
                raise NonFiniteError(f"{term.label} must return a finite number, got {value!r}")
            self._state[tag] = shown

    def state_dict(self) -> dict[str, Any]:
        """Copies of the states of the terms that have a ``state_dict``, by name."""
        return {name: deepcopy(func.state_dict()) for name, func in self._stateful().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        for name, func in self._stateful().items():
            if name in state:
                func.load_state_dict(deepcopy(state[name]))

    def _stateful(self) -> dict[str, Any]:
        return {term.name: term.func for term in self._terms if hasattr(term.func, "state_dict")}

    @property
    def metrics(self) -> dict[str, float]:
        """``Curriculum/<name>``, the last values that the terms returned."""
        return {f"Curriculum/{tag}": float(value) for tag, value in self._state.items()}

    def __str__(self) -> str:
        rows = []
        for term in self._terms:
            state = (
                f"{t.partition('/')[2]} {float(v):g}".strip()
                for t, v in self._state.items()
                if t.split("/")[0] == term.name
            )
            rows.append((term.name, ", ".join(state)))
        return table("curriculum", rows)
