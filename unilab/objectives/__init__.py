"""FlashSAC's loss module and its formulas as pure functions."""

from unilab.objectives import functional
from unilab.objectives.flashsac import FlashSACLoss

__all__ = ["FlashSACLoss", "functional"]
