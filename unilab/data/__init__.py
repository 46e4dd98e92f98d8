"""Replay buffers and reward normalisation."""

from unilab.data.replay import make_replay_buffer
from unilab.data.reward_normalizer import RewardNormalizer

__all__ = ["RewardNormalizer", "make_replay_buffer"]
