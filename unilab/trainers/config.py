"""The configuration of a training run: frozen dataclasses that YAML composes and overrides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torchrl.data import TensorSpec

from unilab.collectors.placement import (
    Placement,
    refuse_removed_key,
    resolve_collector_tensor_placement,
)
from unilab.errors import ConfigError, PlacementError
from unilab.modules import FlashSACActorSpec, action_range
from unilab.modules.actor_spec import BUILT_IN
from unilab.record import RunFolder
from unilab.trainers.algorithms import check_algorithm
from unilab.trainers.config_dict import from_dict, to_dict

__all__ = ["AlgoCfg", "AlgoParamsCfg", "TrainCfg", "TrainingCfg"]


@dataclass(frozen=True, kw_only=True)
class AlgoParamsCfg:
    """Networks, loss and optimizers of FlashSAC; the defaults are the paper's."""

    actor_hidden_dim: int = 128
    """Width of the built-in actor's blocks; one of your own has what its ``kwargs`` say."""
    actor_num_blocks: int = 2
    """Residual blocks of the built-in actor."""
    critic_hidden_dim: int = 256
    """Width of the critics' blocks."""
    critic_num_blocks: int = 2
    """Residual blocks of each critic."""
    num_bins: int = 101
    """Atoms of the value distribution."""
    v_min: float = -5.0
    """Lowest value of the support, in normalised rewards."""
    v_max: float = 5.0
    """Highest value of the support, in normalised rewards."""
    lr: float = 3e-4
    """Peak learning rate of the three Adam optimizers."""
    lr_end: float = 1.5e-4
    """Learning rate at the end of the cosine."""
    lr_warmup_steps: int = 0
    """Steps of linear warm-up from 0 to ``lr``."""
    lr_decay_steps: int | None = None
    """Steps over which the rate falls to ``lr_end``; null: all updates of the run."""
    tau: float = 0.01
    """Rate at which the target critic follows the critic."""
    alpha_init: float = 0.01
    """Initial entropy temperature."""
    target_entropy_sigma: float = 0.15
    """Standard deviation of the Gaussian whose entropy is the target."""
    bc_alpha: float = 0.0
    """Weight of the behaviour-cloning term of the actor's loss."""
    actor_update_period: int = 2
    """Critic updates per actor and temperature update."""
    compile: bool = True
    """Compile the update with ``torch.compile``; falls back to eager where that is not possible."""
    amp_dtype: Literal["bfloat16", "auto"] | None = None
    """Of the matrix products; auto: bfloat16 on a CPU with units for it; null: float32."""
    actor_config: FlashSACActorSpec | None = None
    """An actor of your own, ``{builder: "pkg.module:callable", kwargs: {...}}``; null: built-in."""
    actor_normalize_parameters: bool = True
    """Bring the built-in actor back to its norms after each step."""
    use_whole_cycle_cuda_graph: bool | None = None
    """Capture whole updates as CUDA graphs; null: on NVIDIA. Not with an actor of your own."""

    def actor_spec(self, action_spec: TensorSpec) -> FlashSACActorSpec:
        """The actor to build: that of ``actor_config``, or the built-in one.

        Args:
            action_spec: the environment's actions, whose range the built-in actor fills.
        """
        if self.actor_config is not None:
            return self.actor_config
        return FlashSACActorSpec(
            builder=BUILT_IN,
            kwargs={
                "hidden_dim": self.actor_hidden_dim,
                "num_blocks": self.actor_num_blocks,
                **action_range(action_spec),
            },
        )

    def check(self, path: str) -> None:
        """Raises ConfigError for values that cannot train."""
        for name in ("actor_hidden_dim", "actor_num_blocks", "critic_hidden_dim"):
            _at_least(f"{path}.{name}", getattr(self, name), 1)
        _at_least(f"{path}.critic_num_blocks", self.critic_num_blocks, 1)
        _at_least(f"{path}.num_bins", self.num_bins, 2)
        _at_least(f"{path}.actor_update_period", self.actor_update_period, 1)
        _at_least(f"{path}.lr_warmup_steps", self.lr_warmup_steps, 0)
        if self.lr_decay_steps is not None:
            _at_least(f"{path}.lr_decay_steps", self.lr_decay_steps, 1)
        if not self.v_min < self.v_max:
            raise ConfigError(
                f"{path}.v_min must be below {path}.v_max: {self.v_min}, {self.v_max}"
            )
        for name in ("lr_end", "bc_alpha"):
            _at_least(f"{path}.{name}", getattr(self, name), 0)
        for name in ("lr", "tau", "alpha_init", "target_entropy_sigma"):
            _positive(f"{path}.{name}", getattr(self, name))
        _at_most(f"{path}.tau", self.tau, 1.0)


@dataclass(frozen=True, kw_only=True)
class AlgoCfg:
    """What is trained, on how much data."""

    name: str = "flashsac"
    """The algorithm; others are added by ``register_algorithm``."""
    num_envs: int = 256
    """Environments stepped in parallel."""
    total_frames: int = 5_000_000
    """Environment steps of the whole run, all environments together."""
    batch_size: int = 512
    """Transitions of one update."""
    updates_per_step: int = 1
    """Updates for each step of all the environments."""
    replay_capacity: int = 1_000_000
    """Transitions that the replay buffer holds."""
    learning_starts: int = 20_000
    """Transitions in the buffer before the first update."""
    random_warmup: bool = True
    """Uniform random actions until ``learning_starts``, instead of the initial policy's."""
    gamma: float = 0.97
    """Discount of one control step."""
    n_step: int = 1
    """Steps of the return that is bootstrapped."""
    algo_params: AlgoParamsCfg = field(default_factory=AlgoParamsCfg)
    """Networks, loss and optimizers."""

    def check(self, path: str) -> None:
        """Raises ConfigError for values that cannot train."""
        check_algorithm(self.name, f"{path}.name")
        for name in ("num_envs", "total_frames", "batch_size", "updates_per_step", "n_step"):
            _at_least(f"{path}.{name}", getattr(self, name), 1)
        if self.learning_starts < self.batch_size:
            raise ConfigError(
                f"{path}.learning_starts={self.learning_starts} is below "
                f"{path}.batch_size={self.batch_size}: an update needs a whole batch"
            )
        if self.n_step * self.num_envs > self.replay_capacity:
            raise ConfigError(
                f"{path}.n_step={self.n_step} steps of {path}.num_envs={self.num_envs} are more "
                f"than {path}.replay_capacity={self.replay_capacity} transitions: look fewer steps "
                "ahead (1 to 5 are usual)"
            )
        if self.replay_capacity < max(self.learning_starts, self.num_envs):
            raise ConfigError(
                f"{path}.replay_capacity={self.replay_capacity} is below {path}.learning_starts="
                f"{self.learning_starts} or {path}.num_envs={self.num_envs}: no update would ever "
                "run; raise the capacity"
            )
        _positive(f"{path}.gamma", self.gamma)
        _at_most(f"{path}.gamma", self.gamma, 1.0)
        self.algo_params.check(f"{path}.algo_params")

    def planned_updates(self) -> int:
        """Updates that a whole run makes."""
        ticks = max(0, self.total_frames - self.learning_starts) // self.num_envs
        return max(1, ticks * self.updates_per_step)

    def frames_left(self, done: int) -> int:
        """Environment steps still to take, in whole steps of all environments.

        Args:
            done: environment steps taken so far.

        Raises:
            ConfigError: there are none left.
        """
        if done >= self.total_frames:
            raise ConfigError(
                f"the run has taken all of its algo.total_frames={self.total_frames} steps: give a "
                f"larger one to continue it, e.g. algo.total_frames={2 * done}"
            )
        return _round_up(self.total_frames - done, self.num_envs)

    def random_frames_left(self, done: int) -> int:
        """Environment steps still to take with uniform random actions.

        Args:
            done: environment steps taken so far; a resumed run that refills its buffer past the
                warm-up does so with its policy.
        """
        left = max(0, self.learning_starts - done) if self.random_warmup else 0
        return _round_up(left, self.num_envs)


@dataclass(frozen=True, kw_only=True)
class TrainingCfg:
    """How the run is carried out and what it leaves behind."""

    seed: int = 0
    """Seed of environments, networks, exploration and sampling."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the learner; auto: cuda where there is one, else cpu."""
    collector_tensor_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where collected tensors live, those of the environments and of the ring; auto: with a CUDA
    learner on its device, else on the CPU."""
    collector: Literal["auto", "sync", "pipelined"] = "auto"
    """pipelined: environments step in a process of their own while the learner updates; sync: in
    turns; auto: pipelined where the learner is on an accelerator."""
    num_threads: int | None = None
    """CPU threads of the learner; null: as many as there are cores, at most OMP_NUM_THREADS;
    pipelined on CUDA: 1."""
    run_dir: str | None = None
    """Folder of this run; null: ``<log_root>/<task>/<timestamp>_seed<seed>``."""
    log_root: str = "runs"
    """Folder that holds all runs."""
    resume: str | None = None
    """Folder of a run to continue, exactly where its last checkpoint left it."""
    max_minutes: float | None = None
    """Stop after this wall time, with the step that is being taken: the first that learns compiles,
    which may take a minute. The last evaluation comes on top. null: after ``algo.total_frames``."""
    log_interval_s: float = 5.0
    """Seconds between two rows of metrics."""
    trace: bool = False
    """Write ``trace.json``, a Chrome trace of the last ticks, when the run ends."""
    eval_interval: int | None = 500_000
    """Environment steps between two evaluations; null: none, not even at the end."""
    eval_num_envs: int = 32
    """Evaluation episodes, run in parallel, one an environment."""
    checkpoint_interval: int = 500_000
    """Environment steps between two checkpoints; there is always one at the end."""
    keep_checkpoints: int = 3
    """Newest checkpoints that are kept."""
    save_replay: bool = False
    """Store the replay buffer in checkpoints (large); without it a resumed run refills it first."""

    def check(self, path: str) -> None:
        """Raises ConfigError for values that cannot train."""
        _at_least(f"{path}.seed", self.seed, 0)
        _at_most(f"{path}.seed", self.seed, 2**32 - 1)
        for name in ("eval_num_envs", "checkpoint_interval", "keep_checkpoints"):
            _at_least(f"{path}.{name}", getattr(self, name), 1)
        for name in ("run_dir", "log_root", "resume"):
            if getattr(self, name) == "":
                raise ConfigError(f"{path}.{name} is empty: name a folder, or leave the key out")
        for name in ("num_threads", "eval_interval"):
            if getattr(self, name) is not None:
                _at_least(f"{path}.{name}", getattr(self, name), 1)
        _positive(f"{path}.log_interval_s", self.log_interval_s)
        if self.max_minutes is not None:
            _positive(f"{path}.max_minutes", self.max_minutes)
        if self.collector_tensor_device == "cuda":
            self.resolve_placement()

    def resolve_device(self) -> torch.device:
        """The learner's device.

        Raises:
            PlacementError: cuda was asked for and is not there.
        """
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise PlacementError(
                "training.device=cuda, but torch sees no CUDA device here: use training.device=cpu "
                "or auto"
            )
        return torch.device(self.device)

    def resolve_placement(self) -> Placement:
        """Where environments, ring and learner live.

        Raises:
            PlacementError: the devices cannot be combined, or are not there.
        """
        return resolve_collector_tensor_placement(
            self.collector_tensor_device, self.resolve_device()
        )

    def resolve_collector(self, device: torch.device) -> Literal["sync", "pipelined"]:
        """How environments and learner share time.

        Args:
            device: the learner's.
        """
        if self.collector == "auto":
            return "sync" if device.type == "cpu" else "pipelined"
        return self.collector

    def resolve_threads(self, device: torch.device) -> tuple[int, int]:
        """CPU threads of the learner and of physics.

        Args:
            device: the learner's.

        Returns:
            all cores for both where both compute on the CPU, at the same time too: neither keeps
            them busy throughout. All but one for physics beside a learner that computes elsewhere.
        """
        cores = _cores()
        if device.type == "cpu" or self.resolve_collector(device) == "sync":
            return self.num_threads or _torch_threads(cores), cores
        learner = self.num_threads or 1
        return learner, max(1, cores - learner)


@dataclass(frozen=True, kw_only=True)
class TrainCfg:
    """A whole training run."""

    task: str
    """A name that ``unilab list`` shows."""
    algo: AlgoCfg = field(default_factory=AlgoCfg)
    """The algorithm."""
    training: TrainingCfg = field(default_factory=TrainingCfg)
    """The run."""
    env: dict[str, Any] = field(default_factory=dict)
    """Overrides of the task's own configuration, handed to ``unilab.make(overrides=...)``."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainCfg:
        """Builds and checks a configuration.

        Args:
            values: nested mapping, e.g. what Hydra composed.

        Raises:
            ConfigError: a key that does not exist, a value of the wrong type or out of range.
        """
        for section in ("training", "env"):
            table = values.get(section)
            for key in table if isinstance(table, Mapping) else ():
                refuse_removed_key(f"{section}.{key}")
        cfg = from_dict(cls, values)
        cfg.algo.check("algo")
        cfg.training.check("training")
        return cfg

    def run_folder(self) -> RunFolder:
        """The run that ``training.resume`` names, or a new one.

        Raises:
            CheckpointError: the one to continue is no run folder, or cannot be written.
            ConfigError: a new one cannot be written, or its folder holds a run already.
        """
        training = self.training
        if training.resume is not None:
            return RunFolder.open(training.resume)
        return RunFolder.create(
            self.task, training.seed, log_root=training.log_root, path=training.run_dir
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain nested dicts; ``from_dict`` takes it back."""
        return to_dict(self)


def _cores() -> int:
    """Cores this process may run on, which in a container are fewer than the machine's."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _torch_threads(cores: int) -> int:
    """Threads of torch where nothing else is said: as everywhere, ``OMP_NUM_THREADS`` counts."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(wanted))) if wanted.isdecimal() else cores


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _at_least(path: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigError(f"{path}={value}: must be at least {least}")


def _at_most(path: str, value: float, most: float) -> None:
    if value > most:
        raise ConfigError(f"{path}={value}: must be at most {most}")


def _positive(path: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{path}={value}: must be above 0")
