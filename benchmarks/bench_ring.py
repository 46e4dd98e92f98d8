"""The pipeline without a learner: overlap with one that sleeps, hand-over, and memory over time.

    python benchmarks/bench_ring.py [--seconds 20]

Overlap: a tick takes P without a learner, which sleeps T a tick; the cycle should be max(T, P).
Hand-over: from publishing an observation to its action being there, and the whole time between
two steps, of an environment without physics under a policy that does nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

import unilab
from unilab.collectors import PipelinedCollector
from unilab.collectors.ring import Ring

CYCLE_TARGET, GROWTH_TARGET = 1.08, 0.01
HAND_OVER_TARGETS_US = {"published -> action there": 300, "between two steps": 600}
WIDTH, ACTIONS = 75, 12


class EmptyEnv(EnvBase):
    """``obs`` and ``critic`` of 75 floats each, and no physics at all."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(batch_size=torch.Size([num_envs]), device="cpu")
        n = num_envs
        groups = {key: Unbounded((n, WIDTH)) for key in ("obs", "critic")}
        self.observation_spec = Composite(**groups, shape=(n,))
        self.action_spec = Bounded(-1.0, 1.0, (n, ACTIONS))
        self.reward_spec = Unbounded((n, 1))
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool)
        keys = ("done", "terminated", "truncated", "is_init")
        self.done_spec = Composite({key: flag.clone() for key in keys[:3]}, shape=(n,))
        self.observation_spec["is_init"] = flag.clone()
        self.out = {key: torch.zeros(n, WIDTH) for key in groups}
        self.out |= {key: torch.zeros(n, 1, dtype=torch.bool) for key in keys}
        self.pauses: list[tuple[int, int]] = []
        self.stepped = self.published = 0
        flush = Ring.flush

        def flush_and_note(ring: Ring) -> None:  # in this process, the end of publishing
            flush(ring)
            self.published = time.perf_counter_ns()

        Ring.flush = flush_and_note

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        now = time.perf_counter_ns()
        self.pauses.append((now - self.published, now - self.stepped))
        out = {**self.out, "reward": torch.zeros(*self.batch_size, 1)}
        stepped = TensorDict(out, self.batch_size)
        self.stepped = time.perf_counter_ns()
        return stepped

    def drain_metrics(self) -> dict[str, float]:
        pauses, self.pauses = self.pauses, []
        medians = (statistics.median(each) / 1e3 for each in zip(*pauses, strict=True))
        return dict(zip(HAND_OVER_TARGETS_US, medians, strict=True))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(dict(self.out), self.batch_size)

    def _set_seed(self, seed: int | None) -> None: ...


def overlap(task: str, num_envs: int, seconds: float) -> None:
    """Cycle time against the longer of physics and a learner that sleeps."""
    make_env = unilab.registry.factory(
        task, num_envs=num_envs, seed=0, overrides={"num_threads": 1}
    )
    collector = PipelinedCollector(make_env, frames_per_batch=num_envs, return_same_td=True)
    batches = iter(collector)

    def cycle(ticks: int, pause: float) -> float:
        began = time.perf_counter()
        for _ in range(ticks):
            next(batches)
            if pause:
                time.sleep(pause)
        return (time.perf_counter() - began) / ticks

    cycle(20, 0.0)
    ratios: dict[float, list[float]] = {0.5: [], 1.0: [], 2.0: []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for share, measured in ratios.items():
            physics = cycle(20, 0.0)
            measured.append(cycle(20, share * physics) / (max(share, 1.0) * physics))
    collector.shutdown()
    print(f"{task}, {num_envs} environments: P {1e3 * physics:.1f} ms")
    for share, measured in ratios.items():
        ratio = statistics.median(measured)
        print(f"  T / P = {share}: cycle / max(T, P) {ratio:.3f}; target <= {CYCLE_TARGET}")


def hand_over(num_envs: int, ticks: int) -> None:
    """Microseconds from step to step under a policy that does nothing; memory over time."""
    action = torch.zeros(num_envs, ACTIONS)
    collector = PipelinedCollector(
        lambda: EmptyEnv(num_envs),
        lambda td: td.set("action", action),
        frames_per_batch=num_envs,
        return_same_td=True,
        track_traj_ids=False,
    )
    batches = iter(collector)
    pids = (os.getpid(), collector.env.pid)
    for _ in range(1000):
        next(batches)
    collector.env.drain_metrics()
    before = [_rss(pid) for pid in pids]
    for _ in range(ticks):
        next(batches)
    growth = [_rss(pid) / was - 1 for pid, was in zip(pids, before, strict=True)]
    pauses = collector.env.drain_metrics()
    collector.shutdown()
    print(f"{num_envs} environments, obs + critic {2 * WIDTH} floats")
    for name, target in HAND_OVER_TARGETS_US.items():
        print(f"  {name} {pauses[name]:.0f} us; target {target} us")
    print(
        f"  memory over {ticks:,} ticks: learner {growth[0]:+.2%}, collector {growth[1]:+.2%}; "
        f"target within {GROWTH_TARGET:.0%}"
    )


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="go2_velocity_flat")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ticks", type=int, default=10_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    overlap(args.task, args.num_envs, args.seconds)
    hand_over(1024, args.ticks)


if __name__ == "__main__":
    main()
