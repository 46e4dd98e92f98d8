"""Losses and advantages as modules, and FlashSAC's formulas as pure functions."""

from unilab.objectives import functional
from unilab.objectives.flashsac import FlashSACLoss
from unilab.objectives.vtrace import VTrace

__all__ = ["FlashSACLoss", "VTrace", "functional"]
