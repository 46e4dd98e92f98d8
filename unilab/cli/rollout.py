"""One episode of each robot under a policy, without exploration."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from unilab.cli.runs import RobotEnv

__all__ = ["Episode", "play_episodes"]


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What one robot's first episode came to."""

    robot: int
    total: float
    """Sum of the rewards."""
    seconds: float
    """Length in simulated time."""
    ended_by: str
    """The termination term that fired; empty if the rollout ended first."""
    terms: dict[str, float]
    """Weighted reward of each term, by second of the episode."""


def play_episodes(
    env: RobotEnv,
    policy: TensorDictModuleBase,
    *,
    on_step: Callable[[], bool] | None = None,
    endless: bool = False,
) -> list[Episode]:
    """Plays until every robot has finished its first episode, for one episode's length at most.

    Args:
        env: the robots; those that finish early start again meanwhile.
        policy: follows TorchRL's exploration type.
        on_step: called after every control step, before resets; False stops the rollout.
        endless: play until ``on_step`` says to stop.

    Returns:
        Each robot's first episode, by robot; one that still runs counts as it stands.
    """
    finished: dict[int, Episode] = {}
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        data = env.reset()
        for step in itertools.count(1):
            data = env.step(policy(data))
            stopped = on_step is not None and not on_step()
            over = stopped or (step >= env.max_episode_length and not endless)
            ended = data["next", "done"].reshape(-1) | over
            for robot in ended.nonzero().flatten().tolist():
                finished.setdefault(robot, _episode(env, robot))
            if over or (len(finished) == env.num_envs and not endless):
                break
            data = env.maybe_reset(step_mdp(data))
    return [finished[robot] for robot in range(env.num_envs)]


def _episode(env: RobotEnv, robot: int) -> Episode:
    sums, causes = env.episode_so_far(robot)
    seconds = int(env.episode_length[robot]) * env.step_dt
    return Episode(
        robot=robot,
        total=sum(sums.values()),
        seconds=seconds,
        ended_by=", ".join(causes),
        terms={name: value / seconds for name, value in sums.items()},
    )
