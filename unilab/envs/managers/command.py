"""Commands: what the robot is asked to do, drawn anew from time to time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import check_fields
from unilab.envs.managers.countdown import Countdown, check_waiting
from unilab.envs.managers.term import naming, rehearse
from unilab.envs.managers.values import check_scalar, check_value
from unilab.envs.nonfinite import require_finite
from unilab.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class CommandTermCfg(ABC):
    """A command and how often it changes.

    Raises:
        ConfigError: a field is not what it says, or the times are not 0 < low <= high.
    """

    resampling_time_range: tuple[float, float]
    """Seconds between draws, uniform."""

    def __post_init__(self) -> None:
        check_fields(self, "command")
        check_waiting("resampling_time_range", self.resampling_time_range)

    @abstractmethod
    def build(self, env: ManagerBasedRlEnv) -> CommandTerm:
        """The running term of this configuration."""


class CommandTerm(ABC):
    """A command that is drawn anew when its time is up and when an episode begins."""

    def __init__(self, cfg: CommandTermCfg, env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._resampling = Countdown(cfg.resampling_time_range, env)

    @property
    @abstractmethod
    def command(self) -> Tensor:
        """``[num_envs, width]``, the command in force."""

    @abstractmethod
    def resample(self, rows: Tensor) -> None:
        """Draw new commands for some environments."""

    def metrics(self) -> dict[str, Tensor]:
        """How well the command in force is followed, ``[num_envs]`` float32 each.

        Asked for in every step, before a new command is drawn. The means over the steps of ended
        episodes are logged as ``Metrics/<command>/<name>``. What it reads of an entity is to be
        declared in ``__init__``: ``env.scene.declare(entity, field)``, and
        ``env.scene.declare_sensor(name)`` for a sensor.
        """
        return {}

    def reset(self, rows: Tensor) -> None:
        """Begin an episode: new commands and new intervals."""
        self._resampling.restart(rows)
        self.resample(rows)

    def compute(self) -> None:
        """Advance by one control step."""
        due = self._resampling.advance()
        if due is not None:
            self.reset(due)


class CommandManager:
    """The task's commands by name.

    Args:
        cfg: the terms.
        env: the environment.
    """

    def __init__(self, cfg: Mapping[str, CommandTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._terms: dict[str, CommandTerm] = {}
        self.reads: dict[str, dict[tuple[str, str], None]] = {}
        """What each command declared, as the scene keeps it."""
        for name, term in cfg.items():
            with naming("command", name), env.scene.declaring() as self.reads[name]:
                self._terms[name] = term.build(env)
        self.metric_names: list[str] = []
        """``<command>/<name>`` of every metric."""
        self.metric_sums = torch.zeros(0, env.num_envs, device=env.device)
        """``[num_metrics, num_envs]``, sums since the episode began; emptied by their owner."""

    def prepare(self) -> None:
        """Draw every command once, ask for its metrics and check them; call after the first read.

        Raises:
            ConfigError: a command or metric of another shape or type.
            NonFiniteError: a command that is not finite.
        """
        for name, term in self._terms.items():
            with naming("command", name), self._env.scene.showing(self.reads[name]):
                rehearse(self._env, term.reset)
                check_value(
                    self._env,
                    "command",
                    name,
                    term.command,
                    "float32 [num_envs, width]",
                    dtype=torch.float32,
                    ndim=2,
                )
                values = self._metrics_of(name, term)
            for metric, value in values.items():
                check_scalar(self._env, "command metric", metric, value)
                self.metric_names.append(metric)

    def _metrics(self) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for name, term in self._terms.items():
            values |= self._metrics_of(name, term)
        return values

    def _metrics_of(self, name: str, term: CommandTerm) -> dict[str, Tensor]:
        with torch.inference_mode():
            return {f"{name}/{key}": value for key, value in term.metrics().items()}

    @property
    def terms(self) -> Mapping[str, CommandTerm]:
        """The running terms by name."""
        return self._terms

    def get_command(self, name: str) -> Tensor:
        """The command in force, ``[num_envs, width]``.

        Raises:
            ConfigError: there is no such command.
        """
        return self.get_term(name).command

    def get_term(self, name: str) -> CommandTerm:
        """The running term of that name.

        Raises:
            ConfigError: there is no such command.
        """
        try:
            return self._terms[name]
        except KeyError:
            raise ConfigError(
                f"the task has no command {name!r}{did_you_mean(name, self._terms)}; "
                f"it has {sorted(self._terms)}"
            ) from None

    def compute(self) -> None:
        """Add up the metrics and advance every command by one control step.

        Raises:
            NonFiniteError: names the metrics and rows.
        """
        if self.metric_names:
            values = torch.stack([*self._metrics().values()])
            require_finite("command metrics are not finite", self.metric_names, values)
            self.metric_sums += values
        for term in self._terms.values():
            term.compute()

    def reset(self, rows: Tensor) -> None:
        """Draw new commands for environments that begin an episode."""
        for term in self._terms.values():
            term.reset(rows)

    def __str__(self) -> str:
        lines = ["commands"]
        for name, term in self._terms.items():
            tags = (metric.partition("/") for metric in self.metric_names)
            own = ", ".join(metric for command, _, metric in tags if command == name)
            measured = f", measures {own}" if own else ""
            lines.append(f"  {name:<28} {tuple(term.command.shape[1:])}{measured}")
        return "\n".join(lines)
