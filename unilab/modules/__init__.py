"""Networks: FlashSAC's actor, critic and rollout policy."""

from unilab.modules.actor import FlashSACActor
from unilab.modules.critic import FlashSACCritic
from unilab.modules.policy import FlashSACPolicy

__all__ = ["FlashSACActor", "FlashSACCritic", "FlashSACPolicy"]
