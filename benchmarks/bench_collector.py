"""Whole training ticks: the pipelined collector against TorchRL's synchronous and async ones.

    python benchmarks/bench_collector.py [--task go2_velocity_flat] [--num-envs 128]

A tick is one control step of all environments, its replay write and one update of FlashSAC, with
the networks of the task's configuration. The contenders feed one learner, each alone: an
environment that is only there already slows the others down. They take turns of some seconds, in
one order and then the other, so that they meet the same disturbances; medians of 20 ticks each are
compared. Threads are those of a training: ``training.num_threads=1 env.num_threads=1`` give each
part a core. ``--multi-async`` measures TorchRL's ``MultiAsyncCollector`` with one worker as well,
at the same number of updates a frame.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
from tensordict import TensorDictBase
from torchrl.collectors import BaseCollector, Collector, MultiAsyncCollector

import unilab
from unilab.collectors import PipelinedCollector
from unilab.conf import compose
from unilab.conf.flashsac import FlashSACCfg
from unilab.data import RewardNormalizer, make_replay_buffer
from unilab.modules import FlashSACActor, FlashSACCritic, FlashSACPolicy
from unilab.objectives import FlashSACLoss
from unilab.trainers import FlashSACLearner

TARGET = 1.03
ROUNDS = 4


class Learning:
    """A learner and its buffer, whichever collector feeds them.

    One for all contenders: where its memory happens to lie makes some percent.
    """

    def __init__(self, cfg: FlashSACCfg, threads: int) -> None:
        algo, params = cfg.algo, cfg.algo.algo_params
        self.threads = threads
        dims = unilab.registry.dims(cfg.task)
        actor = FlashSACActor(dims.obs, dims.action, params.actor_hidden_dim)
        critic = FlashSACCritic(dims.critic, dims.action, params.critic_hidden_dim)
        self.policy = FlashSACPolicy(actor)
        loss = FlashSACLoss(actor, critic, gamma=algo.gamma)
        loss.set_keys(critic_obs="critic" if dims.has_critic else "obs")
        self.learner = FlashSACLearner(loss, compile=params.compile)
        self.buffer = make_replay_buffer(100_000, algo.batch_size, n_step=algo.n_step, gamma=0.97)
        self.rewards = RewardNormalizer(algo.gamma)

    def tick(self, data: TensorDictBase) -> None:
        """What follows a control step."""
        self.rewards.update(data)
        self.buffer.extend(data)
        if len(self.buffer) >= 2048:
            self.learner.update(self.rewards.normalize(self.buffer.sample()))


class Session:
    """A collector that feeds the learner."""

    def __init__(self, cfg: FlashSACCfg, kind: str, threads: int, learning: Learning) -> None:
        self.learning = learning
        make_env = unilab.registry.factory(
            cfg.task,
            num_envs=cfg.algo.num_envs,
            seed=0,
            overrides={"num_threads": threads} | cfg.env,
        )
        frames = cfg.algo.num_envs
        self.collector: BaseCollector
        if kind == "pipelined":
            self.collector = PipelinedCollector(
                make_env, learning.policy, frames_per_batch=frames, return_same_td=True
            )
        elif kind == "sync":
            self.collector = Collector(
                make_env(),
                learning.policy,
                frames_per_batch=frames,
                total_frames=-1,
                trust_policy=True,
                track_traj_ids=False,
                use_buffers=False,
                return_same_td=True,
            )
        else:
            self.collector = MultiAsyncCollector(
                [make_env],
                learning.policy,
                frames_per_batch=frames,
                total_frames=-1,
                num_threads=threads,
            )
        self.sends_weights = kind == "multi-async"
        self.batches: Iterator[TensorDictBase] = iter(self.collector)

    def ticks(self, count: int) -> float:
        """Seconds a tick, over ``count`` of them."""
        torch.set_num_threads(self.learning.threads)
        start = time.perf_counter()
        for _ in range(count):
            self.learning.tick(next(self.batches))
            if self.sends_weights:
                self.collector.update_policy_weights_()
        return (time.perf_counter() - start) / count


def alone(session: Session, warm_up: int, seconds: float) -> list[float]:
    """Seconds a tick in each of the turns of 20 ticks that a collector makes before it ends."""
    session.ticks(warm_up)
    turns = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        turns.append(session.ticks(20))
    session.collector.shutdown()
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="go2_velocity_flat")
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each contender")
    parser.add_argument("--multi-async", action="store_true")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides")
    args = parser.parse_args()
    sizes = [f"algo.num_envs={args.num_envs}"] if args.num_envs else []
    cfg = compose([f"task={args.task}", *sizes, *args.overrides])
    threads = cfg.training.resolve_threads(torch.device("cpu"), cfg.algo.update_size())
    learning = Learning(cfg, threads[0])
    kinds = ["sync", "pipelined", *(["multi-async"] if args.multi_async else [])]
    warm_up = -(-2048 // cfg.algo.num_envs) + 20
    measured: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            session = Session(cfg, kind, threads[1], learning)
            measured[kind] += alone(session, warm_up, args.seconds / ROUNDS)
        kinds.reverse()
    tick = {name: statistics.median(turns) for name, turns in measured.items()}
    print(f"{args.task}, {cfg.algo.num_envs} environments, threads {threads}")
    for name in measured:
        print(f"  {name:<12}{1e3 * tick[name]:8.1f} ms a tick   {len(measured[name])} turns")
    ratio = tick["pipelined"] / tick["sync"]
    print(f"  pipelined / sync {ratio:.2f}; target: <= {TARGET}")
    if args.multi_async:
        gain = tick["multi-async"] / tick["pipelined"]
        print(f"  frames/s, pipelined / multi-async {gain:.2f}; target: > 1")


if __name__ == "__main__":
    main()
