"""The packaged tasks: one folder a family, one readable file a task."""

from __future__ import annotations

from collections.abc import Callable

from unilab.envs import ManagerBasedRlEnvCfg
from unilab.tasks.classic.cartpole import cartpole_swingup
from unilab.tasks.classic.pendulum import pendulum_swingup
from unilab.tasks.velocity.g1 import g1_velocity_flat
from unilab.tasks.velocity.go2 import go2_velocity_flat

TASKS: dict[str, Callable[[], ManagerBasedRlEnvCfg]] = {
    "cartpole_swingup": cartpole_swingup,
    "g1_velocity_flat": g1_velocity_flat,
    "go2_velocity_flat": go2_velocity_flat,
    "pendulum_swingup": pendulum_swingup,
}
"""Config factories by task name; the first line of a factory's docstring describes the task."""
