"""Train SAC on a unilab task; `unilab train sac` runs this file.

    python examples/train_sac.py task=pendulum_swingup algo.num_envs=16 training.max_minutes=1

Settings and their defaults: unilab/conf/sac and unilab/settings.py; `--cfg job` prints them.
"""

from __future__ import annotations

# First, as it sets how PyTorch's threads wait for each other.
from unilab.conf.training_command import hydra_main

# isort: split
import torch
from torchrl.modules import ValueOperator
from torchrl.objectives import SACLoss

from unilab.collectors import make_collector
from unilab.conf.envs import make_eval_env, make_training_env
from unilab.conf.sac import SACAlgoCfg, SACCfg
from unilab.data import RewardNormalizer, SymmetryTransform, make_replay_buffer
from unilab.envs import TorchEnv, checked_mirror
from unilab.modules import FlashSACPolicy, ValueNetwork, action_range, build_actor
from unilab.objectives import functional
from unilab.output import say
from unilab.trainers import Evaluator, OffPolicyRunner, Ranks, Run, SACLearner, run_identity


def make_learner(
    algo: SACAlgoCfg, env: TorchEnv, critic_obs: str, device: torch.device
) -> SACLearner:
    """Networks, loss and optimizers for the observations and actions of an environment."""
    params, widths = algo.algo_params, env.obs_groups_spec
    action_dim = env.action_spec.shape[-1]
    actor = build_actor(
        params.actor_spec(env.action_spec),
        obs_dim=widths["obs"],
        action_dim=action_dim,
        device=device,
    )

    def make_critic() -> ValueOperator:
        critic = ValueNetwork(
            widths[critic_obs],
            params.critic_hidden_dims,
            params.activation,
            action_dim=action_dim,
            layer_norm=params.layer_norm,
            normalize_obs=params.normalize_obs,
            device=device,
        )
        return ValueOperator(critic, in_keys=[critic_obs, "action"])

    low, high = (torch.tensor(ends) for ends in action_range(env.action_spec).values())
    loss = SACLoss(
        FlashSACPolicy(actor),
        [make_critic(), make_critic()],
        loss_function="l2",
        alpha_init=params.alpha_init,
        target_entropy=functional.target_entropy(
            action_dim, params.target_entropy_sigma, 0.5 * (high - low)
        ),
    )
    loss.make_value_estimator(gamma=algo.gamma)
    return SACLearner(
        loss,
        lr=params.lr,
        actor_update_period=params.actor_update_period,
        tau=params.tau,
        sync_gradients=Ranks().average_gradients,
    )


def train(cfg: SACCfg) -> int:
    """Run one training; returns the exit code."""
    algo, training = cfg.algo, cfg.training
    device = training.resolve_device()
    torch.set_num_threads(training.resolve_threads(device, algo.update_size()).learner)
    torch.manual_seed(training.rank_seed)

    eval_env = make_eval_env(cfg)
    critic_obs = "critic" if "critic" in eval_env.obs_groups_spec else "obs"
    learner = make_learner(algo, eval_env, critic_obs, device)
    policy = learner.loss.actor_network
    buffer = make_replay_buffer(
        algo.replay_capacity, algo.batch_size, device=device, n_step=algo.n_step, gamma=algo.gamma
    )
    if algo.symmetry:
        buffer.append_transform(SymmetryTransform(checked_mirror(eval_env)))
    rewards = RewardNormalizer(algo.gamma)
    env = make_training_env(cfg)

    # A new run, or the one to resume from its last checkpoint.
    run = Run.open(
        cfg,
        identity=run_identity(cfg.task, eval_env.obs_groups_spec, critic_obs, learner.actor),
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
            learner.update_normalizers(data)
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
    hydra_main(train, SACCfg)()
