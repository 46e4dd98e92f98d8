"""Train FlashSAC on a unilab task; `unilab train` runs this file.

    python examples/train_flashsac.py task=pendulum_swingup algo.num_envs=16 training.max_minutes=1

Keys and defaults: unilab/conf/flashsac/config.yaml, or `--cfg job`.
"""

from __future__ import annotations

import torch

import unilab
from unilab.collectors import EnvProcess, make_collector
from unilab.conf import hydra_main
from unilab.data import RewardNormalizer, make_replay_buffer
from unilab.modules import FlashSACCritic, FlashSACPolicy, build_actor
from unilab.objectives import FlashSACLoss
from unilab.record import closing_summary
from unilab.trainers import (
    AlgoCfg,
    Algorithm,
    EnvTrainingState,
    Evaluator,
    FlashSACLearner,
    Interface,
    OffPolicyRunner,
    ReplayContents,
    Run,
    TrainCfg,
    algorithm,
    run_identity,
)


def flashsac(algo: AlgoCfg, interface: Interface) -> Algorithm:
    """FlashSAC from its settings and what it sees of the environment."""
    params = algo.algo_params
    actor = build_actor(
        params.actor_spec(interface.action_spec),
        obs_dim=interface.obs_groups["obs"],
        action_dim=interface.action_spec.shape[-1],
        device=interface.device,
    )
    critic = FlashSACCritic(
        interface.obs_groups[interface.critic_obs],
        interface.action_spec.shape[-1],
        hidden_dim=params.critic_hidden_dim,
        num_blocks=params.critic_num_blocks,
        num_bins=params.num_bins,
        v_min=params.v_min,
        v_max=params.v_max,
        device=interface.device,
    )
    loss = FlashSACLoss(
        actor,
        critic,
        gamma=algo.gamma,
        alpha_init=params.alpha_init,
        target_entropy_sigma=params.target_entropy_sigma,
        bc_alpha=params.bc_alpha,
    )
    loss.set_keys(critic_obs=interface.critic_obs)
    learner = FlashSACLearner(
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
    return Algorithm(actor=actor, policy=FlashSACPolicy(actor), learner=learner)


def train(cfg: TrainCfg, *, command: str | None = None) -> int:
    """One training run from its configuration; returns the exit code.

    `command` is what the closing summary tells to continue with, by default this process's own.
    """
    algo, training = cfg.algo, cfg.training
    device = training.resolve_device()
    placement = training.resolve_placement()
    pipelined = training.resolve_collector(device) == "pipelined"
    learner_threads, physics_threads = training.resolve_threads(device)
    torch.set_num_threads(learner_threads)
    torch.manual_seed(training.seed)

    # Physics on the CPU, pipelined: in a process of its own, while the learner updates. A second
    # batch of environments is for evaluation.
    make_env = unilab.registry.factory(
        cfg.task,
        num_envs=algo.num_envs,
        device=str(placement.env_device),
        seed=training.seed,
        overrides={"num_threads": physics_threads} | cfg.env,
    )
    env = EnvProcess(make_env) if pipelined else make_env()
    eval_env = unilab.make(
        cfg.task,
        num_envs=training.eval_num_envs,
        device=str(device),
        seed=training.seed + 1,
        overrides=cfg.env,
    )
    interface = Interface.of(eval_env, device)
    build = algorithm(algo.name, flashsac)  # or one that another package registered
    parts = build(algo, interface)
    buffer = make_replay_buffer(
        algo.replay_capacity, algo.batch_size, device=device, n_step=algo.n_step, gamma=algo.gamma
    )
    rewards = RewardNormalizer(algo.gamma, v_max=algo.algo_params.v_max)

    # The run: a new folder, or the one to continue from its newest checkpoint.
    identity = run_identity(cfg.task, interface, parts.actor)
    state = {"learner": parts.learner, "rewards": rewards, "env": EnvTrainingState(env)}
    if training.save_replay:
        state["replay"] = ReplayContents(buffer)
    run = Run.open(cfg, state, identity=identity, device_resolution=placement.device_resolution())
    env.set_output_dir(str(run.folder.path))
    eval_env.set_output_dir(str(run.folder.path / "evaluation"))
    print(f"Run folder   {run.folder.path}", flush=True)

    collector = make_collector(
        env,
        parts.policy,
        placement=placement,
        frames_per_batch=algo.num_envs,
        total_frames=algo.frames_left(run.counters.frames),
        init_random_frames=algo.random_frames_left(run.counters.frames),
    )
    with OffPolicyRunner(
        collector,
        parts.learner,
        buffer,
        training=training,
        run=run,
        evaluate=Evaluator(eval_env, parts.policy, trained=env),
        drain_metrics=env.drain_metrics,
    ) as runner:
        for data in runner:  # act and step
            rewards.update(data)
            buffer.extend(data)  # store
            if len(buffer) >= algo.learning_starts:
                for _ in range(algo.updates_per_step):
                    batch = rewards.normalize(buffer.sample())  # sample
                    runner.record(parts.learner.update(batch))  # update
    eval_env.close()
    print(
        closing_summary(run.folder, runner.result, total_frames=algo.total_frames, command=command)
    )
    return runner.exit_code


if __name__ == "__main__":
    hydra_main(train)()
