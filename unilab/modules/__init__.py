"""Networks: FlashSAC's actor, critic and rollout policy, and the contract of anybody's actor."""

from unilab.modules.actor import FlashSACActor
from unilab.modules.actor_contract import build_actor
from unilab.modules.actor_spec import FlashSACActorSpec, actor_semantics
from unilab.modules.critic import FlashSACCritic
from unilab.modules.policy import FlashSACPolicy

__all__ = [
    "FlashSACActor",
    "FlashSACActorSpec",
    "FlashSACCritic",
    "FlashSACPolicy",
    "actor_semantics",
    "build_actor",
]
