"""The packaged tasks: one folder a family, one readable file a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from unilab.envs import ManagerBasedRlEnvCfg, TorchEnv
from unilab.tasks.classic.cartpole_swingup import cartpole_swingup
from unilab.tasks.classic.pendulum_swingup import pendulum_swingup
from unilab.tasks.suites.dmc import cartpole, cheetah, dog, humanoid, pendulum, quadruped, walker
from unilab.tasks.suites.gym.ant_v5 import ant_v5
from unilab.tasks.suites.gym.half_cheetah_v5 import half_cheetah_v5
from unilab.tasks.suites.gym.hopper_v5 import hopper_v5
from unilab.tasks.suites.gym.humanoid_v5 import humanoid_v5
from unilab.tasks.suites.gym.walker2d_v5 import walker2d_v5
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

SUITE_TASKS: dict[str, Callable[[], TaskCfg]] = {
    "dmc/cartpole-balance": cartpole.balance,
    "dmc/cartpole-swingup": cartpole.swingup,
    "dmc/cheetah-run": cheetah.run,
    "dmc/dog-run": dog.run,
    "dmc/dog-stand": dog.stand,
    "dmc/dog-trot": dog.trot,
    "dmc/dog-walk": dog.walk,
    "dmc/humanoid-run": humanoid.run,
    "dmc/humanoid-stand": humanoid.stand,
    "dmc/humanoid-walk": humanoid.walk,
    "dmc/pendulum-swingup": pendulum.swingup,
    "dmc/quadruped-run": quadruped.run,
    "dmc/quadruped-walk": quadruped.walk,
    "dmc/walker-run": walker.run,
    "dmc/walker-stand": walker.stand,
    "dmc/walker-walk": walker.walk,
    "gym/Ant-v5": ant_v5,
    "gym/HalfCheetah-v5": half_cheetah_v5,
    "gym/Hopper-v5": hopper_v5,
    "gym/Humanoid-v5": humanoid_v5,
    "gym/Walker2d-v5": walker2d_v5,
}
"""The same for tasks of other suites, which read their models from an installation of the suite."""
