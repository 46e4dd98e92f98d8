"""FlashSAC's loss module and the pure functions it is made of."""

from unilab.objectives import functional
from unilab.objectives.flashsac import FlashSACLoss

__all__ = ["FlashSACLoss", "functional"]
