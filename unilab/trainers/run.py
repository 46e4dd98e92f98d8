"""A training run on disk: its folder, metrics and checkpoints, opened in one call."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn
from torchrl.checkpoint import GlobalRNGState
from torchrl.data import ReplayBuffer

from unilab.errors import CheckpointError, ConfigError
from unilab.modules import actor_semantics
from unilab.output import say
from unilab.record import MetricLogger, Progress, RunFolder, closing_summary
from unilab.record.metric_schema import as_scalars
from unilab.trainers.checkpoint import (
    Checkpointer,
    Counters,
    EnvTrainingState,
    ReplayContents,
    Stateful,
)
from unilab.trainers.episodes import Episodes
from unilab.trainers.ranks import Ranks


@dataclass(kw_only=True)
class Run:
    """Folder, metrics, checkpoints, console and counters of a run; each that writes is optional."""

    folder: RunFolder | None = None
    logger: MetricLogger | None = None
    checkpointer: Checkpointer | None = None
    episodes: Episodes | None = None
    progress: Progress | None = None
    counters: Counters = field(default_factory=Counters)
    total_frames: int = 0
    """Environment steps that were asked for."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The latest value of every metric."""
    evaluated_at: int | None = None
    """Environment steps before the evaluation whose metrics these are."""
    ranks: Ranks = field(default_factory=Ranks)
    _resumed: Collection[Stateful] = ()

    @classmethod
    def open(
        cls,
        cfg: Any,
        *,
        identity: Mapping[str, Any],
        env: Any,
        eval_env: Any,
        buffer: ReplayBuffer | None = None,
        **components: Stateful,
    ) -> Run:
        """Makes the folder of a new run, or continues the run of ``training.resume``.

        An error leaves an existing run unchanged. Of several :class:`~unilab.trainers.Ranks` rank 0
        alone writes. The others load the same checkpoint, but for its episodes and random
        generators, so that theirs differ.

        Args:
            cfg: the run's settings, a dataclass with ``task``, ``algo`` and ``training``.
            identity: JSON values that must agree between checkpoint and run.
            env: environment to train in, whose count of control steps checkpoints save.
            eval_env: environment to evaluate in; both are told where to write.
            buffer: saved in checkpoints with ``training.save_replay``; None if there is none.
            **components: further objects that checkpoints save, by name (learner, normalizers).
        """
        training, total = cfg.training, cfg.algo.total_frames
        ranks = Ranks()
        if len(training.devices or "1") != ranks.size:
            raise ConfigError(
                f"training.devices must have one for each of {ranks.size} ranks, got "
                f"{training.devices}: start the training with unilab.trainers.launch, as "
                "hydra_main does"
            )
        if training.resume is not None:
            folder = RunFolder.open(training.resume)
        else:
            folder = ranks.from_first(
                lambda: RunFolder.create(
                    cfg.task, training.seed, log_root=training.log_root, path=training.run_dir
                )
            )
        episodes = Episodes(env)
        state = {**components, "env": EnvTrainingState(env)}
        if ranks.is_first:
            state["episodes"] = episodes
        if buffer is not None and training.save_replay:
            state["replay"] = ReplayContents(buffer)
        checkpointer = Checkpointer(
            folder.checkpoints, state, identity=identity, keep=training.keep_checkpoints
        )
        generators = GlobalRNGState()
        own = generators.state_dict()
        counters = checkpointer.load() if training.resume else Counters()
        cfg.algo.frames_left(counters.frames, ranks.size)  # raises before anything is written
        resumed = state.values() if training.resume else ()
        if not ranks.is_first:
            generators.load_state_dict(own)
            env.set_output_dir(str(folder.path / f"rank{ranks.rank}"))
            return cls(counters=counters, episodes=episodes, ranks=ranks, _resumed=resumed)
        logger = MetricLogger(folder, until_frames=counters.frames)
        devices = training.resolve_placement().device_resolution()
        folder.write_config(asdict(cfg), **identity, device_resolution=devices)
        env.set_output_dir(str(folder.path))
        eval_env.set_output_dir(str(folder.path / "evaluation"))
        say(f"Run folder   {folder.path}")
        if training.resume is not None and ranks.size > 1:
            say("Episodes     new in the other ranks: a checkpoint holds those of rank 0")
        if training.resume is not None and buffer is not None:
            missing = cfg.algo.learning_starts - len(buffer)
            if missing > 0:
                say(f"Replay       empty (no save_replay): no updates for {missing:,} steps")
        return cls(
            folder=folder,
            logger=logger,
            checkpointer=checkpointer,
            episodes=episodes,
            progress=Progress(total, initial=counters.frames, max_minutes=training.max_minutes),
            counters=counters,
            total_frames=total,
            ranks=ranks,
            _resumed=resumed,
        )

    def attach(self, collector: Any, returns: Stateful) -> None:
        """Save the episodes in a collector and their ``returns`` so far with each checkpoint.

        In a resumed run the checkpoint's episodes continue. If they cannot, new ones begin, and a
        line says why.
        """
        if self.episodes is None:
            return
        problem = self.episodes.attach(collector, returns)
        if problem and self._resumed:
            say(f"New episodes: {problem}")
            for component in self._resumed:
                if hasattr(component, "begin_episodes"):
                    component.begin_episodes()

    def advance(self, frames: int) -> None:
        """Counts environment steps, as many in each rank."""
        frames *= self.ranks.size
        self.counters.frames += frames
        if self.progress is not None:
            self.progress.advance(frames)

    def log(self, values: Mapping[str, float]) -> None:
        """Writes one row of metrics and shows it; a file that cannot be written is a warning."""
        self._require_folder()
        values = as_scalars(values)
        if self.logger is not None:
            with warning_if_unwritable():
                self.logger.log(self.counters.frames, self.counters.minutes, values)
        self.metrics |= {tag: value for tag, value in values.items() if not math.isnan(value)}
        if any(tag.startswith("Eval/") for tag in values):
            self.evaluated_at = self.counters.frames
        if self.progress is not None:
            self.progress.show(self.metrics, self.evaluated_at)

    def save(self) -> None:
        """Writes a checkpoint."""
        self._require_folder()
        if self.checkpointer is not None:
            self.checkpointer.save(self.counters)

    def _require_folder(self) -> None:
        if self.folder is not None and not self.folder.path.is_dir():
            raise CheckpointError(
                f"run folder {self.folder.path} was removed or moved during training, which "
                "cannot save anything more: continue from the last checkpoint, if you still have it"
            )

    def close(self) -> None:
        """Closes the files and unlocks the folder."""
        if self.progress is not None:
            self.progress.close()
        if self.logger is not None:
            self.logger.close()

    def summary(self) -> str:
        """How far the run came and what to type next; empty if it wrote nothing."""
        if self.folder is None:
            return ""
        return closing_summary(
            self.folder,
            frames=self.counters.frames,
            total_frames=self.total_frames,
            minutes=self.counters.minutes,
            metrics=self.metrics,
            evaluated_at=self.evaluated_at,
        )


@contextmanager
def warning_if_unwritable() -> Iterator[None]:
    """Turn the error of a file that cannot be written into a warning: training can continue."""
    try:
        yield
    except CheckpointError as error:
        if not isinstance(error.__cause__, OSError | RuntimeError):
            raise
        warnings.warn(f"{error}. Training continues.", stacklevel=3)


def run_identity(
    task: str, obs_groups: Mapping[str, int], critic_obs: str, actor: nn.Module
) -> dict[str, Any]:
    """JSON values of ``run_config.json`` that a checkpoint must agree with."""
    semantics = actor_semantics(actor)
    if semantics["builder"] is None:
        warnings.warn(
            f"the checkpoints of this run can be resumed but not played, because nothing records "
            f"how its {type(actor).__name__} was built: make the actor with build_actor("
            "FlashSACActorSpec(...), ...) of unilab.modules",
            RuntimeWarning,
            stacklevel=2,
        )
    return {
        "checkpoint_version": 1,
        "task": task,
        "obs_groups": dict(obs_groups),
        "critic_obs": critic_obs,
        "actor_semantics": semantics,
    }
