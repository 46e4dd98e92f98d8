"""Train FlashSAC with environments on other machines, which Ray and TorchRL's RayCollector step.

    python examples/train_ray.py task=pendulum_swingup ray.num_workers=2
    RAY_ADDRESS=10.0.0.1:6379 python examples/train_ray.py ray.num_workers=16 algo.num_envs=4096

Each worker steps its share of the environments with a copy of the policy; replay and learner stay
in this process. Without RAY_ADDRESS the workers run on this machine. Settings are those of
train_flashsac.py and `ray`, below. Needs unilab-torchrl[ray].
"""

from __future__ import annotations

# First, as it sets how PyTorch's threads wait for each other.
from unilab.conf.training_command import hydra_main

# isort: split
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from statistics import mean
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.collectors import Collector
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import EnvBase

from unilab import registry
from unilab.checks import Count
from unilab.conf.envs import make_eval_env
from unilab.conf.flashsac import FlashSACCfg
from unilab.data import RewardNormalizer, SymmetryTransform, make_replay_buffer
from unilab.envs import checked_mirror
from unilab.errors import CapabilityError, CollectorError, ConfigError
from unilab.examples.train_flashsac import make_learner
from unilab.modules import FlashSACPolicy
from unilab.output import say
from unilab.registry import EnvFactory
from unilab.trainers import Evaluator, OffPolicyRunner, Run, run_identity


@dataclass(frozen=True, kw_only=True)
class RayCfg:
    """Workers."""

    num_workers: Count = 2
    """Processes that step environments; they share ``algo.num_envs``."""
    cpus_per_worker: Count = 1
    """Cores that Ray reserves for each worker, and its physics threads."""
    num_steps: Count = 8
    """Control steps that workers take with one policy; the updates of all follow at once. More:
    less waiting for messages, an older policy."""


@dataclass(frozen=True, kw_only=True)
class FlashSACRayCfg(FlashSACCfg):
    """A FlashSAC training run with Ray."""

    ray: RayCfg = field(default_factory=RayCfg)

    def __post_init__(self) -> None:
        if self.algo.num_envs % self.ray.num_workers:
            raise ConfigError(
                f"num_workers must divide algo.num_envs={self.algo.num_envs}, got "
                f"{self.ray.num_workers}"
            )


class Worker(Collector):
    """TorchRL's collector, with a name that Ray can print before what it prints."""

    def __repr__(self) -> str:
        return "Worker"


class Workers(RayCollector):
    """Ray's workers, whose environments a run logs and saves as one."""

    def __init__(self, policy: FlashSACPolicy, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trained_policy = policy
        self._training_state = self._call("export_training_state")[0]

    def iterator(self) -> Iterator[TensorDictBase]:
        """Batches, each with the newest weights; the workers stay for the last evaluation."""
        with worker_errors():
            self.update_policy_weights_(self.trained_policy)
            for data in super().iterator():
                yield data
                if self.collected_frames >= self.total_frames:
                    return
                self.update_policy_weights_(self.trained_policy)

    def drain_metrics(self) -> dict[str, float]:
        """Means over the workers."""
        self._training_state = self._call("export_training_state")[0]
        drained = self._call("drain_metrics")
        tags = {tag for each in drained for tag in each}
        return {tag: mean(each[tag] for each in drained if tag in each) for tag in tags}

    def export_training_state(self) -> dict[str, Any]:
        """The first worker's, as of the last row of metrics: by now it may have died."""
        return self._training_state

    def import_training_state(self, state: dict[str, Any]) -> None:
        self._call("import_training_state", state)
        self._training_state = state

    def set_output_dir(self, path: str) -> None:
        self._call("set_output_dir", os.path.abspath(path))

    def _call(self, method: str, *args: Any) -> list[Any]:
        with worker_errors():
            return self.map_fn(f"env.{method}", list_of_args=[args] * self.num_collectors)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raises what fails in a worker or on the way to it, or its death, as a CollectorError."""
    from ray.exceptions import RayError

    try:
        yield
    except (RayError, torch.distributed.DistError) as error:
        raise CollectorError(f"a Ray worker failed: {error}") from error


def make_env(factory: EnvFactory) -> EnvBase:
    """A worker's environments."""
    torch.manual_seed(factory.seed)  # of the worker's exploration
    return factory()


def start_workers(cfg: FlashSACRayCfg, policy: FlashSACPolicy, copy: FlashSACPolicy) -> Workers:
    """Starts workers, on RAY_ADDRESS's cluster or on this machine.

    Args:
        policy: the one that is trained.
        copy: another one on the CPU, for the workers.
    """
    algo, ray, device = cfg.algo, cfg.ray, cfg.training.resolve_device()
    make_envs = [
        partial(
            make_env,
            registry.factory(
                cfg.task,
                num_envs=algo.num_envs // ray.num_workers,
                seed=cfg.training.rank_seed + 100 * worker,
                overrides={"num_threads": ray.cpus_per_worker} | cfg.env,
            ),
        )
        for worker in range(ray.num_workers)
    ]
    cpus = ray.num_workers * ray.cpus_per_worker
    here = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    with worker_errors():
        return Workers(
            policy,
            make_envs,
            copy,
            collector_class=Worker,
            frames_per_batch=algo.num_envs * ray.num_steps,
            total_frames=algo.total_frames,
            init_random_frames=0 if cfg.training.resume else algo.random_frames_left(0),
            sync=True,  # the data are those of the same environments, in time order
            collector_kwargs={"trust_policy": True, "track_traj_ids": False},
            postproc=lambda data: data.flatten(0, 1).to(device),
            ray_init_config={} if "RAY_ADDRESS" in os.environ else here,
            remote_configs={"num_cpus": ray.cpus_per_worker, "scheduling_strategy": "SPREAD"},
        )


def train(cfg: FlashSACRayCfg) -> int:
    """Run one training; returns the exit code."""
    if find_spec("ray") is None:
        raise CapabilityError(
            "train_ray.py needs Ray, which is not installed: pip install 'unilab-torchrl[ray]'"
        )
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
    copy = make_learner(algo, eval_env, critic_obs, torch.device("cpu")).loss.actor
    workers = start_workers(cfg, policy, FlashSACPolicy(copy))

    # A new run, or the one to resume from its last checkpoint.
    run = Run.open(
        cfg,
        identity=run_identity(cfg.task, eval_env.obs_groups_spec, critic_obs, actor),
        env=workers,
        eval_env=eval_env,
        buffer=buffer,
        learner=learner,
        rewards=rewards,
    )
    workers.total_frames = algo.frames_left(run.counters.frames, run.ranks.size)
    with OffPolicyRunner(
        workers,
        learner,
        buffer,
        training=training,
        run=run,
        evaluate=Evaluator(eval_env, policy, trained=workers),
        drain_metrics=workers.drain_metrics,
    ) as runner:
        for data in runner:  # act and step
            rewards.update(data)
            buffer.extend(data)  # store
            if len(buffer) >= algo.learning_starts:
                for _ in range(algo.updates_per_step * cfg.ray.num_steps):
                    batch = rewards.normalize(buffer.sample())  # sample
                    runner.record(learner.update(batch))  # update
    eval_env.close()
    say(run.summary())
    return runner.exit_code


if __name__ == "__main__":
    hydra_main(train, FlashSACRayCfg)()
