"""FlashSACLoss inside TorchRL's own trainers, on an environment that is not ours."""

from __future__ import annotations

import warnings

import pytest
import torch
from reference.pendulum import pendulum
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.objectives import SoftUpdate
from torchrl.trainers import ReplayBufferTrainer, TargetNetUpdaterHook, Trainer
from torchrl.trainers.algorithms import SACTrainer

from unilab.modules import FlashSACActor, FlashSACCritic, FlashSACPolicy
from unilab.objectives import FlashSACLoss

FRAMES_PER_BATCH, TOTAL_FRAMES, STEPS_PER_BATCH = 32, 96, 4


class Parts:
    """Everything that a user hands to a TorchRL trainer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        actor = FlashSACActor(2, 1, hidden_dim=8, action_low=-2.0, action_high=2.0)
        critic = FlashSACCritic(2, 1, hidden_dim=8, num_bins=21)
        self.loss = FlashSACLoss(actor, critic, gamma=0.95)
        self.loss.set_keys(critic_obs="obs")
        self.policy = FlashSACPolicy(actor)
        self.collector = Collector(
            pendulum(num_envs=2),
            self.policy,
            frames_per_batch=FRAMES_PER_BATCH,
            total_frames=TOTAL_FRAMES,
        )
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=1e-3)
        self.updater = SoftUpdate(self.loss, tau=0.1)
        self.before = {k: v.clone() for k, v in self.loss.state_dict().items()}

    def check_all_moved(self) -> None:
        steps = TOTAL_FRAMES // FRAMES_PER_BATCH * STEPS_PER_BATCH
        assert {int(s["step"]) for s in self.optimizer.state.values()} == {steps}
        assert len(self.optimizer.state) == len(list(self.loss.parameters()))
        after = self.loss.state_dict()
        assert all(torch.isfinite(v).all() for v in after.values())
        for part in ("actor.", "critic.", "_target_critic.", "log_alpha"):
            names = [n for n in after if n.startswith(part)]
            assert names
            still = {n for n in names if torch.equal(after[n], self.before[n])}
            # what no step moves
            assert still == {n for n in names if n.endswith(("support", "scale", "offset"))}


@pytest.mark.slow
def test_it_trains_under_torchrls_trainer():
    parts = Parts()
    trainer = Trainer(
        collector=parts.collector,
        total_frames=TOTAL_FRAMES,
        frame_skip=1,
        optim_steps_per_batch=STEPS_PER_BATCH,
        loss_module=parts.loss,
        optimizer=parts.optimizer,
        clip_grad_norm=False,
        progress_bar=False,
    )
    replay = ReplayBufferTrainer(parts.buffer, batch_size=32, flatten_tensordicts=True)
    replay.register(trainer)
    trainer.register_op("post_optim", TargetNetUpdaterHook(parts.updater))
    trainer.register_op("post_optim", parts.loss.normalize_parameters)
    trainer.train()
    parts.check_all_moved()


@pytest.mark.slow
def test_it_trains_under_torchrls_sac_trainer():
    parts = Parts()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="SACTrainer is an experimental")
        trainer = SACTrainer(
            collector=parts.collector,
            total_frames=TOTAL_FRAMES,
            frame_skip=1,
            optim_steps_per_batch=STEPS_PER_BATCH,
            loss_module=parts.loss,
            optimizer=parts.optimizer,
            replay_buffer=parts.buffer,
            target_net_updater=parts.updater,
            clip_grad_norm=False,
            progress_bar=False,
            observation_key="obs",
            episode_reward_key="episode_reward",
        )
    trainer.register_op("post_optim", parts.loss.normalize_parameters)
    trainer.train()
    parts.check_all_moved()
