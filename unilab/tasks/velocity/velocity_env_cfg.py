"""Configuration of the velocity tasks: a task that can leave out its randomization."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unilab.envs import ManagerBasedRlEnvCfg


@dataclass(frozen=True, kw_only=True)
class VelocityEnvCfg(ManagerBasedRlEnvCfg):
    """A velocity task.

    ``replace(cfg, randomize=False)`` cannot be undone: it drops the terms.
    """

    randomize: bool = True
    """Vary the robot, the ground, the sensors and the delays, and push the robot. False drops
    startup and interval events, observation noise and action delays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.randomize:
            return
        nominal = {
            "events": {name: term for name, term in self.events.items() if term.mode == "reset"},
            "observations": {
                name: replace(group, enable_corruption=False)
                for name, group in self.observations.items()
            },
            "actions": {
                name: replace(term, delay_min_lag=0, delay_max_lag=0)
                for name, term in self.actions.items()
            },
        }
        for name, table in nominal.items():
            object.__setattr__(self, name, table)
