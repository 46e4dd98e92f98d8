"""Train FlashSAC on a unilab task; `unilab train` runs this file.

    python examples/train_flashsac.py task=pendulum_swingup algo.num_envs=16 training.max_minutes=1

Settings and their defaults: unilab/conf/flashsac and unilab/settings.py; `--cfg job` prints them.
"""

from __future__ import annotations

import torch

import unilab
from unilab.collectors import EnvProcess, make_collector
from unilab.conf.command import hydra_main
from unilab.conf.flashsac import FlashSACAlgoCfg, FlashSACCfg
from unilab.data import RewardNormalizer, make_replay_buffer
from unilab.envs import TorchEnv
from unilab.modules import FlashSACCritic, FlashSACPolicy, build_actor
from unilab.objectives import FlashSACLoss
from unilab.trainers import (
    EnvTrainingState,
    Evaluator,
    FlashSACLearner,
    OffPolicyRunner,
    ReplayContents,
    Run,
    run_identity,
)


def make_learner(
    algo: FlashSACAlgoCfg, env: TorchEnv, critic_obs: str, device: torch.device
) -> FlashSACLearner:
    """Networks, loss and optimizers for the observations and actions of an environment."""
    params, widths = algo.algo_params, env.obs_groups_spec
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
        target_entropy_sigma=params.target_entropy_sigma,
        bc_alpha=params.bc_alpha,
    )
    loss.set_keys(critic_obs=critic_obs)
    return FlashSACLearner(
        loss,
        lr=params.lr,
        lr_end=params.lr_end,
        warmup_steps=params.lr_warmup_steps,
        decay_steps=params.lr_decay_steps or algo.planned_updates(),
        actor_update_period=params.actor_update_period,
        tau=params.tau,
        amp_dtype=params.amp_dtype,
        compile=params.compile,
        use_whole_cycle_cuda_graph=params.use_whole_cycle_cuda_graph,
        actor_normalize_parameters=params.actor_normalize_parameters,
    )


def train(cfg: FlashSACCfg) -> int:
    """Run one training; returns the exit code."""
    algo, training = cfg.algo, cfg.training
    device = training.resolve_device()
    placement = training.resolve_placement()
    pipelined = training.resolve_collector(device) == "pipelined"
    learner_threads, physics_threads = training.resolve_threads(device)
    torch.set_num_threads(learner_threads)
    torch.manual_seed(training.seed)

    # Environments to evaluate in tell the learner its widths; those to train in start last, in a
    # second process if pipelined.
    make_env = unilab.registry.factory(
        cfg.task,
        num_envs=algo.num_envs,
        device=str(placement.env_device),
        seed=training.seed,
        overrides={"num_threads": physics_threads} | cfg.env,
    )
    eval_env = unilab.make(
        cfg.task,
        num_envs=training.eval_num_envs,
        device=str(device),
        seed=training.seed + 1,
        overrides=cfg.env,
    )
    critic_obs = "critic" if "critic" in eval_env.obs_groups_spec else "obs"
    learner = make_learner(algo, eval_env, critic_obs, device)
    actor = learner.loss.actor
    policy = FlashSACPolicy(actor)
    buffer = make_replay_buffer(
        algo.replay_capacity, algo.batch_size, device=device, n_step=algo.n_step, gamma=algo.gamma
    )
    rewards = RewardNormalizer(algo.gamma, v_max=algo.algo_params.v_max)
    env = EnvProcess(make_env) if pipelined else make_env()

    # A new run, or the one to resume from its last checkpoint.
    state = {"learner": learner, "rewards": rewards, "env": EnvTrainingState(env)}
    if training.save_replay:
        state["replay"] = ReplayContents(buffer)
    run = Run.open(
        cfg,
        state,
        identity=run_identity(cfg.task, eval_env.obs_groups_spec, critic_obs, actor),
        device_resolution=placement.device_resolution(),
    )
    env.set_output_dir(str(run.folder.path))
    eval_env.set_output_dir(str(run.folder.path / "evaluation"))

    collector = make_collector(
        env,
        policy,
        placement=placement,
        frames_per_batch=algo.num_envs,
        total_frames=algo.frames_left(run.counters.frames),
        init_random_frames=algo.random_frames_left(run.counters.frames),
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
    print(run.summary())
    return runner.exit_code


if __name__ == "__main__":
    hydra_main(train, FlashSACCfg)()
