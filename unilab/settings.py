"""General settings of a training run, which the settings of an algorithm are composed of."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from unilab.checks import Count, Positive
from unilab.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    import torch

    from unilab.collectors import Placement


@dataclass(frozen=True, kw_only=True)
class OffPolicyCfg:
    """Data of an off-policy algorithm: how much is collected, kept and used."""

    num_envs: Count = 256
    """Environments in parallel, of each rank. More: faster and less correlated data, fewer updates
    for each transition."""
    total_frames: Count = 5_000_000
    """Length of the run in environment steps, all environments of all ranks together."""
    batch_size: Count = 512
    """Transitions of one update. Larger: steadier batch statistics, slower updates."""
    updates_per_step: Count = 1
    """Updates for each step of all environments. The first thing to raise when physics is slow."""
    replay_capacity: Count = 1_000_000
    """Transitions in the replay buffer; the oldest are overwritten."""
    learning_starts: Count = 20_000
    """Transitions in the buffer before the first update."""
    random_warmup: bool = True
    """Uniform random actions until ``learning_starts``, instead of the initial policy's."""
    gamma: float = 0.97
    """Discount of one control step; the horizon is ``1 / (1 - gamma)`` steps, 33 for 0.97."""
    n_step: Count = 1
    """Steps of reward before the bootstrap. More: faster spread of rewards, staler data."""
    symmetry: bool = False
    """Mirror half of each batch from left to right; for tasks that declare their mirror."""

    def __post_init__(self) -> None:
        if self.learning_starts < self.batch_size:
            raise ConfigError(
                f"learning_starts must be at least batch_size={self.batch_size}, got "
                f"{self.learning_starts}: an update needs a whole batch"
            )
        if self.total_frames <= self.learning_starts:
            raise ConfigError(
                f"total_frames must be more than learning_starts={self.learning_starts}, got "
                f"{self.total_frames}: the run would end before its first update; a short trial "
                "needs a smaller learning_starts, too"
            )
        needed = max(self.learning_starts, self.n_step * self.num_envs)
        if self.replay_capacity < needed:
            raise ConfigError(
                f"replay_capacity must be at least {needed} (learning_starts, n_step * num_envs), "
                f"got {self.replay_capacity}: the buffer would never hold what an update needs"
            )

    def planned_updates(self, ranks: int = 1) -> int:
        """Updates of the whole run, which ``ranks`` take together."""
        steps = (self.total_frames // ranks - self.learning_starts) // self.num_envs
        return max(1, steps * self.updates_per_step)

    def frames_left(self, done: int, ranks: int = 1) -> int:
        """Environment steps for each of ``ranks`` to take after ``done`` of all.

        In whole steps of a rank's environments.
        """
        if self.total_frames <= ranks * self.learning_starts:
            raise ConfigError(
                f"total_frames must be more than {ranks} * learning_starts={self.learning_starts}, "
                f"got {self.total_frames}: a run of {ranks} ranks would end before its first update"
            )
        return _frames_left(done, self.total_frames, self.num_envs, ranks)

    def random_frames_left(self, done: int, ranks: int = 1) -> int:
        """Environment steps for each rank to take after ``done`` of all with random actions.

        A resumed run refills its buffer with its policy.
        """
        left = max(0, self.learning_starts - done // ranks) if self.random_warmup else 0
        return _whole(left, self.num_envs)


@dataclass(frozen=True, kw_only=True)
class OnPolicyCfg:
    """Data of an on-policy algorithm: how much is collected with one policy, and how it is used.

    The defaults suit two CPU cores, where stepping 256 robots takes two thirds of the time and the
    updates one; on a GPU take 4096.
    """

    num_envs: Count = 256
    """Environments in parallel, of each rank. More: steadier gradients, fewer updates for each
    transition."""
    num_steps: Count = 24
    """Control steps of a rollout, in each environment. Longer: less of a return is estimated by the
    value network, more frames for each update."""
    total_frames: Count = 10_000_000
    """Length of the run in environment steps, all environments of all ranks together."""
    num_epochs: Count = 5
    """Passes over a rollout."""
    num_minibatches: Count = 4
    """Updates of a pass, each on its own part of the rollout."""
    gamma: float = 0.99
    """Discount of one control step; the horizon is ``1 / (1 - gamma)`` steps, 100 for 0.99."""
    gae_lambda: float = 0.95
    """Weight of rewards against the value network in advantages. Larger: less bias, more noise."""
    symmetry: bool = False
    """Learn from each rollout and its mirror image from left to right, in twice as large
    minibatches; for tasks that declare their mirror."""

    def __post_init__(self) -> None:
        if self.rollout_frames < 2:
            raise ConfigError(
                "num_envs * num_steps must be at least 2, got 1: advantages are normalised over a "
                "rollout"
            )
        if self.num_minibatches > self.rollout_frames:
            raise ConfigError(
                f"num_minibatches must be at most {self.rollout_frames}, the transitions of a "
                f"rollout, got {self.num_minibatches}: increase num_envs or num_steps"
            )

    def frames_left(self, done: int, ranks: int = 1) -> int:
        """Environment steps for each of ``ranks`` to take after ``done`` of all.

        In whole rollouts.
        """
        return _frames_left(done, self.total_frames, self.rollout_frames, ranks)

    @property
    def rollout_frames(self) -> int:
        """Environment steps of a rollout, all environments together."""
        return self.num_envs * self.num_steps


def _frames_left(done: int, total: int, unit: int, ranks: int) -> int:
    if done >= total:
        raise ConfigError(
            f"algo.total_frames must be more than the {done} steps that the run has taken, got "
            f"{total}: continue it with algo.total_frames={2 * done}"
        )
    return _whole(-(-(total - done) // ranks), unit)


def _whole(frames: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-frames // unit) * unit


_THREAD_SIZE = 2**23
"""Size of an update for each thread: below it, threads wait for each other longer than they
compute. See benchmarks/bench_busy.py."""


class Threads(NamedTuple):
    """Numbers of CPU threads."""

    learner: int
    physics: int


@dataclass(frozen=True, kw_only=True)
class TrainingCfg:
    """How a run is carried out and what it writes."""

    seed: int = 0
    """Seed of environments, networks, exploration and sampling."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the learner; auto: cuda if there is one, else cpu."""
    devices: tuple[str, ...] | None = None
    """Devices of a data-parallel training, e.g. ``[cuda:0,cuda:1]`` or ``[cpu,cpu]``: each is a
    rank, a process with its own environments. null: one process, on ``device``."""
    collector_tensor_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of collected tensors, in the environments and in the ring; auto: the learner's if it
    is CUDA, else cpu."""
    collector: Literal["auto", "sync", "pipelined"] = "auto"
    """pipelined: environments step in a second process while the learner updates; sync: in turns;
    auto: pipelined if the learner is on an accelerator."""
    num_threads: Count | None = None
    """CPU threads of a rank's learner; null: by the size of networks and batch, at most as many as
    OMP_NUM_THREADS and as it has cores, which the ranks share; 1 if pipelined on CUDA."""
    run_dir: str | None = None
    """Folder of this run; null: ``<log_root>/<task>/<timestamp>_seed<seed>``."""
    log_root: str = "runs"
    """Folder of all runs."""
    resume: str | None = None
    """Folder of a run to continue from its last checkpoint; with ``collector=sync`` and
    ``save_replay``, bit for bit."""
    max_minutes: Positive | None = None
    """Stop after this wall time and evaluate. The first update compiles, which may take a minute.
    null: run until ``total_frames``."""
    log_interval_s: float = 5.0
    """Seconds between two rows of metrics."""
    trace: bool = False
    """Write ``trace.json``, a Chrome trace of the last steps, when the run ends."""
    eval_interval: Count | None = 500_000
    """Environment steps between two evaluations; null: none, not even at the end."""
    eval_num_envs: Count = 32
    """Evaluation episodes, run in parallel, one in each environment."""
    checkpoint_interval: Count = 500_000
    """Environment steps between two checkpoints; there is always one at the end."""
    keep_checkpoints: Count = 3
    """Checkpoints to keep, the newest."""
    save_replay: bool = False
    """Store the replay buffer in checkpoints (large). Otherwise a resumed run refills it first."""

    def __post_init__(self) -> None:
        if self.resume == "":  # an unset variable of the shell
            raise ConfigError("training.resume must be the folder of a run, got ''")
        if self.devices is not None and self.device != "auto":
            raise ConfigError(
                f"training.device must be auto with training.devices, got {self.device}: leave one "
                "of them out"
            )
        if self.collector_tensor_device == "cuda":
            self.resolve_placement()

    @property
    def rank(self) -> int:
        """Place of this process in ``devices``, as ``torchrun`` and the launcher set it."""
        return int(os.environ.get("RANK") or 0) if len(self.devices or ()) > 1 else 0

    @property
    def rank_seed(self) -> int:
        """Seed of this rank; rank 0's is ``seed``, so that sweeps over seeds share none."""
        return self.seed + 10_000 * self.rank

    def resolve_device(self) -> torch.device:
        """The learner's device, in this rank."""
        import torch

        if self.devices:
            return torch.device(self.devices[self.rank])
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise PlacementError(
                "training.device=cuda, but torch sees no CUDA device here: use training.device=cpu "
                "or auto"
            )
        cuda = self.device == "cuda" or (self.device == "auto" and available)
        return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    def resolve_placement(self) -> Placement:
        """Devices of environments, ring and learner."""
        from unilab.collectors import resolve_collector_tensor_placement

        return resolve_collector_tensor_placement(
            self.collector_tensor_device, self.resolve_device()
        )

    def resolve_collector(self, device: torch.device) -> Literal["sync", "pipelined"]:
        """Whether environments take turns with a learner on ``device``, or overlap."""
        if self.collector == "auto":
            return "sync" if device.type == "cpu" else "pipelined"
        return self.collector

    def resolve_threads(self, device: torch.device, update_size: int = _THREAD_SIZE) -> Threads:
        """CPU threads for a learner on ``device``; ranks share the cores.

        Physics takes all cores, also when it overlaps with a learner on the CPU, and all but the
        learner's beside a learner on an accelerator.

        Args:
            update_size: rows of a batch times weights of the critic's hidden layers.
        """
        affinity = getattr(os, "sched_getaffinity", None)  # in a container fewer than there are
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        cores = max(1, cores // len(self.devices or (self.device,)))
        if device.type != "cpu" and self.resolve_collector(device) == "pipelined":
            learner = self.num_threads or 1
            return Threads(learner, max(1, cores - learner))
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        limit = int(wanted) if wanted.isdecimal() else cores
        useful = update_size // _THREAD_SIZE
        return Threads(self.num_threads or max(1, min(cores, limit, useful)), cores)
