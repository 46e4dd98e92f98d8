"""Replay sampling and extending as shares of one learner update, and the memory they take.

    python benchmarks/bench_replay.py [--capacity 1000000] [--threads 2] [--clock cpu]

The buffer is filled to capacity with transitions of the Go2 task's widths before anything is
timed, so that sampling reads from all over its memory.
"""

from __future__ import annotations

import argparse
import os
import resource
from collections.abc import Callable

import torch
from bench_learner import SIZES, make_batch, make_learner
from tensordict import TensorDict
from timing import CLOCKS, interleaved, print_table
from torchrl.data import TensorDictReplayBuffer

from unilab import registry
from unilab.data import RewardNormalizer, SymmetryTransform, make_replay_buffer

SHARE, MEMORY = 0.05, 1.15
ROWS = 256  # transitions of a tick
SIZE = SIZES["go2 (45/49/12, 64/128)"]


def tick(rows: int = ROWS) -> TensorDict:
    """What a collector yields: ``[N, 1]`` with entries that learning does not read."""
    flag = torch.zeros(rows, 1, 1, dtype=torch.bool)
    return TensorDict(
        {
            "obs": torch.randn(rows, 1, SIZE.obs),
            "critic": torch.randn(rows, 1, SIZE.critic_obs),
            "action": torch.rand(rows, 1, SIZE.action),
            "is_init": flag,
            ("collector", "traj_ids"): torch.zeros(rows, 1, dtype=torch.long),
            ("next", "obs"): torch.randn(rows, 1, SIZE.obs),
            ("next", "critic"): torch.randn(rows, 1, SIZE.critic_obs),
            ("next", "reward"): torch.randn(rows, 1, 1),
            ("next", "done"): flag,
            ("next", "terminated"): flag,
            ("next", "truncated"): flag,
        },
        [rows, 1],
    )


def resident_bytes() -> int:
    """Memory that the system backs for this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    data = tick()
    chunk = tick(min(args.capacity, 50_000)).reshape(-1)
    buffer = make_replay_buffer(args.capacity, batch_size=SIZE.batch, seed=0)
    buffer.extend(data.reshape(-1))
    before = resident_bytes()
    for _ in range(args.capacity // len(chunk)):
        buffer.extend(chunk)
    grown = resident_bytes() - before
    ahead = make_replay_buffer(args.capacity, batch_size=SIZE.batch, seed=0, prefetch=1)
    ahead.extend(buffer[:])
    mirror = SymmetryTransform(registry.make("go2_velocity_flat").mirror)
    per_row = 4 * (2 * SIZE.obs + 2 * SIZE.critic_obs + SIZE.action + 1) + 3
    tensors = (args.capacity - ROWS) * per_row

    learner, batch = make_learner(SIZE), make_batch(SIZE)
    rewards = RewardNormalizer(gamma=0.97)
    joined = make_replay_buffer(args.capacity, batch_size=SIZE.batch, n_step=3, gamma=0.97)
    for _ in range(4):
        learner.update(batch)
    contenders: dict[str, Callable[[], object]] = {
        # called twice a round: with an actor step, without
        "update, actor step": lambda: learner.update(batch),
        "update": lambda: learner.update(batch),
        f"sample {SIZE.batch} of {len(buffer):,}": buffer.sample,
        "sample and mirror half": lambda: mirror(buffer.sample()),
        f"extend by {ROWS}": lambda: buffer.extend(data.reshape(-1)),
        f"extend by {ROWS}, n_step 3": lambda: joined.extend(data),
        f"reward statistics of {ROWS}": lambda: rewards.update(data),
    }
    seconds = interleaved(contenders, args.rounds, args.clock)
    update = (seconds.pop("update, actor step") + seconds.pop("update")) / 2

    def two_updates(source: TensorDictReplayBuffer) -> None:
        # with an actor step and without
        for _ in range(2):
            learner.update(source.sample())

    both: dict[str, Callable[[], object]] = {
        "sample and update": lambda: two_updates(buffer),
        "update while a thread samples": lambda: two_updates(ahead),
    }
    together = interleaved(both, args.rounds, args.clock)
    rows = [("one update", f"{update * 1e3:.2f}", "100 %")]
    rows += [(k, f"{s * 1e3:.2f}", f"{100 * s / update:.1f} %") for k, s in seconds.items()]
    rows += [(k, f"{s / 2 * 1e3:.2f}", f"{50 * s / update:.1f} %") for k, s in together.items()]
    print_table(("", "ms", "of an update"), rows)
    print(f"\nmemory: {grown / tensors:.3f} x the bytes of its tensors ({tensors / 1e6:.0f} MB)")
    print(
        f"target: each of sampling and extending < {SHARE:.0%} of an update, memory <= {MEMORY} x"
    )


if __name__ == "__main__":
    main()
