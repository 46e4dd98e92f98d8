"""Small networks and batches, and their way into the NumPy renderings."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from unilab.modules import FlashSACActor, FlashSACCritic
from unilab.objectives import FlashSACLoss

OBS, CRITIC_OBS, ACTION = 3, 4, 2


def scramble(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random parameters and running statistics, so that nothing hides behind a zero or a one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name.endswith("running_var"):
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
            elif name.endswith(("weight", "bias", "running_mean")):
                value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
    for part in module.modules():
        if hasattr(part, "normalize_parameters"):
            part.normalize_parameters()
    return module


def tiny_actor(**kwargs: object) -> FlashSACActor:
    return scramble(FlashSACActor(OBS, ACTION, hidden_dim=4, num_blocks=1, **kwargs), seed=1)


def tiny_critic(obs_dim: int = CRITIC_OBS) -> FlashSACCritic:
    critic = FlashSACCritic(obs_dim, ACTION, hidden_dim=4, num_blocks=1, num_bins=11)
    return scramble(critic, seed=2)


def tiny_loss(dtype: torch.dtype = torch.float32, **kwargs: object) -> FlashSACLoss:
    """A loss module whose target differs from its critic in weights and statistics."""
    loss = FlashSACLoss(tiny_actor(), tiny_critic(), **kwargs)
    scramble(loss.target_critic, seed=3)
    return loss.to(dtype)


def tiny_batch(
    rows: int = 8, *, dtype: torch.dtype = torch.float32, seed: int = 0, critic: bool = True
) -> TensorDict:
    """Transitions, with a terminated, a truncated and a terminated-and-truncated row."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    terminated = torch.zeros(rows, 1, dtype=torch.bool)
    truncated = terminated.clone()
    terminated[:2] = True
    truncated[1:3] = True
    batch = TensorDict(
        {
            "obs": normal(rows, OBS),
            "action": torch.rand(rows, ACTION, generator=generator, dtype=dtype) * 2 - 1,
            ("next", "obs"): normal(rows, OBS),
            ("next", "reward"): normal(rows, 1) * 2,
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
            ("next", "done"): terminated | truncated,
        },
        [rows],
    )
    if critic:
        batch["critic"] = normal(rows, CRITIC_OBS)
        batch["next", "critic"] = normal(rows, CRITIC_OBS)
    return batch


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    """Parameters and buffers in float64."""
    return {k: v.detach().double().numpy().copy() for k, v in module.state_dict().items()}


def batch_arrays(batch: TensorDict) -> dict[str, np.ndarray]:
    """The same batch as the NumPy renderings take it."""
    out = {
        "obs": batch["obs"],
        "critic": batch["critic"],
        "action": batch["action"],
        "next_obs": batch["next", "obs"],
        "next_critic": batch["next", "critic"],
        "reward": batch["next", "reward"].squeeze(-1),
        "terminated": batch["next", "terminated"].squeeze(-1),
    }
    if "steps_to_next_obs" in batch:
        out["steps"] = batch["steps_to_next_obs"].reshape(-1)
    return {k: v.numpy() if v.dtype == torch.bool else v.double().numpy() for k, v in out.items()}
