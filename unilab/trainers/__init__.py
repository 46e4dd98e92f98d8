"""Training: the learner's update, the loop around it, and what survives a run."""

from unilab.trainers.checkpoint import Checkpointer, Counters, EnvTrainingState, ReplayContents
from unilab.trainers.config import TrainCfg
from unilab.trainers.evaluation import Evaluator
from unilab.trainers.identity import run_identity
from unilab.trainers.learner import FlashSACLearner
from unilab.trainers.play import load_play_actor
from unilab.trainers.runner import OffPolicyRunner, RunResult

__all__ = [
    "Checkpointer",
    "Counters",
    "EnvTrainingState",
    "Evaluator",
    "FlashSACLearner",
    "OffPolicyRunner",
    "ReplayContents",
    "RunResult",
    "TrainCfg",
    "load_play_actor",
    "run_identity",
]
