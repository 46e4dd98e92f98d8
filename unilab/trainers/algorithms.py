"""Algorithms by name: the one a script assembles, and wholly different ones of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase

from unilab.errors import ConfigError, did_you_mean
from unilab.trainers.runner import Learner

if TYPE_CHECKING:
    from unilab.trainers.config import AlgoCfg

__all__ = ["Algorithm", "Interface", "algorithm", "register_algorithm"]


@dataclass(frozen=True, kw_only=True)
class Interface:
    """What an algorithm sees of the environment and the machine."""

    obs_groups: Mapping[str, int]
    """Width of each observation group."""
    critic_obs: str
    """The group that a critic reads."""
    action_spec: TensorSpec
    """The environment's actions ``[num_envs, A]`` with their range."""
    device: torch.device
    """Where the learner is."""

    @classmethod
    def of(cls, env: EnvBase, device: torch.device) -> Interface:
        """What an environment of unilab shows; a critic reads ``critic`` where it has that group.

        Args:
            env: publishes ``obs_groups_spec``.
            device: where the learner is.
        """
        groups: dict[str, int] = env.obs_groups_spec
        return cls(
            obs_groups=groups,
            critic_obs="critic" if "critic" in groups else "obs",
            action_spec=env.action_spec,
            device=device,
        )


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What the off-policy loop, evaluation and checkpoints need of an algorithm."""

    actor: nn.Module
    """The instance that is optimised; checkpoints record its semantics."""
    policy: TensorDictModuleBase
    """Acts with that instance; follows TorchRL's exploration type."""
    learner: Learner
    """Makes the updates; its ``state_dict`` goes into checkpoints."""


Build = Callable[["AlgoCfg", Interface], Algorithm]
_BUILT_IN = "flashsac"
_registered: dict[str, Build] = {}


def register_algorithm(name: str, build: Build) -> None:
    """Adds an algorithm of your own, for ``algo.name=<name>``.

    To replace only the actor of FlashSAC, inject one with ``algo.algo_params.actor_config``.

    Args:
        name: the algorithm's name.
        build: makes it from the ``algo`` settings and what it sees of the run.

    Raises:
        ConfigError: the name is taken.
    """
    if name in _names():
        raise ConfigError(f"an algorithm named {name!r} exists already: choose another name")
    _registered[name] = build


def algorithm(name: str, flashsac: Build) -> Build:
    """The builder of an algorithm.

    Args:
        name: ``"flashsac"`` or a registered name.
        flashsac: how the calling script assembles FlashSAC.

    Raises:
        ConfigError: no such algorithm.
    """
    check_algorithm(name)
    return flashsac if name == _BUILT_IN else _registered[name]


def check_algorithm(name: str, path: str = "algo.name") -> None:
    """Raises ConfigError for a name that stands for no algorithm."""
    if name not in _names():
        raise ConfigError(
            f"{path}={name!r}{did_you_mean(name, _names())}: must be one of "
            f"{', '.join(_names())}; register_algorithm adds others, in a module that the script "
            "imports"
        )


def _names() -> list[str]:
    return [_BUILT_IN, *sorted(_registered)]
