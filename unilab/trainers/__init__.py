"""Training: learner, runner, evaluation and checkpoints."""

from unilab.trainers.async_runner import AsyncRunner
from unilab.trainers.checkpoint import Checkpointer, Counters, EnvTrainingState, ReplayContents
from unilab.trainers.evaluation import Evaluator
from unilab.trainers.launcher import launch
from unilab.trainers.learner import FlashSACLearner
from unilab.trainers.load_actor import load_env_training_state, load_play_actor
from unilab.trainers.ppo_learner import PPOLearner
from unilab.trainers.ranks import Ranks
from unilab.trainers.run import Run, run_identity
from unilab.trainers.runner import OffPolicyRunner, OnPolicyRunner
from unilab.trainers.sac_learner import SACLearner

__all__ = [
    "AsyncRunner",
    "Checkpointer",
    "Counters",
    "EnvTrainingState",
    "Evaluator",
    "FlashSACLearner",
    "OffPolicyRunner",
    "OnPolicyRunner",
    "PPOLearner",
    "Ranks",
    "ReplayContents",
    "Run",
    "SACLearner",
    "launch",
    "load_env_training_state",
    "load_play_actor",
    "run_identity",
]
