"""Train RSL-RL's PPO on a unilab task, with the settings and evaluations of `unilab train ppo`.

    python examples/train_rsl_rl.py task=cartpole_swingup training.max_minutes=5

The run's folder has the evaluations in progress.csv, as a run of train_ppo.py, and RSL-RL's own
logs and models in rsl_rl/. Needs unilab-torchrl[rsl-rl].
"""

from __future__ import annotations

# First, as it sets how PyTorch's threads wait for each other.
from unilab.conf.training_command import hydra_main

# isort: split
import time
from dataclasses import asdict, replace
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor

from unilab.adapters import RslRlVecEnv
from unilab.conf.envs import make_eval_env, make_training_env
from unilab.conf.ppo import PPOAlgoCfg, PPOCfg
from unilab.output import say
from unilab.record import MetricLogger, RunFolder
from unilab.trainers import Evaluator, Ranks


def rsl_rl_config(algo: PPOAlgoCfg, obs_groups: dict[str, list[str]]) -> dict[str, Any]:
    """RSL-RL's configuration with the same meaning."""
    params = algo.algo_params
    network = {
        "class_name": "MLPModel",
        "activation": params.activation,
        "obs_normalization": params.normalize_obs,
    }
    gaussian = {"class_name": "GaussianDistribution", "init_std": params.init_std}
    return {
        "num_steps_per_env": algo.num_steps,
        "save_interval": 1_000_000,  # it also saves when learn() returns
        "obs_groups": obs_groups,
        "actor": {
            **network,
            "hidden_dims": list(params.actor_hidden_dims),
            "distribution_cfg": {**gaussian, "std_type": "log"},
        },
        "critic": {**network, "hidden_dims": list(params.critic_hidden_dims)},
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": algo.num_epochs,
            "num_mini_batches": algo.num_minibatches,
            "gamma": algo.gamma,
            "lam": algo.gae_lambda,
            "learning_rate": params.lr,
            "schedule": "fixed" if params.desired_kl is None else "adaptive",
            "desired_kl": params.desired_kl,
            "clip_param": params.clip_epsilon,
            "use_clipped_value_loss": params.clip_value,
            "entropy_coef": params.entropy_coeff,
            "value_loss_coef": params.critic_coeff,
            "max_grad_norm": params.max_grad_norm,
        },
    }


class RankRunner(OnPolicyRunner):
    """RSL-RL's runner in the process group of ``training.devices``, also on CPUs.

    RSL-RL makes a group of CUDA devices only. Broadcast and averaging stay its own.
    """

    def _configure_multi_gpu(self) -> None:
        ranks = Ranks()
        self.is_distributed, self.gpu_world_size = ranks.size > 1, ranks.size
        self.gpu_global_rank = self.gpu_local_rank = ranks.rank
        places = {"global_rank": ranks.rank, "local_rank": ranks.rank, "world_size": ranks.size}
        self.cfg["multi_gpu"] = places if ranks.size > 1 else None


def train(cfg: PPOCfg) -> int:
    """Run one training; returns the exit code."""
    cfg = replace(cfg, training=replace(cfg.training, collector="sync"))
    algo, training = cfg.algo, cfg.training
    device = training.resolve_device()
    torch.set_num_threads(training.resolve_threads(device, algo.update_size()).learner)
    torch.manual_seed(training.rank_seed)

    ranks = Ranks()
    folder = ranks.from_first(
        lambda: RunFolder.create(
            cfg.task, training.seed, log_root=training.log_root, path=training.run_dir
        )
    )
    eval_env = make_eval_env(cfg)
    env = RslRlVecEnv(make_training_env(cfg), clip_actions=False)  # as train_ppo.py
    runner = RankRunner(
        env,
        rsl_rl_config(algo, env.obs_groups),
        log_dir=str(folder.path / "rsl_rl"),
        device=str(device),
    )

    def act(obs: Tensor) -> Tensor:
        rows = TensorDict({"policy": obs}, obs.shape[:-1])
        return runner.get_inference_policy(str(device))(rows)

    policy = TensorDictModule(act, in_keys=["obs"], out_keys=["action"])
    evaluate = Evaluator(eval_env, policy, trained=env.env)
    if ranks.is_first:
        folder.write_config(asdict(cfg))
        logger = MetricLogger(folder)

    def log_evaluation() -> None:
        metrics = evaluate()
        logger.log(frames, minutes(), metrics)
        say(f"{frames:,} steps: Eval/return {metrics['Eval/return']:.3f}")

    def minutes() -> float:
        return (time.perf_counter() - began) / 60

    rollout = ranks.size * algo.rollout_frames
    iterations = max(1, (training.eval_interval or algo.total_frames) // rollout)
    frames, began = 0, time.perf_counter()
    limit = training.max_minutes or float("inf")
    while frames < algo.total_frames and not ranks.max(minutes() >= limit):
        runner.learn(iterations)
        frames += iterations * rollout
        ranks.from_first(log_evaluation)
    eval_env.close()
    env.close()
    return 0


if __name__ == "__main__":
    hydra_main(train, PPOCfg)()
