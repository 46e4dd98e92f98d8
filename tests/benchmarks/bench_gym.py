"""Gymnasium's Humanoid, many at once: this library, bare physics, Gymnasium, EnvPool.

    python tests/benchmarks/bench_gym.py [--num-envs 256] [--steps 60]

Every contender steps its own environments with the same random actions, resets included. They take
turns, and medians of the same run are compared; the bare batch is given this library's states and
controls. EnvPool is used if it is installed (pip install envpool).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable

import gymnasium
import torch
from mujoco.batch import Batch
from timing import interleaved, print_table

import unilab

TARGETS = {"mujoco.batch": 0.9, "gymnasium AsyncVectorEnv": 2.5, "EnvPool": 1.0}
OURS = "unilab"


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


def theirs(num_envs: int, draw: Callable[[], torch.Tensor]) -> dict[str, Callable[[], object]]:
    """Gymnasium's vector environment, with a process an environment, and EnvPool's threads."""
    # Workers share observations through memory, as Gymnasium's default has it.
    vector = gymnasium.make_vec("Humanoid-v5", num_envs, vectorization_mode="async")
    vector.reset(seed=0)
    contenders: dict[str, Callable[[], object]] = {
        "gymnasium AsyncVectorEnv": lambda: vector.step(draw().numpy())
    }
    if importlib.util.find_spec("envpool"):
        import envpool

        pool = envpool.make_gymnasium(
            "Humanoid-v5", num_envs=num_envs, num_threads=os.cpu_count(), seed=0
        )
        pool.reset()
        contenders["EnvPool"] = lambda: pool.step(draw().double().numpy())
    return contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)

    def draw() -> torch.Tensor:
        return (torch.rand(args.num_envs, 17, generator=generator) - 0.5) * 0.8

    contenders = ours(args.num_envs, draw) | theirs(args.num_envs, draw)
    interleaved(contenders, 10)
    medians = interleaved(contenders, args.steps)
    del medians["prepare"]
    rows = [
        (
            name,
            f"{1e3 * seconds:.1f}",
            f"{args.num_envs / seconds:,.0f}",
            f"{seconds / medians[OURS]:.2f}",
            f">= {TARGETS[name]}" if name in TARGETS else "",
        )
        for name, seconds in medians.items()
    ]
    print(f"Humanoid-v5, {args.num_envs} environments, random actions, {os.cpu_count()} cores")
    print_table(("", "ms a step", "steps/s", "time / unilab", "target"), rows)


if __name__ == "__main__":
    main()
