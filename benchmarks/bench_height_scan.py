"""Shares of the height scan and of ray casts in a step of the rough Go2 task.

    python benchmarks/bench_height_scan.py [--num-envs 256] [--steps 100] [--clock wall]

The floor is MuJoCo's: the same points by ``mj_ray``, one after the other. Ray casts are
``mdp.ray_distances``: the same grid, and a lidar of 4 channels, 30 to 60 degrees down, with 36 rays
each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import mujoco
import numpy as np
import torch
from timing import CLOCKS, interleaved

from unilab.envs import ManagerBasedRlEnv, ObservationTermCfg, mdp
from unilab.tasks.velocity.go2 import go2_velocity_rough

TARGET = 0.25
LIDAR = mdp.LidarPatternCfg(channels=4, vertical_fov_range=(-60.0, -30.0), horizontal_res=10.0)
POINTS = 187


def cast_rays(env: ManagerBasedRlEnv, data: mujoco.MjData, rays: int) -> None:
    """Cast vertical rays at the ground around the first robot."""
    model = env.backend.mj_model
    ground, geom = np.array([1, 0, 0, 0, 0, 0], np.uint8), np.zeros(1, np.int32)
    x, y = env.scene.terrain.env_origins[0, :2].tolist()
    for i in range(rays):
        start = np.array([x + 0.1 * (i % 17) - 0.8, y + 0.1 * (i // 17) - 0.5, 20.0])
        mujoco.mj_ray(model, data, start, np.array([0.0, 0.0, -1.0]), ground, 1, -1, geom, None)


def ray_term(env: ManagerBasedRlEnv, pattern: object) -> Callable[[], None]:
    """A call of ``mdp.ray_distances`` from 20 cm above the root."""
    params = {"pattern": pattern, "max_distance": 10.0, "offset": (0.0, 0.0, 0.2)}
    term = mdp.ray_distances(ObservationTermCfg(func=mdp.ray_distances, params=params), env)

    @torch.inference_mode()
    def call() -> None:
        term(env, **params)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--num-threads", type=int, default=0, help="physics; 0: all cores")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    cfg = replace(go2_velocity_rough(), num_threads=args.num_threads)
    env = ManagerBasedRlEnv(cfg, num_envs=args.num_envs, seed=0)
    data = mujoco.MjData(env.backend.mj_model)
    mujoco.mj_forward(env.backend.mj_model, data)
    root = env.reset()
    draw = torch.Generator().manual_seed(0)

    def step() -> None:
        nonlocal root
        action = torch.rand(args.num_envs, 12, generator=draw).sub_(0.5).mul_(0.2)
        _, root = env.step_and_maybe_reset(root.set("action", action))

    @torch.inference_mode()
    def scan() -> None:
        mdp.height_scan(env)

    contenders = {
        "step": step,
        "scan": scan,
        "grid": ray_term(env, mdp.GridPatternCfg(size=(1.6, 1.0), resolution=0.1)),
        "lidar": ray_term(env, LIDAR),
        "rays": lambda: cast_rays(env, data, POINTS),
    }
    interleaved(contenders, 5)
    took = interleaved(contenders, args.steps, args.clock)
    share, rays = took["scan"] / took["step"], args.num_envs * took["rays"]
    print(f"{args.num_envs} robots, {POINTS} points each, {1e3 * took['step']:.2f} ms a step")
    print(f"  scan {1e3 * took['scan']:.2f} ms, {share:.1%} of a step; target {TARGET:.0%}")
    for name, rays_each in (("grid", POINTS), ("lidar", 144)):
        part = took[name] / took["step"]
        print(f"  {rays_each} rays of a {name} {1e3 * took[name]:.1f} ms, {part:.0%} of a step")
    print(f"  the same by mj_ray, on one thread: {1e3 * rays:.0f} ms")


if __name__ == "__main__":
    main()
