"""The environment's share of a control step: ``step_and_maybe_reset`` against bare physics.

    python benchmarks/bench_env.py [--task go2_velocity_flat] [--num-envs 256] [--steps 200]

Before every control step the bare batch is given the environment's own state and controls, so that
both advance the same robots through the same contacts. The contenders take turns within each
step, and medians of the same run are compared. Two workloads: random actions (robots fall and are
reset all the time) and action 0 (they stand and none is reset).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import mujoco
import torch
from mujoco.batch import Batch

import unilab

TARGET = 0.85
WARMUP = 20
NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)


@dataclass
class Timings:
    """Seconds of every control step."""

    env: list[float] = field(default_factory=list)
    """``step_and_maybe_reset``."""
    bare: list[float] = field(default_factory=list)
    """``Batch.step`` with the stage that the backend uses."""
    bare_no_stage: list[float] = field(default_factory=list)
    """``Batch.step`` alone, sensors left a substep behind."""
    resets: int = 0


def measure(task: str, num_envs: int, num_threads: int, amplitude: float, steps: int) -> Timings:
    """Time ``steps`` control steps of one workload.

    Args:
        task: a registered task.
        num_envs: environments in the batch.
        num_threads: physics threads of both contenders; 0 takes all cores.
        amplitude: actions are uniform in [-amplitude, amplitude].
        steps: control steps to time, after a warm-up.
    """
    # The bare batch has the same model in every row, and no delay.
    nominal = {"randomize": False} if "velocity" in task else {}
    overrides = {"num_threads": num_threads, **nominal}
    env = unilab.make(task, num_envs=num_envs, seed=0, overrides=overrides)
    own, stage = env.backend._batch, env.backend._stage
    bare = Batch(env.backend.mj_model, num_envs, num_threads)
    ctrl = torch.from_numpy(bare.bind("ctrl"))
    actions = env.action_manager
    draw = torch.Generator().manual_seed(0)
    timings, results = Timings(), {}
    root = env.reset()

    def step_env() -> None:
        results["env"] = env.step_and_maybe_reset(root)

    def step_bare(with_stage: int) -> Callable[[], None]:
        return lambda: bare.step(nstep=env.cfg.decimation, stage=with_stage)

    contenders = [
        (timings.env, step_env),
        (timings.bare, step_bare(stage)),
        (timings.bare_no_stage, step_bare(NO_STAGE)),
    ]
    for step in range(WARMUP + steps):
        action = torch.rand(num_envs, actions.action_dim, generator=draw)
        root.set("action", action.mul_(2.0).sub_(1.0).mul_(amplitude))
        control = actions.offset + actions.scale * root.get("action")
        before = own.state.copy()
        turn = step % len(contenders)
        for seconds, work in contenders[turn:] + contenders[:turn]:
            bare.state[:] = before
            ctrl.copy_(control)
            start = time.perf_counter()
            work()
            if step >= WARMUP:
                seconds.append(time.perf_counter() - start)
        data, root = results["env"]
        if step >= WARMUP:
            timings.resets += int(data["next", "done"].sum())
    env.close()
    return timings


def report(title: str, timings: Timings) -> None:
    env, bare, no_stage = (
        1e3 * statistics.median(t) for t in (timings.env, timings.bare, timings.bare_no_stage)
    )
    print(f"{title}: {timings.resets / len(timings.env):.1f} resets a step")
    for name, took in (("environment", env), ("bare", bare), ("bare, no stage", no_stage)):
        print(f"  {name:<16}{took:8.2f} ms   / environment {took / env:.3f}")
    print(f"  overhead {env - bare:.2f} ms; target: bare / environment >= {TARGET}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="go2_velocity_flat")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--num-threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    for title, amplitude in (("random actions in [-1, 1]", 1.0), ("standing, action 0", 0.0)):
        timings = measure(args.task, args.num_envs, args.num_threads, amplitude, args.steps)
        report(f"{args.task}, {args.num_envs} environments, {title}", timings)


if __name__ == "__main__":
    main()
