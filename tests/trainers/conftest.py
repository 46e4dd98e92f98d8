"""A whole training set-up, real in every part and small enough for tests."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.collectors import Collector

import unilab
from unilab.data import RewardNormalizer, make_replay_buffer
from unilab.errors import CheckpointError
from unilab.modules import FlashSACActor, FlashSACCritic, FlashSACPolicy
from unilab.objectives import FlashSACLoss
from unilab.record import MetricLogger, RunFolder
from unilab.settings import TrainingCfg
from unilab.trainers import (
    Checkpointer,
    Counters,
    EnvTrainingState,
    FlashSACLearner,
    OffPolicyRunner,
    ReplayContents,
    Run,
    run_identity,
)

NUM_ENVS = 4


class Session:
    """What examples/train_flashsac.py assembles, on the pendulum with tiny networks."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int = 0,
        hidden_dim: int = 8,
        critic_dim: int = 8,
        v_max: float = 5.0,
        n_step: int = 1,
        amp_dtype: str | None = None,
        device: torch.device | str = "cpu",
        actor: nn.Module | None = None,
        save_replay: bool = True,
        keep: int = 3,
        **identity: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.collectors: list[Collector] = []
        self.env = unilab.make("pendulum_swingup", num_envs=NUM_ENVS, device=device, seed=seed)
        self.actor = actor or FlashSACActor(3, 1, hidden_dim, num_blocks=1, device=device)
        critic = FlashSACCritic(
            3, 1, critic_dim, num_blocks=1, num_bins=11, v_max=v_max, device=device
        )
        loss = FlashSACLoss(self.actor, critic, gamma=0.9)
        loss.set_keys(critic_obs="obs")
        self.policy = FlashSACPolicy(self.actor)
        self.learner = FlashSACLearner(loss, decay_steps=50, amp_dtype=amp_dtype)
        self.buffer = make_replay_buffer(
            1000, batch_size=16, device=device, n_step=n_step, gamma=0.9
        )
        self.rewards = RewardNormalizer(0.9)
        state = {
            "learner": self.learner,
            "rewards": self.rewards,
            "env": EnvTrainingState(self.env),
        }
        if save_replay:
            state["replay"] = ReplayContents(self.buffer)
        base = run_identity("pendulum_swingup", self.env.obs_groups_spec, "obs", self.actor)
        self.checkpointer = Checkpointer(directory, state, identity=base | identity, keep=keep)

    def collector(self, ticks: int) -> Iterator[TensorDictBase]:
        collector = Collector(
            self.env,
            self.policy,
            frames_per_batch=NUM_ENVS,
            total_frames=-1,
            trust_policy=True,
            track_traj_ids=False,
        )
        # A collector closes its environment at its last frame and when it is garbage-collected.
        self.collectors.append(collector)
        return itertools.islice(collector, ticks)

    def train(
        self,
        data: int | Iterable[TensorDictBase],
        counters: Counters | None = None,
        *,
        evaluate: Any = None,
        drain_metrics: Any = None,
        logger: MetricLogger | None = None,
        folder: RunFolder | None = None,
        save: bool = True,
        **training: Any,
    ) -> Counters:
        """The loop of examples/train_flashsac.py over a number of ticks, or over given data."""
        run = Run(
            checkpointer=self.checkpointer if save else None,
            logger=logger,
            folder=folder,
            counters=counters if counters is not None else Counters(),
        )
        self.runner = runner = OffPolicyRunner(
            self.collector(data) if isinstance(data, int) else data,
            self.learner,
            self.buffer,
            training=TrainingCfg(**training),
            run=run,
            evaluate=evaluate,
            drain_metrics=drain_metrics,
        )
        with runner:
            for batch in runner:
                self.rewards.update(batch)
                self.buffer.extend(batch)
                if len(self.buffer) >= 32:
                    batch = self.rewards.normalize(self.buffer.sample())
                    runner.record(self.learner.update(batch))
        return run.counters

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor and number that a checkpoint holds, by path, and torch's generator."""
        parts = {
            "learner": self.learner.state_dict(),
            "rewards": self.rewards.state_dict(),
            "env": self.env.export_training_state(),
            "replay": ReplayContents(self.buffer).state_dict(),
            "rng": torch.get_rng_state(),
        }
        return flat(parts)


def flat(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {} if value is None or isinstance(value, str) else {path: torch.as_tensor(value)}
    leaves: dict[str, torch.Tensor] = {}
    for key, inner in items:
        leaves |= flat(inner, f"{path}.{key}")
    return {key: leaf.clone() for key, leaf in leaves.items()}


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    """Paths whose values are not bit for bit the same."""
    return [k for k in {**a, **b} if k not in a or k not in b or not torch.equal(a[k], b[k])]


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    """Builds a session; all of a test share one checkpoint folder."""
    torch.set_num_threads(1)

    def build(**kwargs: Any) -> Session:
        return Session(tmp_path / "checkpoints", **kwargs)

    return build


@pytest.fixture(name="differing")
def _differing() -> Callable[..., list[str]]:
    return differing


@pytest.fixture(scope="module")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    run = Session(tmp_path_factory.mktemp("trained"))
    run.train(20)
    return run.checkpointer.latest(), run.state()


@pytest.fixture
def trained(
    _trained: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint after 80 frames in the folder of the test's sessions, and its state."""
    path, state = _trained
    shutil.copytree(path.parent, tmp_path / "checkpoints")
    return tmp_path / "checkpoints" / path.name, state


@pytest.fixture
def refused(session: Callable[..., Session]) -> Callable[..., None]:
    """Checks that a new session refuses a checkpoint and does not change."""

    def check(match: str, path: Path | None = None, **kwargs: Any) -> None:
        other = session(seed=1, **kwargs)
        before = other.state()
        with pytest.raises(CheckpointError, match=match):
            other.checkpointer.load(path)
        assert differing(before, other.state()) == []

    return check
