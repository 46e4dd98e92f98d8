"""Gymnasium's Humanoid, many at once: this library, bare physics, Gymnasium, EnvPool.

    python benchmarks/bench_gym.py [--num-envs 256] [--gymnasium-envs 32] [--steps 60]

Every contender steps its own environments with random actions, resets included. They take turns,
and environment steps a second of the same run are compared; the bare batch is given this library's
states and controls. Gymnasium takes a process of some 130 MB for each of its environments, so it
has fewer. EnvPool is used if it is installed (pip install envpool).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
from collections.abc import Callable

import gymnasium
import torch
from mujoco.batch import Batch
from timing import interleaved, print_table

import unilab

OURS, GYMNASIUM = "unilab", "gymnasium AsyncVectorEnv"
TARGETS = {"mujoco.batch": 0.9, GYMNASIUM: 2.5, "EnvPool": 1.0}


def ours(num_envs: int, draw: Callable[[], torch.Tensor]) -> dict[str, Callable[[], object]]:
    """This library, and bare physics from the states that it is in."""
    env = unilab.make("gym/Humanoid-v5", num_envs=num_envs, seed=0)
    bare = Batch(env.backend.mj_model, num_envs, 0)
    ctrl = torch.from_numpy(bare.bind("ctrl"))
    current = {"root": env.reset()}

    def step() -> None:
        root = current["root"]
        root.set("action", draw())
        bare.state[:] = env.backend.get_replay_state().numpy()
        ctrl.copy_(root.get("action"))

    def timed() -> None:
        _, current["root"] = env.step_and_maybe_reset(current["root"])

    return {"prepare": step, OURS: timed, "mujoco.batch": lambda: bare.step(nstep=env.decimation)}


def envpool_step(num_envs: int, draw: Callable[[], torch.Tensor]) -> Callable[[], object]:
    """EnvPool on all cores."""
    import envpool

    pool = envpool.make_gymnasium(
        "Humanoid-v5", num_envs=num_envs, num_threads=os.cpu_count(), seed=0
    )
    pool.reset()
    return lambda: pool.step(draw().double().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--gymnasium-envs", type=int, default=32, help="a process each")
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)

    def draw(num_envs: int) -> torch.Tensor:
        return (torch.rand(num_envs, 17, generator=generator) - 0.5) * 0.8

    def draw_all() -> torch.Tensor:
        return draw(args.num_envs)

    # A time limit's SIGTERM unwinds the block below too: no worker is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    vector = gymnasium.make_vec("Humanoid-v5", args.gymnasium_envs, vectorization_mode="async")
    try:
        vector.reset(seed=0)
        contenders = ours(args.num_envs, draw_all)
        contenders[GYMNASIUM] = lambda: vector.step(draw(args.gymnasium_envs).numpy())
        if importlib.util.find_spec("envpool"):
            contenders["EnvPool"] = envpool_step(args.num_envs, draw_all)
        interleaved(contenders, 10)
        medians = interleaved(contenders, args.steps)
    finally:
        vector.close(terminate=True)
    del medians["prepare"]
    envs = dict.fromkeys(medians, args.num_envs) | {GYMNASIUM: args.gymnasium_envs}
    rate = {name: envs[name] / seconds for name, seconds in medians.items()}
    rows = [
        (
            name,
            str(envs[name]),
            f"{1e3 * seconds:.1f}",
            f"{rate[name]:,.0f}",
            f"{rate[OURS] / rate[name]:.2f}",
            f">= {TARGETS[name]}" if name in TARGETS else "",
        )
        for name, seconds in medians.items()
    ]
    print(f"Humanoid-v5, random actions, {os.cpu_count()} cores")
    header = ("", "environments", "ms a step", "env steps/s", "unilab's / its", "target")
    print_table(header, rows)


if __name__ == "__main__":
    main()
