"""FlashSAC composed by hand on an environment of TorchRL: no Hydra, no runner.

    python examples/compose_flashsac.py

Takes about 90 s on one core and swings the pendulum up: an evaluation return of about -130.
Any batched ``EnvBase`` works the same way: only ``make_env`` and the observation's key change.
"""

from __future__ import annotations

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase, PendulumEnv, TransformedEnv
from torchrl.envs import transforms as T
from torchrl.objectives import SoftUpdate

from unilab.data import RewardNormalizer
from unilab.modules import FlashSACActor, FlashSACCritic, FlashSACPolicy
from unilab.objectives import FlashSACLoss
from unilab.trainers import Evaluator

EPISODE = 200  # control steps


def make_env(num_envs: int) -> EnvBase:
    """``num_envs`` pendulums of TorchRL, observed by sine, cosine and rate of their angle."""
    env = TransformedEnv(PendulumEnv(), T.BatchSizeTransform(batch_size=[num_envs]))
    env.append_transform(T.StepCounter(EPISODE))
    env.append_transform(T.InitTracker())  # where exploration noise restarts
    for key, fn in (("sin", torch.sin), ("cos", torch.cos)):
        env.append_transform(T.UnaryTransform(in_keys=["th"], out_keys=[key], fn=fn))
    columns = ["sin_col", "cos_col", "thdot_col"]
    env.append_transform(
        T.UnsqueezeTransform(-1, in_keys=["sin", "cos", "thdot"], out_keys=columns)
    )
    env.append_transform(T.CatTensors(in_keys=columns, out_key="observation"))
    return env


def train(
    total_frames: int = 24_000,
    num_envs: int = 8,
    batch_size: int = 256,
    warmup_frames: int = 4_000,
    hidden_dim: int = 64,
    seed: int = 0,
) -> dict[str, float]:
    """Trains and returns the evaluation metrics."""
    torch.manual_seed(seed)
    env = make_env(num_envs)
    actor = FlashSACActor(3, 1, hidden_dim, action_low=-2.0, action_high=2.0)
    policy = FlashSACPolicy(actor, obs_key="observation")
    loss = FlashSACLoss(actor, FlashSACCritic(3, 1, hidden_dim), gamma=0.95)
    loss.set_keys(obs="observation", critic_obs="observation")
    update_target = SoftUpdate(loss, tau=0.02)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(total_frames), batch_size=batch_size)
    rewards = RewardNormalizer(gamma=0.95)
    collector = Collector(
        env,
        policy,
        frames_per_batch=num_envs,
        total_frames=total_frames,
        init_random_frames=warmup_frames,
    )
    for data in collector:
        rewards.update(data)
        buffer.extend(data.reshape(-1))
        if len(buffer) >= warmup_frames:
            losses = loss(rewards.normalize(buffer.sample()))
            sum(v for k, v in losses.items() if k.startswith("loss_")).backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.normalize_parameters()
            update_target.step()
    return Evaluator(make_env(num_envs), policy, max_steps=EPISODE)()


if __name__ == "__main__":
    print(train())
