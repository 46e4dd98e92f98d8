"""TorchRL's own pendulum, with its two readings joined to one observation."""

from __future__ import annotations

from torchrl.envs import PendulumEnv, SerialEnv, TransformedEnv
from torchrl.envs.transforms import (
    CatTensors,
    InitTracker,
    RewardSum,
    StepCounter,
    UnsqueezeTransform,
)


def pendulum(num_envs: int, episode_steps: int = 20) -> TransformedEnv:
    """``num_envs`` pendulums with ``obs`` ``[2]`` (angle, its rate) and ``action`` ``[1]``."""
    env = TransformedEnv(SerialEnv(num_envs, PendulumEnv))
    for transform in (
        UnsqueezeTransform(
            -1,
            in_keys=["th", "thdot"],
            out_keys=["th", "thdot"],
            in_keys_inv=["th", "thdot"],
            out_keys_inv=["th", "thdot"],
        ),
        CatTensors(["th", "thdot"], "obs", del_keys=False),
        StepCounter(max_steps=episode_steps),
        InitTracker(),
        RewardSum(),
    ):
        env.append_transform(transform)
    return env
