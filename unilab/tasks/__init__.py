"""The packaged tasks: one folder a family, one readable file a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from unilab.envs import ManagerBasedRlEnvCfg, TorchEnv
from unilab.tasks.classic.cartpole import cartpole_swingup
from unilab.tasks.classic.pendulum import pendulum_swingup
from unilab.tasks.gym.ant import ant_v5
from unilab.tasks.gym.half_cheetah import half_cheetah_v5
from unilab.tasks.gym.hopper import hopper_v5
from unilab.tasks.gym.humanoid import humanoid_v5
from unilab.tasks.gym.walker2d import walker2d_v5
from unilab.tasks.velocity.g1 import g1_velocity_flat
from unilab.tasks.velocity.go2 import go2_velocity_flat


class TaskCfg(Protocol):
    """A task's configuration: a frozen dataclass that builds its environment."""

    def make(self, *, num_envs: int, device: str, seed: int | None) -> TorchEnv:
        """The environment."""
        ...


TASKS: dict[str, Callable[[], ManagerBasedRlEnvCfg]] = {
    "cartpole_swingup": cartpole_swingup,
    "g1_velocity_flat": g1_velocity_flat,
    "go2_velocity_flat": go2_velocity_flat,
    "pendulum_swingup": pendulum_swingup,
}
"""Config factories by task name; the first line of a factory's docstring describes the task."""

PORTED_TASKS: dict[str, Callable[[], TaskCfg]] = {
    "gym/Ant-v5": ant_v5,
    "gym/HalfCheetah-v5": half_cheetah_v5,
    "gym/Hopper-v5": hopper_v5,
    "gym/Humanoid-v5": humanoid_v5,
    "gym/Walker2d-v5": walker2d_v5,
}
"""The same for tasks of other suites, which read their models from an installation of the suite."""
