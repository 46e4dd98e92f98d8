"""Runs of the training script that last a moment."""

from __future__ import annotations

from pathlib import Path

from unilab.conf import compose
from unilab.examples import train_flashsac

TINY = [
    "algo.num_envs=4",
    "algo.batch_size=16",
    "algo.learning_starts=32",
    "algo.n_step=1",
    "algo.replay_capacity=1000",
    "algo.total_frames=160",
    "training.num_threads=1",
    "training.device=cpu",
    "training.eval_num_envs=2",
    "env.episode_length_s=0.4",
]
"""Settings of any algorithm."""

NETWORKS = ["algo.algo_params.actor_hidden_dim=8", "algo.algo_params.critic_hidden_dim=8"]


def tiny_run(path: Path, task: str = "pendulum_swingup", *overrides: str) -> Path:
    """Trains a tiny actor with the training script; returns the run's folder."""
    settings = [
        f"task={task}",
        "algo.num_envs=8",
        "algo.batch_size=16",
        "algo.learning_starts=32",
        "algo.n_step=1",
        "algo.replay_capacity=1000",
        "algo.total_frames=160",
        "algo.algo_params.actor_hidden_dim=8",
        "algo.algo_params.critic_hidden_dim=8",
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
