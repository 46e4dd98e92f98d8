"""Networks of FlashSAC, PPO and SAC, the rollout policy, and the contract of custom actors."""

from unilab.modules.actor import FlashSACActor
from unilab.modules.actor_contract import build_actor, validate_actor
from unilab.modules.actor_spec import FlashSACActorSpec, action_range, actor_semantics
from unilab.modules.critic import FlashSACCritic
from unilab.modules.gaussian_actor import GaussianActor, GaussianPolicy
from unilab.modules.log_prob_check import assert_log_prob_consistent
from unilab.modules.mlp import ObsNormalizer, ValueNetwork
from unilab.modules.policy import FlashSACPolicy

__all__ = [
    "FlashSACActor",
    "FlashSACActorSpec",
    "FlashSACCritic",
    "FlashSACPolicy",
    "GaussianActor",
    "GaussianPolicy",
    "ObsNormalizer",
    "ValueNetwork",
    "action_range",
    "actor_semantics",
    "assert_log_prob_consistent",
    "build_actor",
    "validate_actor",
]
