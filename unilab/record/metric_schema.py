"""Tags, units and owners of a run's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unilab.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Metric:
    """One scalar, or a family of scalars if the tag ends with ``/`` or ``_``."""

    tag: str
    """Name in TensorBoard and column in progress.csv."""
    unit: str
    """``1`` for a plain number."""
    aggregation: Literal["mean", "last", "rate"]
    """How the values between two rows become one; rate: count over time."""
    owner: str
    """Module that computes the value."""


_RUNNER = "unilab.trainers.runner"
_LEARNER = "unilab.trainers.learner"
_PPO = "unilab.trainers.ppo_learner"
_EVALUATION = "unilab.trainers.evaluation"
_ENV = "unilab.envs"

METRICS: dict[str, Metric] = {
    entry.tag: entry
    for entry in (
        Metric("Train/return", "reward", "mean", _RUNNER),
        Metric("Train/episode_length", "control step", "mean", _RUNNER),
        Metric("Train/episodes", "episode", "last", _RUNNER),
        Metric("Perf/steps_per_second", "frame/s", "rate", _RUNNER),
        Metric("Perf/updates_per_second", "update/s", "rate", _RUNNER),
        Metric("Perf/updates", "update", "last", _RUNNER),
        Metric("Perf/buffer_size", "transition", "last", _RUNNER),
        Metric("Perf/collect_ms", "ms a control step", "mean", _RUNNER),
        Metric("Perf/learn_ms", "ms a control step", "mean", _RUNNER),
        Metric("Perf/update_ms", "ms a control step", "mean", _RUNNER),
        Metric("Perf/sync_ms", "ms a control step", "mean", _RUNNER),
        Metric("Perf/collect_share", "share of time", "mean", _RUNNER),
        Metric("Perf/physics_ms", "ms a control step", "mean", _ENV),
        Metric("Perf/managers_ms", "ms a control step", "mean", _ENV),
        Metric("Perf/reset_ms", "ms a control step", "mean", _ENV),
        Metric("Loss/actor", "1", "mean", _LEARNER),
        Metric("Loss/qvalue", "nat", "mean", _LEARNER),
        Metric("Loss/alpha", "1", "mean", _LEARNER),
        Metric("Loss/objective", "1", "mean", _PPO),
        Metric("Loss/critic", "reward^2", "mean", _PPO),
        Metric("Loss/entropy", "1", "mean", _PPO),
        Metric("Policy/kl", "nat", "mean", _PPO),
        Metric("Policy/clip_fraction", "share of transitions", "mean", _PPO),
        Metric("Policy/learning_rate", "1", "mean", _PPO),
        Metric("Policy/staleness", "rollout", "mean", _RUNNER),
        Metric("Policy/staleness_updates", "update", "mean", _RUNNER),
        Metric("Critic/explained_variance", "1", "mean", _PPO),
        Metric("Policy/alpha", "1", "mean", _LEARNER),
        Metric("Policy/entropy", "nat", "mean", _LEARNER),
        Metric("Critic/q_mean", "normalised reward", "mean", _LEARNER),
        Metric("Critic/q_clipped", "share of mass", "mean", _LEARNER),
        Metric("Eval/return", "reward", "mean", _EVALUATION),
        Metric("Eval/episode_length", "control step", "mean", _EVALUATION),
        Metric("Eval/terminated", "share of episodes", "mean", _EVALUATION),
        Metric("Loss/aux_", "1", "mean", "the actor's own losses"),
        Metric("Episode_Reward/", "reward/s", "mean", _ENV),
        Metric("Episode_Termination/", "share", "mean", _ENV),
        Metric("Metrics/", "1", "mean", _ENV),
        Metric("Curriculum/", "1", "last", _ENV),
        Metric("Eval/Episode_Reward/", "reward/s", "mean", _ENV),
        Metric("Eval/Episode_Termination/", "share", "mean", _ENV),
        Metric("Eval/Metrics/", "1", "mean", _ENV),
        Metric("Eval/Curriculum/", "1", "last", _ENV),
    )
}
"""Scalars by tag, and open families by prefix: terms of a task, auxiliary losses of an actor.

What the library logs is here; a user's own metrics may have other tags."""


def metric(tag: str) -> Metric:
    """The schema's entry for a tag, or for its family, e.g. ``"Episode_Reward/upright"``."""
    families = [prefix for prefix in METRICS if prefix.endswith(("/", "_"))]
    if tag in METRICS and tag not in families:
        return METRICS[tag]
    for prefix in families:
        if tag.startswith(prefix) and tag != prefix:
            return METRICS[prefix]
    raise ConfigError(
        f"metric {tag!r} must be in the schema{did_you_mean(tag, METRICS)} or have one of the "
        f"prefixes {families}"
    )


def as_scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as floats; a user's code may have made them."""
    return {tag: _as_scalar(tag, value) for tag, value in metrics.items()}


def _as_scalar(tag: Any, value: Any) -> float:
    if not isinstance(tag, str):
        raise ConfigError(f"the name of a metric must be a string, got {tag!r}")
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, RuntimeError):  # of PyTorch: more than one element
        pass
    raise ConfigError(f"metric {tag!r} must be a number, got {value!r}")
