"""Adapters that give our environments the interfaces of other libraries.

The other library is imported when its adapter is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unilab.errors import CapabilityError

if TYPE_CHECKING:
    from unilab.adapters.gymnasium import GymnasiumVectorEnv
    from unilab.adapters.rsl_rl import RslRlVecEnv

__all__ = ["GymnasiumVectorEnv", "RslRlVecEnv"]

# Adapter -> the package it needs, which its module is named after, and the extra that brings it.
_NEEDS = {"GymnasiumVectorEnv": ("gymnasium", "gym"), "RslRlVecEnv": ("rsl_rl", "rsl-rl")}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package, extra = _NEEDS[name]
    try:
        module = importlib.import_module(f"{__name__}.{package}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise CapabilityError(
            f"{name} needs {package}, which is not installed: pip install 'unilab-torchrl[{extra}]'"
        ) from error
    return getattr(module, name)
