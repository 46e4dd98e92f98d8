"""Training: the learner's update, the loop around it, and what survives a run."""

from unilab.trainers.algorithms import Algorithm, Interface, algorithm, register_algorithm
from unilab.trainers.async_runner import AsyncRunner
from unilab.trainers.checkpoint import Checkpointer, Counters, EnvTrainingState, ReplayContents
from unilab.trainers.config import AlgoCfg, TrainCfg
from unilab.trainers.evaluation import Evaluator
from unilab.trainers.identity import run_identity
from unilab.trainers.learner import FlashSACLearner
from unilab.trainers.load_actor import load_env_training_state, load_play_actor
from unilab.trainers.run import Run
from unilab.trainers.runner import OffPolicyRunner, RunResult

__all__ = [
    "AlgoCfg",
    "Algorithm",
    "AsyncRunner",
    "Checkpointer",
    "Counters",
    "EnvTrainingState",
    "Evaluator",
    "FlashSACLearner",
    "Interface",
    "OffPolicyRunner",
    "ReplayContents",
    "Run",
    "RunResult",
    "TrainCfg",
    "algorithm",
    "load_env_training_state",
    "load_play_actor",
    "register_algorithm",
    "run_identity",
]
