"""Every scalar the library logs: its tag, unit, how it is aggregated and who owns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unilab.errors import ConfigError, did_you_mean

__all__ = ["FAMILIES", "METRICS", "Metric", "metric"]

Aggregation = Literal["mean", "last", "rate"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One scalar, or one open family of scalars when ``tag`` ends with ``/`` or ``_``."""

    tag: str
    """Name in TensorBoard and column in progress.csv."""
    unit: str
    """Unit of the value; ``1`` for a plain number."""
    aggregation: Aggregation
    """How the values between two rows become one: their mean, the last one, or count over time."""
    owner: str
    """Module that computes the value."""


_RUNNER = "unilab.trainers.runner"
_LEARNER = "unilab.trainers.learner"
_EVALUATION = "unilab.trainers.evaluation"
_ENV = "unilab.envs"


def _named(owner: str, *rows: tuple[str, str, Aggregation]) -> dict[str, Metric]:
    return {
        tag: Metric(tag=tag, unit=unit, aggregation=how, owner=owner) for tag, unit, how in rows
    }


METRICS: dict[str, Metric] = {
    **_named(
        _RUNNER,
        ("Train/return", "reward", "mean"),
        ("Train/episode_length", "control step", "mean"),
        ("Train/episodes", "episode", "last"),
        ("Perf/steps_per_second", "frame/s", "rate"),
        ("Perf/updates_per_second", "update/s", "rate"),
        ("Perf/updates", "update", "last"),
        ("Perf/buffer_size", "transition", "last"),
        ("Perf/collect_share", "share of time", "mean"),
        ("Perf/collect_ms", "ms a tick", "mean"),
        ("Perf/learn_ms", "ms a tick", "mean"),
        ("Perf/update_ms", "ms a tick", "mean"),
    ),
    **_named(
        _ENV,
        ("Perf/physics_ms", "ms a tick", "mean"),
        ("Perf/managers_ms", "ms a tick", "mean"),
        ("Perf/reset_ms", "ms a tick", "mean"),
    ),
    **_named(
        "unilab.collectors.process",
        ("Perf/env_step_ms", "ms a tick", "mean"),
        ("Perf/env_wait_share", "share of time", "mean"),
    ),
    **_named(
        _LEARNER,
        ("Loss/actor", "1", "mean"),
        ("Loss/qvalue", "nat", "mean"),
        ("Loss/alpha", "1", "mean"),
        ("Policy/alpha", "1", "mean"),
        ("Policy/entropy", "nat", "mean"),
        ("Critic/q_mean", "normalised reward", "mean"),
    ),
    **_named(
        _EVALUATION,
        ("Eval/return", "reward", "mean"),
        ("Eval/episode_length", "control step", "mean"),
        ("Eval/terminated", "share of episodes", "mean"),
    ),
}
"""Scalars known by their full tag."""

FAMILIES: dict[str, Metric] = {
    family.tag: family
    for family in (
        Metric(tag="Loss/aux_", unit="1", aggregation="mean", owner="the actor's own losses"),
        Metric(tag="Eval/Episode_Reward/", unit="reward/s", aggregation="mean", owner=_EVALUATION),
        Metric(tag="Eval/Episode_Termination/", unit="share", aggregation="mean", owner=_ENV),
        Metric(tag="Eval/Metrics/", unit="1", aggregation="mean", owner=_EVALUATION),
        Metric(tag="Eval/Curriculum/", unit="1", aggregation="last", owner=_ENV),
        Metric(tag="Episode_Reward/", unit="reward/s", aggregation="mean", owner=_ENV),
        Metric(tag="Episode_Termination/", unit="share", aggregation="mean", owner=_ENV),
        Metric(tag="Curriculum/", unit="1", aggregation="last", owner=_ENV),
        Metric(tag="Metrics/", unit="1", aggregation="mean", owner=_ENV),
    )
}
"""Open families by prefix: terms of a task, auxiliary losses of an actor, internals of a critic."""


def metric(tag: str) -> Metric:
    """The schema's entry for a tag.

    Args:
        tag: e.g. ``"Loss/actor"`` or, in a family, ``"Episode_Reward/track_lin_vel"``.

    Returns:
        The entry; for a tag in an open family, the family's.

    Raises:
        ConfigError: the schema has neither the tag nor a family for it.
    """
    if tag in METRICS:
        return METRICS[tag]
    for prefix, family in FAMILIES.items():
        if tag.startswith(prefix) and len(tag) > len(prefix):
            return family
    raise ConfigError(
        f"metric {tag!r} is not in the schema{did_you_mean(tag, METRICS)}: add it to "
        f"unilab.record.schema, or name it within one of the families {sorted(FAMILIES)}"
    )
