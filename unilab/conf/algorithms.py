"""The table of algorithms that ``unilab train`` knows."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unilab.errors import ConfigError, did_you_mean
from unilab.registry import import_entry_points


@dataclass(frozen=True)
class Algorithm:
    """An algorithm's settings and training function, each also as ``"module:name"``."""

    cfg: type | str
    """Dataclass of its settings, with ``task``, ``algo``, ``training`` and ``env``. The package
    that defines it may hold files for tasks, ``task/<task>.yaml``."""
    run: Callable[[Any], int] | str
    """Runs a training with these settings and returns the exit code."""

    def settings(self) -> Any:
        """The dataclass of its settings."""
        return pkgutil.resolve_name(self.cfg) if isinstance(self.cfg, str) else self.cfg

    def train(self, cfg: Any) -> int:
        """Run a training; returns the exit code."""
        run = pkgutil.resolve_name(self.run) if isinstance(self.run, str) else self.run
        return run(cfg)


_registered = {
    "appo": Algorithm("unilab.conf.appo:APPOCfg", "unilab.examples.train_appo:train"),
    "flashsac": Algorithm(
        "unilab.conf.flashsac:FlashSACCfg", "unilab.examples.train_flashsac:train"
    ),
    "ppo": Algorithm("unilab.conf.ppo:PPOCfg", "unilab.examples.train_ppo:train"),
    "sac": Algorithm("unilab.conf.sac:SACCfg", "unilab.examples.train_sac:train"),
}


def register_algorithm(name: str, cfg: type | str, train: Callable[[Any], int] | str) -> None:
    """Add an algorithm of your own, for ``unilab train <name>``.

    The command line finds the algorithms of a package if the module that registers them is an
    entry point of the group ``unilab.algorithms``. To replace only the actor of FlashSAC, use
    ``algo.algo_params.actor_config``. For ``cfg`` and ``train`` see :class:`Algorithm`.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(
            f"name must be an identifier, got {name!r}: it is what `unilab train` takes first"
        )
    if not isinstance(cfg, type | str):
        raise ConfigError(f'cfg must be a dataclass or its "module:name", got {cfg!r}')
    if not callable(train) and not isinstance(train, str):
        raise ConfigError(f'train must be a function or its "module:name", got {train!r}')
    if name in _registered:
        raise ConfigError(f"an algorithm named {name!r} exists already: choose another name")
    _registered[name] = Algorithm(cfg, train)


def algorithm(name: str) -> Algorithm:
    """The algorithm of a name."""
    if name not in _registered:
        import_entry_points("unilab.algorithms")
    if name not in _registered:
        known = sorted(_registered)
        raise ConfigError(
            f"no algorithm named {name!r}{did_you_mean(name, known)}: choose one of "
            f"{', '.join(known)}"
        )
    return _registered[name]
