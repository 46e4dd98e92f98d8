"""Train FlashSAC on a unilab task; `unilab train` runs this file.

    python examples/train_flashsac.py task=pendulum_swingup algo.num_envs=16 training.max_minutes=1

Settings and their defaults: unilab/conf/flashsac and unilab/settings.py; `--cfg job` prints them.
"""

from __future__ import annotations

# First, as it sets how PyTorch's threads wait for each other.
from unilab.conf.training_command import hydra_main

# isort: split
import torch

from unilab.collectors import make_collector
from unilab.conf.envs import make_eval_env, make_training_env
from unilab.conf.flashsac import FlashSACAlgoCfg, FlashSACCfg
from unilab.data import RewardNormalizer, SymmetryTransform, make_replay_buffer
from unilab.envs import TorchEnv, checked_mirror
from unilab.modules import FlashSACCritic, FlashSACPolicy, build_actor
from unilab.objectives import FlashSACLoss
from unilab.output import say
from unilab.trainers import Evaluator, FlashSACLearner, OffPolicyRunner, Ranks, Run, run_identity


def make_learner(
    algo: FlashSACAlgoCfg, env: TorchEnv, critic_obs: str, device: torch.device
) -> FlashSACLearner:
    """Networks, loss and optimizers for the observations and actions of an environment."""
    params, widths, ranks = algo.algo_params, env.obs_groups_spec, Ranks()
    action_dim = env.action_spec.shape[-1]
    actor = build_actor(
        params.actor_spec(env.action_spec),
        obs_dim=widths["obs"],
        action_dim=action_dim,
        device=device,
    )
    critic = FlashSACCritic(
        widths[critic_obs],
        action_dim,
        hidden_dim=params.critic_hidden_dim,
        num_blocks=params.critic_num_blocks,
        num_bins=params.num_bins,
        v_min=params.v_min,
        v_max=params.v_max,
        device=device,
    )
    loss = FlashSACLoss(
        actor,
        critic,
        gamma=algo.gamma,
        alpha_init=params.alpha_init,
        min_alpha=params.min_alpha,
        max_alpha=params.max_alpha,
        target_entropy_sigma=params.target_entropy_sigma,
        action_spec=env.action_spec,
        bc_alpha=params.bc_alpha,
    )
    loss.set_keys(critic_obs=critic_obs)
    return FlashSACLearner(
        loss,
        lr=params.lr,
        lr_end=params.lr_end,
        warmup_steps=params.lr_warmup_steps,
        decay_steps=params.lr_decay_steps or algo.planned_updates(ranks.size),
        actor_update_period=params.actor_update_period,
        tau=params.tau,
        amp_dtype=params.amp_dtype,
        allow_tf32=params.allow_tf32,
        compile=params.compile,
        use_whole_cycle_cuda_graph=params.use_whole_cycle_cuda_graph,
        actor_normalize_parameters=params.actor_normalize_parameters,
        sync_gradients=ranks.average_gradients,
    )


def train(cfg: FlashSACCfg) -> int:
    """Run one training; returns the exit code."""
    algo, training = cfg.algo, cfg.training
    device = training.resolve_device()
    torch.set_num_threads(training.resolve_threads(device, algo.update_size()).learner)
    torch.manual_seed(training.rank_seed)

    eval_env = make_eval_env(cfg)
    critic_obs = "critic" if "critic" in eval_env.obs_groups_spec else "obs"
    learner = make_learner(algo, eval_env, critic_obs, device)
    actor = learner.loss.actor
    policy = FlashSACPolicy(actor)
    buffer = make_replay_buffer(
        algo.replay_capacity, algo.batch_size, device=device, n_step=algo.n_step, gamma=algo.gamma
    )
    if algo.symmetry:
        buffer.append_transform(SymmetryTransform(checked_mirror(eval_env)))
    rewards = RewardNormalizer(algo.gamma, v_max=algo.algo_params.v_max)
    env = make_training_env(cfg)

    # A new run, or the one to resume from its last checkpoint.
    run = Run.open(
        cfg,
        identity=run_identity(cfg.task, eval_env.obs_groups_spec, critic_obs, actor),
        env=env,
        eval_env=eval_env,
        buffer=buffer,
        learner=learner,
        rewards=rewards,
    )
    collector = make_collector(
        env,
        policy,
        placement=training.resolve_placement(),
        frames_per_batch=algo.num_envs,
        total_frames=algo.frames_left(run.counters.frames, run.ranks.size),
        init_random_frames=algo.random_frames_left(run.counters.frames, run.ranks.size),
    )
    with OffPolicyRunner(
        collector,
        learner,
        buffer,
        training=training,
        run=run,
        evaluate=Evaluator(eval_env, policy, trained=env),
        drain_metrics=env.drain_metrics,
    ) as runner:
        for data in runner:  # act and step
            rewards.update(data)
            buffer.extend(data)  # store
            if len(buffer) >= algo.learning_starts:
                for _ in range(algo.updates_per_step):
                    batch = rewards.normalize(buffer.sample())  # sample
                    runner.record(learner.update(batch))  # update
    eval_env.close()
    say(run.summary())
    return runner.exit_code


if __name__ == "__main__":
    hydra_main(train, FlashSACCfg)()
