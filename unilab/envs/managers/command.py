"""Commands: what the robot is asked to do, redrawn from time to time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor

from unilab.checks import check_fields
from unilab.envs.managers.countdown import Countdown, check_waiting
from unilab.envs.managers.term import (
    COLUMNS,
    SCALAR,
    Reflection,
    check_output,
    dry_run_reset,
    naming,
    table,
)
from unilab.envs.nonfinite import require_finite
from unilab.errors import ConfigError, did_you_mean
from unilab.markers import Marker

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


_Kind = TypeVar("_Kind", bound="CommandTerm")


@dataclass(frozen=True, kw_only=True)
class CommandTermCfg(ABC):
    """A command and how often it changes."""

    resampling_time_range: tuple[float, float]
    """Seconds between draws, uniform."""

    def __post_init__(self) -> None:
        check_fields(self, "command")
        check_waiting("resampling_time_range", self.resampling_time_range)

    @abstractmethod
    def build(self, env: ManagerBasedRlEnv) -> CommandTerm:
        """The running term of this configuration."""


class CommandTerm(ABC):
    """A command that is redrawn when its time is up and when an episode begins."""

    mirror: Reflection | None = None
    """How the columns change in the task's mirror, as in ``ObservationTermCfg.mirror``."""

    def __init__(self, cfg: CommandTermCfg, env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._resampling = Countdown(cfg.resampling_time_range, env)

    @property
    @abstractmethod
    def command(self) -> Tensor:
        """``[num_envs, width]`` float32, the current command."""

    @abstractmethod
    def resample(self, rows: Tensor) -> None:
        """Draw new commands for some environments."""

    def reflect(self, rows: Tensor) -> None:  # noqa: B027
        """Reflect what the command keeps of some environments besides :attr:`command`."""

    def metrics(self) -> dict[str, Tensor]:
        """How well the current command is followed, ``[num_envs]`` float32 each.

        The means over the steps of ended episodes are logged as ``Metrics/<command>/<name>``.
        """
        return {}

    def deployment_metadata(self) -> dict[str, Any]:
        """What a robot's own program needs to give this command, as JSON values."""
        return {}

    def debug_draw(self, row: int) -> Sequence[Marker]:
        """Markers that show the command of an environment in pictures, films and viewers.

        It may read what :meth:`metrics` reads.
        """
        return ()

    def stage_reset(self, rows: Tensor) -> None:  # noqa: B027
        """Stage what an episode begins with, before the reset events, as an event does.

        Change nothing here but by staged writes: the reset may still be refused.
        """

    def training_state(self) -> dict[str, Tensor]:
        """What the command has learnt from earlier episodes, for checkpoints, by name."""
        return {}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Continue from :meth:`training_state`, also in evaluations and ``play``."""

    def reset(self, rows: Tensor) -> None:
        """Begin an episode: new commands and new intervals."""
        self._resampling.restart(rows)
        self.resample(rows)

    def compute(self) -> None:
        """Advance by one control step.

        What an override reads it declares in ``__init__``: ``env.scene.declare(entity, field)`` or
        ``env.scene.declare_sensor(name)``. Reads of the other methods are found by themselves.
        """
        due = self._resampling.advance()
        if due is not None:
            self.reset(due)


class CommandManager:
    """The task's commands by name."""

    def __init__(self, cfg: Mapping[str, CommandTermCfg], env: ManagerBasedRlEnv) -> None:
        self._env = env
        self.terms: dict[str, CommandTerm] = {}
        for name, term in cfg.items():
            with naming(f"command term {name!r}"):
                self.terms[name] = term.build(env)
        self.metric_names: list[str] = []
        """``<command>/<name>`` of every metric; known after :meth:`dry_run`."""

    def dry_run(self) -> None:
        """Draw every command once when the environment is built, and check it and its metrics."""
        for name, term in self.terms.items():
            label = f"command term {name!r}"
            with naming(label), self._env.scene.recording():
                self._dry_run_staging(label, term)
                dry_run_reset(self._env, term.reset)
                check_output(self._env, label, term.command, COLUMNS)
                for metric, value in self._metrics_of(name, term).items():
                    check_output(self._env, f"command metric {metric!r}", value, SCALAR)
                    self.metric_names.append(metric)

    def _dry_run_staging(self, label: str, term: CommandTerm) -> None:
        def stage(rows: Tensor) -> None:
            scene.stage_reset(rows)
            try:
                term.stage_reset(rows)
                scene.staged.validate(label)
            finally:
                scene.discard_staged()

        scene = self._env.scene
        with torch.inference_mode():
            dry_run_reset(self._env, stage)

    def _metrics_of(self, name: str, term: CommandTerm) -> dict[str, Tensor]:
        with torch.inference_mode():
            return {f"{name}/{key}": value for key, value in term.metrics().items()}

    def get_command(self, name: str) -> Tensor:
        """The current command, ``[num_envs, width]``."""
        return self.get_term(name).command

    @overload
    def get_term(self, name: str) -> CommandTerm: ...
    @overload
    def get_term(self, name: str, kind: type[_Kind]) -> _Kind: ...
    def get_term(self, name: str, kind: type[Any] = CommandTerm) -> Any:
        """The running term of that name; one of another ``kind`` is refused."""
        if name not in self.terms:
            raise ConfigError(
                f"the task has no command {name!r}{did_you_mean(name, self.terms)}; "
                f"it has {sorted(self.terms)}"
            )
        term = self.terms[name]
        if not isinstance(term, kind):
            raise ConfigError(
                f"command {name!r} must be a {kind.__name__}, got {type(term).__name__}"
            )
        return term

    def compute(self) -> None:
        """Add up the metrics and advance every command by one control step."""
        if self.metric_names:
            found: list[Tensor] = []
            for name, term in self.terms.items():
                found += self._metrics_of(name, term).values()
            values = torch.stack(found)
            require_finite("command metrics are not finite", self.metric_names, values)
            self._env.episode_sums["Metrics"][: len(values)].add_(values)
        for term in self.terms.values():
            term.compute()

    def stage_reset(self, rows: Tensor) -> None:
        """Let every command stage what the rows of the open transaction begin with."""
        with torch.inference_mode():
            for term in self.terms.values():
                term.stage_reset(rows)

    def training_state(self) -> dict[str, dict[str, Tensor]]:
        """Of the commands that have one, by name."""
        states = {name: term.training_state() for name, term in self.terms.items()}
        return {name: state for name, state in states.items() if state}

    def load_training_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from :meth:`training_state`."""
        for name, term in self.terms.items():
            if name in state:
                term.load_training_state(state[name])

    def reset(self, rows: Tensor) -> None:
        """Draw new commands for environments that begin an episode."""
        for term in self.terms.values():
            term.reset(rows)

    def __str__(self) -> str:
        rows = []
        for name, term in self.terms.items():
            tags = (metric.partition("/") for metric in self.metric_names)
            own = ", ".join(metric for command, _, metric in tags if command == name)
            measured = f", measures {own}" if own else ""
            rows.append((name, f"{tuple(term.command.shape[1:])}{measured}"))
        return table("commands", rows)
