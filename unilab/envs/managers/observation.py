"""Observations: terms gathered into the groups ``obs`` (actor) and ``critic``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import Bound, check_clip, check_fields, check_range
from unilab.envs.managers.delay import DelayBuffer, DelayCfg, DelaySpec
from unilab.envs.managers.term import (
    COLUMNS,
    Reflection,
    Term,
    TermCfg,
    bind_term,
    evaluate,
    stateful,
)
from unilab.envs.managers.term_state import StateSnapshot
from unilab.envs.nonfinite import is_finite, non_finite
from unilab.errors import ConfigError, NonFiniteError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


@dataclass(frozen=True, kw_only=True)
class UniformNoiseCfg:
    """Uniform noise that is added to a term."""

    n_min: float
    n_max: float

    def __post_init__(self) -> None:
        check_fields(self, "noise")
        check_range("(n_min, n_max) of the noise", (self.n_min, self.n_max))

    def __str__(self) -> str:
        return f"{self.n_min:g} to {self.n_max:g}"


@dataclass(frozen=True, kw_only=True)
class GaussianNoiseCfg:
    """Normally distributed noise that is added to a term."""

    mean: float = 0.0
    std: float
    """Standard deviation."""

    def __post_init__(self) -> None:
        check_fields(self, "noise")
        if self.std < 0.0:
            raise ConfigError(f"std of the noise must be at least 0, got {self.std}")

    def __str__(self) -> str:
        return f"{self.mean:g} +- {self.std:g}"


NoiseCfg = UniformNoiseCfg | GaussianNoiseCfg


@dataclass(frozen=True, kw_only=True)
class ObservationTermCfg(TermCfg, DelayCfg):
    """One block of columns of a group: ``func(env, **params) -> [num_envs, width]`` float32."""

    noise: NoiseCfg | None = None
    """Sensor noise in the term's unit; added if the group has ``enable_corruption``."""
    bias: NoiseCfg | None = None
    """Sensor error that each environment draws when an episode begins and keeps until it ends, in
    the term's unit; added with the noise."""
    clip: tuple[Bound, Bound] | None = None
    """Bounds in the term's unit, applied after noise and bias; one of them may be infinite."""
    scale: float | tuple[float, ...] = 1.0
    """Factor, or one for each column, applied after the clip."""
    history_length: int = 0
    """How many of the last values are shown, oldest first; 0 and 1 show the current one only."""
    mirror: Reflection | None = None
    """How the columns change in the task's mirror, if the library does not know ``func``:
    ``"scalar"``, not at all; ``"vector"``, x, y and z in the root frame (y changes sign);
    ``"axial"``, an angular velocity (x and z change sign); ``"joints"`` of the entity in the
    parameters; ``"action"``; or the columns' names, left and right told by the words of the task's
    mirror, with ``-`` before those that change sign: ``("FL_y", "-FR_y")``."""


@dataclass(frozen=True, kw_only=True)
class ObservationGroupCfg:
    """The terms of one group, concatenated in order."""

    terms: dict[str, ObservationTermCfg]
    enable_corruption: bool = False
    """Whether the terms' noise and bias are added."""
    history_length: int | None = None
    """History of every term of the group; None uses the terms' own."""

    def frames(self, term: ObservationTermCfg) -> int:
        """How many values of a term are shown."""
        return max(1, term.history_length if self.history_length is None else self.history_length)


@dataclass(frozen=True)
class _Errors:
    """Random errors by column: a middle, and uniform and normal deviations from it."""

    middle: Tensor
    half: Tensor | None
    """Half width of the uniform deviation; None if no column has one."""
    std: Tensor | None
    """Of the normal deviation; None if no column has one."""

    @classmethod
    def of(cls, middle: Tensor, half: Tensor, std: Tensor) -> _Errors | None:
        """None if every error is 0."""
        if not torch.stack((middle.abs(), half, std)).any():
            return None
        return cls(middle, half if half.any() else None, std if std.any() else None)

    def added(self, value: Tensor, generator: torch.Generator) -> Tensor:
        """``[n, width]`` values with newly drawn errors."""
        if self.half is not None:
            draw = torch.empty_like(value).uniform_(-1.0, 1.0, generator=generator)
            value = torch.addcmul(value, draw, self.half)
        if self.std is not None:
            draw = torch.empty_like(value).normal_(generator=generator)
            value = torch.addcmul(value, draw, self.std)
        return value + self.middle


@dataclass
class _Group:
    terms: dict[str, Term]
    columns: slice | Tensor
    """The group's columns among the columns of all terms."""
    widths: dict[str, int]
    """Columns of each term's value."""
    shown: dict[str, int]
    """Columns of each term in the group, history included."""
    scale: Tensor
    noise: _Errors | None
    bias: tuple[_Errors, Tensor] | None
    """How it is drawn, and that of the running episodes, ``[num_envs, width]``."""
    clip: tuple[Tensor, Tensor] | None
    memory: DelayBuffer | None
    """None if no term has a delay or a history."""


class ObservationManager:
    """Computes each group as one ``[num_envs, width]`` tensor.

    All terms are gathered once; noise, clip and scale act on whole groups: a few operations however
    many terms there are. A term that both groups hold (the same ``ObservationTermCfg``) is computed
    once.
    """

    def __init__(self, cfg: Mapping[str, ObservationGroupCfg], env: ManagerBasedRlEnv) -> None:
        if not {"obs"} <= set(cfg) <= {"obs", "critic"}:
            raise ConfigError(
                "observations must have the group 'obs' (actor) and, if the critic sees something "
                f"else, 'critic', got {sorted(cfg)}"
            )
        self._cfg = cfg
        self._env = env
        self._terms: list[Term] = []
        place: dict[int, int] = {}
        for group, group_cfg in cfg.items():
            if not group_cfg.terms:
                raise ConfigError(f"observation group {group!r} must have terms, got none")
            for name, term in group_cfg.terms.items():
                if id(term) not in place:
                    place[id(term)] = len(self._terms)
                    kind = f"observation ({group})"
                    self._terms.append(bind_term(env, kind, name, term, COLUMNS))
        self._stateful = stateful(self._terms)
        with torch.inference_mode():
            values = [term.dry_run(env) for term in self._terms]
        self._groups = {
            group: self._group(group, [place[id(t)] for t in group_cfg.terms.values()], values)
            for group, group_cfg in cfg.items()
        }

    def _group(self, group: str, picks: list[int], values: list[Tensor]) -> _Group:
        """One group, from the places of its terms among all terms, and what all terms returned."""
        cfg, env = self._cfg[group], self._env
        columns: list[Tensor] = []
        specs: list[DelaySpec] = []
        for (name, term), pick in zip(cfg.terms.items(), picks, strict=True):
            label, width = f"observation ({group}) term {name!r}", values[pick].shape[1]
            if not width:
                raise ConfigError(f"{label} must return at least 1 column, got 0: leave it out")
            if (least := min(term.history_length, cfg.history_length or 0)) < 0:
                raise ConfigError(f"history_length of {label} must be at least 0, got {least}")
            term.check_delay(label)
            columns.append(column_treatment(label, term, width))
            specs.append(DelaySpec(width=width, delay=term, frames=cfg.frames(term)))
        scale, lower, upper, *errors = torch.cat(columns, 1).to(env.device)
        noise = _Errors.of(*errors[:3]) if cfg.enable_corruption else None
        bias = _Errors.of(*errors[3:]) if cfg.enable_corruption else None
        clipped = bool((lower.isfinite() | upper.isfinite()).any())
        late = any(spec.depth > 1 for spec in specs)
        return _Group(
            terms={n: self._terms[i] for n, i in zip(cfg.terms, picks, strict=True)},
            columns=self._gathered(picks, values),
            widths={n: s.width for n, s in zip(cfg.terms, specs, strict=True)},
            shown={n: s.width * s.frames for n, s in zip(cfg.terms, specs, strict=True)},
            scale=scale,
            noise=noise,
            bias=None if bias is None else (bias, scale.new_zeros(env.num_envs, len(scale))),
            clip=(lower, upper) if clipped else None,
            memory=DelayBuffer(specs, env.num_envs, env.generator) if late else None,
        )

    def _gathered(self, picks: list[int], values: list[Tensor]) -> slice | Tensor:
        """Columns of some terms among the columns of all terms; a slice if they are adjacent."""
        stops = list(accumulate(value.shape[1] for value in values))
        at = [c for i in picks for c in range(stops[i] - values[i].shape[1], stops[i])]
        first = min(at, default=0)
        if at == list(range(first, first + len(at))):
            return slice(first, first + len(at))
        return torch.tensor(at, device=self._env.device)

    @property
    def groups_spec(self) -> dict[str, int]:
        """Width of each group."""
        return {name: sum(group.shown.values()) for name, group in self._groups.items()}

    @property
    def term_widths(self) -> dict[str, dict[str, int]]:
        """Terms of each group in order, with their widths."""
        return {name: dict(group.shown) for name, group in self._groups.items()}

    def get_term(self, group: str, name: str) -> Term:
        """The bound term of that name."""
        return self._groups[group].terms[name]

    def compute(
        self, update_history: bool = False, env_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Copies of the last observation, ``[num_envs, width]`` by group.

        The environment updates delays, histories and the terms' own state once a step, and once for
        the rows of a reset. ``update_history=True`` elsewhere is like one more step for them.

        Args:
            update_history: compute new observations, and advance delays and histories.
            env_ids: ``[n]``, environments that begin an episode; None: all took a step.
        """
        if not update_history:
            return {name: value.clone() for name, value in self._env.obs_buf.items()}
        rows = env_ids
        if rows is None:
            gathered = torch.cat(evaluate(self._terms, self._env), dim=1)
        else:
            before = StateSnapshot(self._env, self._stateful)
            gathered = torch.cat(evaluate(self._terms, self._env), dim=1)
            before.restore_but(rows)
            gathered = gathered.index_select(0, rows)
        out = {}
        for name, group in self._groups.items():
            value = gathered[:, group.columns]
            if group.noise is not None:
                value = group.noise.added(value, self._env.generator)
            if group.bias is not None:
                errors, bias = group.bias
                if rows is not None:
                    drawn = errors.added(torch.zeros_like(value), self._env.generator)
                    bias.index_copy_(0, rows, drawn)
                value = value + (bias if rows is None else drawn)
            if group.clip is not None:
                if not is_finite(value):  # the clip would hide it
                    raise self._not_finite(name, value, rows)
                value = value.clamp(*group.clip)
            value = value * group.scale
            if not is_finite(value):
                raise self._not_finite(name, value, rows)
            if group.memory is not None:
                memory = group.memory
                value = memory.push(value) if rows is None else memory.begin(rows, value)
            out[name] = value
        return out

    def _not_finite(self, name: str, value: Tensor, rows: Tensor | None) -> NonFiniteError:
        widths = self._groups[name].widths
        blocks = value.split(list(widths.values()), dim=1)
        terms = dict(zip(widths, blocks, strict=True))
        return non_finite(f"observation {name!r} is not finite", terms, rows)

    def __str__(self) -> str:
        lines = []
        for group, cfg in self._cfg.items():
            lines.append(f"observations {group!r} [{self.groups_spec[group]}]")
            for name, term in cfg.terms.items():
                shown = ", ".join(_treatment(cfg, term))
                lines.append(f"  {name:<28} {self._groups[group].shown[name]:<4} {shown}".rstrip())
        return "\n".join(lines)


def _treatment(cfg: ObservationGroupCfg, term: ObservationTermCfg) -> Iterator[str]:
    """The operations on a term's values, in order, for a table."""
    if cfg.enable_corruption and term.noise is not None:
        yield f"noise {term.noise}"
    if cfg.enable_corruption and term.bias is not None:
        yield f"bias {term.bias}"
    if term.clip is not None:
        yield "clip {:g} to {:g}".format(*term.clip)
    if term.scale != 1.0:
        yield f"scale {term.scale}"
    if term.delay_max_lag:
        yield f"{term.delay_min_lag} to {term.delay_max_lag} steps late"
    if cfg.frames(term) > 1:
        yield f"{cfg.frames(term)} frames"


def column_treatment(label: str, cfg: ObservationTermCfg, width: int) -> Tensor:
    """Scale, clip low and high, and the middle, half width and deviation of the noise and of the
    bias of a term, ``[9, width]``."""
    scale = torch.as_tensor(cfg.scale, dtype=torch.float32, device="cpu")
    if scale.ndim and len(scale) != width:
        raise ConfigError(f"scale of {label} must have {width} values, got {len(scale)}")
    lower, upper = cfg.clip if cfg.clip is not None else (-torch.inf, torch.inf)
    check_clip(f"clip of {label}", (lower, upper))
    constants = (lower, upper, *_error_shape(cfg.noise), *_error_shape(cfg.bias))
    return torch.stack([scale.expand(width), *(torch.full((width,), v) for v in constants)])


def _error_shape(cfg: NoiseCfg | None) -> tuple[float, float, float]:
    """Middle, half width and standard deviation of an error."""
    if cfg is None:
        return 0.0, 0.0, 0.0
    if isinstance(cfg, GaussianNoiseCfg):
        return cfg.mean, 0.0, cfg.std
    return 0.5 * (cfg.n_min + cfg.n_max), 0.5 * (cfg.n_max - cfg.n_min), 0.0
