"""TorchRL's SAC on a task and the collector of unilab.

    python examples/torchrl_pipeline.py

Physics runs in a separate process while the losses are computed here. Networks, loss and replay
buffer are TorchRL's.
"""

from __future__ import annotations

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate, ValueEstimators

import unilab
from unilab.collectors import PipelinedCollector
from unilab.trainers import Evaluator


def train(
    task: str = "pendulum_swingup",
    total_frames: int = 60_000,
    num_envs: int = 32,
    batch_size: int = 256,
    warmup_frames: int = 4_000,
    hidden_dim: int = 64,
    seed: int = 0,
) -> dict[str, float]:
    """Trains and returns the evaluation metrics."""
    torch.manual_seed(seed)
    dims = unilab.registry.dims(task)
    make_env = unilab.registry.factory(
        task, num_envs=num_envs, seed=seed, overrides={"num_threads": 1}
    )

    body = MLP(dims.obs, 2 * dims.action, num_cells=[hidden_dim, hidden_dim])
    actor = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(body, NormalParamExtractor()), in_keys=["obs"], out_keys=["loc", "scale"]
        ),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
    )
    value = ValueOperator(
        MLP(dims.obs + dims.action, 1, num_cells=[hidden_dim, hidden_dim]),
        in_keys=["obs", "action"],
    )
    loss = SACLoss(actor, value, action_spec=unilab.make(task, num_envs=1).action_spec)
    loss.make_value_estimator(ValueEstimators.TD0, gamma=0.97)
    update_target = SoftUpdate(loss, tau=0.01)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(total_frames), batch_size=batch_size)

    collector = PipelinedCollector(
        make_env,
        actor,
        frames_per_batch=num_envs,
        total_frames=total_frames,
        init_random_frames=warmup_frames,
    )
    for data in collector:
        buffer.extend(data.select("obs", "action", "next").reshape(-1))
        if len(buffer) >= warmup_frames:
            losses = loss(buffer.sample())
            sum(v for k, v in losses.items() if k.startswith("loss_")).backward()
            optimizer.step()
            optimizer.zero_grad()
            update_target.step()
    collector.shutdown()
    return Evaluator(unilab.make(task, num_envs=num_envs, seed=seed + 1), actor)()


if __name__ == "__main__":
    print(train())
