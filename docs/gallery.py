"""Rewrite the pictures of guide/tasks.md.

    python docs/gallery.py tasks.jpg                          or suites.jpg
    python docs/gallery.py go2_getup.jpg RUN 0 0.6 1.2 2      robots of a run at these seconds

Robots of tasks.jpg and suites.jpg hold still for half a second after a reset.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

import unilab
from unilab.cli.runs import RobotEnv, TrainedTask
from unilab.cli.visualize import mj_model, views
from unilab.modules import FlashSACPolicy
from unilab.record.renderer import TiledRenderer
from unilab.tasks import SUITE_TASKS, TASKS
from unilab.trainers import load_play_actor

DOCS = Path(__file__).parent
TILE = 320, 240
Policy = Callable[[TensorDictBase], TensorDictBase]


def pictures(
    env: RobotEnv, policy: Policy, times: Sequence[float], title: str | None = None
) -> Iterator[np.ndarray]:
    """A picture of the robots at each time (s) of their first episode."""
    columns = math.ceil(math.sqrt(env.num_envs))
    width, height = TILE[0] * columns, TILE[1] * math.ceil(env.num_envs / columns)
    renderer = TiledRenderer(mj_model(env), tiles=env.num_envs, width=width, height=height)
    with contextlib.closing(renderer), torch.no_grad():
        data, step = env.reset(), 0
        for time in times:
            while step < round(time / env.step_dt):
                _, data = env.step_and_maybe_reset(policy(data))
                step += 1
            shown = views(env, env.num_envs)
            yield renderer.draw([v if title is None else replace(v, title=title) for v in shown])


def of_task(task: str) -> np.ndarray:
    env = unilab.make(task, seed=1)
    still = env.full_action_spec["action"].zero()
    (picture,) = pictures(env, lambda data: data.set("action", still), (0.5,), task)
    env.close()
    return picture


def of_run(run: str, times: Sequence[float]) -> np.ndarray:
    """Four robots in a block for each time."""
    task = TrainedTask.of(run)
    env = task.make_env(num_envs=4, seed=3)
    policy = FlashSACPolicy(load_play_actor(task.path))
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        blocks = list(pictures(env, policy, times))
    env.close()
    return np.hstack(blocks)


def sheet(tiles: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Pictures of one size in rows, the last one filled up with white."""
    missing = -len(tiles) % columns
    filled = [*tiles, *[np.full_like(tiles[0], 255)] * missing]
    rows = [filled[i : i + columns] for i in range(0, len(filled), columns)]
    return np.vstack([np.hstack(row) for row in rows])


def save(name: str, picture: np.ndarray) -> None:
    Image.fromarray(picture).save(DOCS / name, quality=80, optimize=True)
    print(f"{name}: {(DOCS / name).stat().st_size / 1000:.0f} kB")


def main() -> None:
    name, *run = sys.argv[1:]
    if run:
        save(name, of_run(run[0], [float(time) for time in run[1:]]))
    elif name == "tasks.jpg":
        save(name, sheet([of_task(task) for task in sorted(TASKS)], 5))
    else:
        # A robot once: its versions and its goals look alike.
        robots = {task.rpartition("-")[0]: task for task in sorted(SUITE_TASKS)}
        save("suites.jpg", sheet([of_task(task) for task in robots.values()], 6))


if __name__ == "__main__":
    main()
