"""Train APPO on a unilab task; `unilab train appo` runs this file.

    python examples/train_appo.py task=pendulum_swingup algo.num_envs=64 training.max_minutes=1

Settings and their defaults: unilab/conf/appo and unilab/settings.py; `--cfg job` prints them.
"""

from __future__ import annotations

# First, as it sets how PyTorch's threads wait for each other.
from unilab.conf.training_command import hydra_main

# isort: split
import torch
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss

from unilab.collectors import RolloutCollector
from unilab.conf.appo import APPOAlgoCfg, APPOCfg
from unilab.conf.envs import make_eval_env, make_training_env
from unilab.data import minibatches
from unilab.envs import TorchEnv, checked_mirror
from unilab.modules import GaussianPolicy, ValueNetwork, build_actor
from unilab.objectives import VTrace
from unilab.output import say
from unilab.trainers import Evaluator, OnPolicyRunner, PPOLearner, Ranks, Run, run_identity


def make_learner(
    algo: APPOAlgoCfg, env: TorchEnv, critic_obs: str, device: torch.device
) -> PPOLearner:
    """Networks, loss and optimizer for the observations and actions of an environment."""
    params, widths = algo.algo_params, env.obs_groups_spec
    actor = build_actor(
        params.actor_spec(),
        obs_dim=widths["obs"],
        action_dim=env.action_spec.shape[-1],
        device=device,
    )
    critic = ValueNetwork(
        widths[critic_obs],
        params.critic_hidden_dims,
        params.activation,
        normalize_obs=params.normalize_obs,
        device=device,
    )
    policy, value = GaussianPolicy(actor), ValueOperator(critic, in_keys=[critic_obs])
    loss = ClipPPOLoss(
        policy,
        value,
        clip_epsilon=params.clip_epsilon,
        clip_value=params.clip_value,
        entropy_coeff=params.entropy_coeff,
        critic_coeff=params.critic_coeff,
        loss_critic_type="l2",
        functional=False,
    )
    advantages = VTrace(
        gamma=algo.gamma,
        actor_network=policy,
        value_network=value,
        rho_thresh=2.0,  # with 1, actions that the last updates made likelier count too little
        c_thresh=algo.gae_lambda,
        average_adv=True,
        device=device,
    )
    return PPOLearner(
        loss,
        advantages,
        lr=params.lr,
        desired_kl=params.desired_kl,
        max_grad_norm=params.max_grad_norm,
        sync_gradients=Ranks().average_gradients,
    )


def train(cfg: APPOCfg) -> int:
    """Run one training; returns the exit code."""
    algo, training = cfg.algo, cfg.training
    device = training.resolve_device()
    torch.set_num_threads(training.resolve_threads(device, algo.update_size()).learner)
    torch.manual_seed(training.rank_seed)

    eval_env = make_eval_env(cfg)
    critic_obs = "critic" if "critic" in eval_env.obs_groups_spec else "obs"
    learner = make_learner(algo, eval_env, critic_obs, device)
    policy = learner.loss.actor_network
    mirror = checked_mirror(eval_env) if algo.symmetry else None
    env = make_training_env(cfg)

    # A new run, or the one to resume from its last checkpoint.
    run = Run.open(
        cfg,
        identity=run_identity(cfg.task, eval_env.obs_groups_spec, critic_obs, learner.actor),
        env=env,
        eval_env=eval_env,
        learner=learner,
    )
    collector = RolloutCollector(
        env,
        policy,
        frames_per_batch=algo.rollout_frames,
        total_frames=algo.frames_left(run.counters.frames, run.ranks.size),
        max_staleness=algo.max_staleness,
        placement=training.resolve_placement(),
        return_same_td=True,
    )
    with OnPolicyRunner(
        collector,
        learner,
        training=training,
        run=run,
        evaluate=Evaluator(eval_env, policy, trained=env),
        drain_metrics=env.drain_metrics,
    ) as runner:
        for data in runner:  # a rollout of an earlier policy, while the next one is collected
            rollout = learner.add_advantages(data)  # corrected for the policies' difference
            if mirror is not None:
                rollout = learner.add_mirror_image(rollout, mirror)
            for batch in minibatches(rollout, algo.num_minibatches, algo.num_epochs):
                runner.record(learner.update(batch))
            learner.update_normalizers(rollout)  # for a later rollout
    eval_env.close()
    say(run.summary())
    return runner.exit_code


if __name__ == "__main__":
    hydra_main(train, APPOCfg)()
