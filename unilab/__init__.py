"""Robot reinforcement learning on TorchRL primitives.

env = unilab.make("go2_velocity_flat", num_envs=256, seed=0)
"""

from unilab import registry
from unilab.registry import make

__all__ = ["make", "registry"]
