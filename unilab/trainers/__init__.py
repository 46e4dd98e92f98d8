"""Training: the learner's update."""

from unilab.trainers.learner import FlashSACLearner

__all__ = ["FlashSACLearner"]
