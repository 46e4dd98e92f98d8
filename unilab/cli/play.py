"""``unilab play``: one episode of each robot under a run's policy, without exploration."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from rich.table import Table
from tensordict.nn import TensorDictModuleBase
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from unilab.cli.runs import RobotEnv, TrainedTask, check_widths
from unilab.cli.visualize import LiveViewer, mj_model, views
from unilab.envs import ManagerBasedRlEnv, mdp
from unilab.errors import CheckpointError, ConfigError
from unilab.export import OnnxPolicy
from unilab.modules import FlashSACPolicy, actor_semantics
from unilab.record import VideoWriter
from unilab.record.console import Bar
from unilab.trainers import load_env_training_state, load_play_actor

_MAX_FPS = 30
"""Frames per second of a video; it shows every nth control step, in real time."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One robot's first episode."""

    robot: int
    total: float
    """Sum of the rewards."""
    seconds: float
    """Length in simulated time."""
    ended_by: str
    """The termination term that fired; empty if the rollout ended first."""
    terms: dict[str, float]
    """Weighted reward of each term, per second of the episode."""


def play_run(
    run: str | Path,
    *,
    robots: int = 4,
    seed: int = 0,
    seconds: float | None = None,
    backend: str | None = None,
    policy: str | Path | None = None,
    video: str | Path | None = None,
    size: tuple[int, int] = (1280, 720),
    viewer: bool = False,
) -> list[Episode]:
    """Play one episode of each robot and print its rewards.

    A reference motion is played from its first frame.

    Args:
        run: the run's folder, or one of its checkpoints.
        seconds: length of an episode; the run's own by default.
        backend: physics, as ``env.backend``; the run's own by default.
        policy: an exported file to play in place of the checkpoint.
        video: an mp4 file to write, of ``size`` pixels.
        viewer: open MuJoCo's viewer on the first robot and play until it is closed.
    """
    task = TrainedTask.of(run)
    chosen, widths = _trained(task) if policy is None else _exported(policy, task)
    given = {"episode_length_s": seconds, "backend": backend}
    overrides = {name: value for name, value in given.items() if value is not None}
    env = task.make_env(num_envs=robots, seed=seed, overrides=overrides)
    played = str(policy if policy is not None else task.path)
    with contextlib.ExitStack() as stack:
        stack.callback(env.close)
        check_widths(env, widths, played)
        # At the curriculum's stage of the run; beside a file the run may have no checkpoint.
        with contextlib.suppress(*[CheckpointError] if policy is not None else []):
            env.import_training_state(dict(load_env_training_state(task.path)))
        if isinstance(env, ManagerBasedRlEnv):
            for term in env.command_manager.terms.values():
                if isinstance(term, mdp.MotionCommand):
                    term.sampling_mode = "start"
        shows: list[Callable[[], bool]] = []
        if video is not None:
            shows.append(stack.enter_context(_filmed(env, Path(video), size)))
        if viewer:
            window = LiveViewer(env)
            stack.callback(window.close)
            shows.append(window.show)
        episodes = play_episodes(
            env, chosen, on_step=lambda: all(show() for show in shows), endless=viewer
        )
    print(_report(task.name, played, episodes), end="")
    if video is not None:
        print(f"Video: {video}")
    return episodes


def play_episodes(
    env: RobotEnv,
    policy: TensorDictModuleBase,
    *,
    on_step: Callable[[], bool] | None = None,
    endless: bool = False,
) -> list[Episode]:
    """Play until every robot has finished its first episode, or for one episode's length.

    A robot that ends early restarts.

    Args:
        policy: follows TorchRL's exploration type.
        on_step: called after every control step, before resets; False stops the rollout.
        endless: play until ``on_step`` says to stop.
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


def _trained(task: TrainedTask) -> tuple[FlashSACPolicy, tuple[int, int]]:
    """The run's policy and its widths."""
    actor = load_play_actor(task.path)
    semantics = actor_semantics(actor)
    return FlashSACPolicy(actor), (semantics["obs_dim"], semantics["action_dim"])


def _exported(path: str | Path, task: TrainedTask) -> tuple[OnnxPolicy, tuple[int, int]]:
    """The policy of a file and its widths."""
    policy = OnnxPolicy(path)
    made_for = policy.metadata.get("task", task.name)
    if made_for != task.name:
        raise ConfigError(
            f"{path} was exported from a run of {made_for}, but {task.path} is a run of "
            f"{task.name}: play it with a run of the same task"
        )
    return policy, (policy.obs_dim, policy.action_dim)


@contextlib.contextmanager
def _filmed(env: RobotEnv, path: Path, size: tuple[int, int]) -> Iterator[Callable[[], bool]]:
    """Yield a function that films a control step; the file is complete when the block ends."""
    from unilab.record.renderer import TiledRenderer

    every = max(1, round(1.0 / (_MAX_FPS * env.step_dt)))
    width, height = size
    steps = itertools.count()
    with (
        contextlib.closing(
            TiledRenderer(mj_model(env), tiles=env.num_envs, width=width, height=height)
        ) as renderer,
        VideoWriter(path, width=width, height=height, fps=1.0 / (every * env.step_dt)) as writer,
        Bar(total=env.max_episode_length, desc="filming", leave=False, disable=None) as bar,
    ):

        def film() -> bool:
            if next(steps) % every == 0:
                writer.add(renderer.draw(views(env, env.num_envs)))
            bar.update()
            return True

        yield film


def _report(task: str, played: str, episodes: Sequence[Episode]) -> str:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    table = Table()
    for name in ("robot", "return", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("ended by")
    for e in episodes:
        table.add_row(str(e.robot), f"{e.total:.3f}", f"{e.seconds:.2f}", e.ended_by or "-")
    table.add_section()
    mean = fmean(e.total for e in episodes), fmean(e.seconds for e in episodes)
    table.add_row("mean", f"{mean[0]:.3f}", f"{mean[1]:.2f}", "")
    terms = Table()
    terms.add_column("reward term")
    terms.add_column("mean, 1/s", justify="right")
    for name in episodes[0].terms:
        terms.add_row(name, f"{fmean(e.terms[name] for e in episodes):+.4f}")
    with console.capture() as report:  # printed by rich, a closed pipe would be exit code 1
        console.print(f"{task}, {played}: one episode each, no exploration")
        console.print(table)
        console.print(terms)
    return report.get()
