"""Replay buffers, minibatches, symmetry and reward normalisation."""

from unilab.data.minibatches import minibatches
from unilab.data.replay import make_replay_buffer
from unilab.data.reward_normalizer import RewardNormalizer
from unilab.data.symmetry import SymmetryTransform, mirrored

__all__ = [
    "RewardNormalizer",
    "SymmetryTransform",
    "make_replay_buffer",
    "minibatches",
    "mirrored",
]
