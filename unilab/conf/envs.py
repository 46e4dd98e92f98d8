"""Environments of a training run, from its settings."""

from __future__ import annotations

from typing import Any

from unilab import registry
from unilab.collectors import EnvProcess
from unilab.envs import TorchEnv


def make_training_env(cfg: Any) -> TorchEnv | EnvProcess:
    """Environments to train in; in a second process if the run is pipelined."""
    training = cfg.training
    device = training.resolve_device()
    make_env = registry.factory(
        cfg.task,
        num_envs=cfg.algo.num_envs,
        device=str(training.resolve_placement().env_device),
        seed=training.rank_seed,
        overrides={"num_threads": training.resolve_threads(device).physics} | cfg.env,
    )
    return EnvProcess(make_env) if training.resolve_collector(device) == "pipelined" else make_env()


def make_eval_env(cfg: Any) -> TorchEnv:
    """Environments to evaluate in, on the learner's device."""
    return registry.make(
        cfg.task,
        num_envs=cfg.training.eval_num_envs,
        device=str(cfg.training.resolve_device()),
        seed=cfg.training.seed + 1,
        overrides=cfg.env,
    )
