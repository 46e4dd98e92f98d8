"""FlashSACLoss inside TorchRL's own trainers, on an environment that is not ours."""

from __future__ import annotations

import warnings

import pytest
import torch
from reference.pendulum import pendulum
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.objectives import SoftUpdate
from torchrl.trainers.algorithms import SACTrainer

from unilab.modules import FlashSACActor, FlashSACCritic, FlashSACPolicy
from unilab.objectives import FlashSACLoss

FRAMES_PER_BATCH, TOTAL_FRAMES, STEPS_PER_BATCH = 32, 96, 4


@pytest.mark.slow
def test_it_trains_under_torchrls_sac_trainer():
    torch.manual_seed(0)
    actor = FlashSACActor(2, 1, hidden_dim=8, action_low=-2.0, action_high=2.0)
    loss = FlashSACLoss(actor, FlashSACCritic(2, 1, hidden_dim=8, num_bins=21), gamma=0.95)
    loss.set_keys(critic_obs="obs")
    collector = Collector(
        pendulum(num_envs=2),
        FlashSACPolicy(actor),
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=TOTAL_FRAMES,
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    before = {k: v.clone() for k, v in loss.state_dict().items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="SACTrainer is an experimental")
        trainer = SACTrainer(
            collector=collector,
            total_frames=TOTAL_FRAMES,
            frame_skip=1,
            optim_steps_per_batch=STEPS_PER_BATCH,
            loss_module=loss,
            optimizer=optimizer,
            replay_buffer=TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32),
            target_net_updater=SoftUpdate(loss, tau=0.1),
            clip_grad_norm=False,
            progress_bar=False,
            observation_key="obs",
            episode_reward_key="episode_reward",
        )
    trainer.register_op("post_optim", loss.normalize_parameters)
    trainer.train()

    steps = TOTAL_FRAMES // FRAMES_PER_BATCH * STEPS_PER_BATCH
    assert {int(s["step"]) for s in optimizer.state.values()} == {steps}
    after = loss.state_dict()
    assert all(torch.isfinite(v).all() for v in after.values())
    still = {name for name in after if torch.equal(after[name], before[name])}
    # what no step moves
    assert still == {n for n in after if n.endswith(("support", "scale", "offset"))}
