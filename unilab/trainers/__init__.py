"""Training: the learner's update, the loop around it, and what survives a run."""

from unilab.trainers.async_runner import AsyncRunner
from unilab.trainers.checkpoint import Checkpointer, Counters, EnvTrainingState, ReplayContents
from unilab.trainers.config import TrainCfg
from unilab.trainers.evaluation import Evaluator
from unilab.trainers.identity import run_identity
from unilab.trainers.learner import FlashSACLearner
from unilab.trainers.runner import OffPolicyRunner, RunResult

__all__ = [
    "AsyncRunner",
    "Checkpointer",
    "Counters",
    "EnvTrainingState",
    "Evaluator",
    "FlashSACLearner",
    "OffPolicyRunner",
    "ReplayContents",
    "RunResult",
    "TrainCfg",
    "run_identity",
]
