"""Runs of the training script that last a moment."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch

from unilab.conf import compose
from unilab.examples import train_flashsac

_SHORT = [
    "algo.num_envs=4",
    "algo.total_frames=160",
    "training.num_threads=1",
    "training.device=cpu",
    "training.eval_num_envs=2",
    "env.episode_length_s=0.4",
]

TINY = [
    *_SHORT,
    "algo.batch_size=16",
    "algo.learning_starts=32",
    "algo.n_step=1",
    "algo.replay_capacity=1000",
]
"""Settings of any off-policy algorithm."""

TINY_PPO = [
    *_SHORT,
    "algo.name=ppo",
    "algo.num_steps=10",
    "algo.num_minibatches=2",
    "algo.num_epochs=2",
    "algo.algo_params.actor_hidden_dims=[8]",
    "algo.algo_params.critic_hidden_dims=[8]",
]

TINY_APPO = [*TINY_PPO, "algo.name=appo"]

TINY_SAC = [
    *TINY,
    "algo.name=sac",
    "algo.algo_params.actor_hidden_dims=[8]",
    "algo.algo_params.critic_hidden_dims=[8]",
]

NETWORKS = ["algo.algo_params.actor_hidden_dim=8", "algo.algo_params.critic_hidden_dim=8"]


def tiny_run(path: Path, task: str = "pendulum_swingup", *overrides: str) -> Path:
    """Trains a tiny actor with the training script; returns the run's folder."""
    settings = [
        f"task={task}",
        *NETWORKS,
        "algo.num_envs=8",
        "algo.batch_size=16",
        "algo.learning_starts=32",
        "algo.n_step=1",
        "algo.replay_capacity=1000",
        "algo.total_frames=160",
        "algo.algo_params.compile=false",
        "training.collector=sync",
        "training.device=cpu",
        "training.num_threads=1",
        "training.eval_interval=null",
        f"training.run_dir={path}",
        "env.num_threads=1",
        *overrides,
    ]
    assert train_flashsac.train(compose(settings)) == 0
    return path


def rows(run: Path) -> list[dict[str, str]]:
    """The rows of a run's progress.csv."""
    with (run / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def saved(checkpoint: Path) -> dict[str, Any]:
    """Everything in a checkpoint, by component and path, on the CPU."""
    found: dict[str, Any] = {}
    for file in checkpoint.rglob("state.pt"):
        state = torch.load(file, weights_only=True, map_location="cpu")
        found |= _leaves(state, file.parent.name.partition("-")[2])
    # Wall time, and how often this process wrote to a tensor.
    return {k: v for k, v in found.items() if k != "counters.minutes" and "._versions." not in k}


def _leaves(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, inner in items for k, v in _leaves(inner, f"{path}.{key}").items()}
    return {path: value}


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Paths whose values are not bit for bit the same."""

    def same(x: Any, y: Any) -> bool:
        return torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y

    return [key for key in {**a, **b} if key not in a or key not in b or not same(a[key], b[key])]
