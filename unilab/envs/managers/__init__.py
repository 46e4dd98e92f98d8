"""Managers: each turns a table of terms into one part of the environment's step.

Exported are the names that a task's author needs.
"""

from unilab.envs.managers.action import (
    ActionTermCfg,
    JointEffortActionCfg,
    JointPositionActionCfg,
)
from unilab.envs.managers.command import CommandTerm, CommandTermCfg
from unilab.envs.managers.curriculum import CurriculumTermCfg
from unilab.envs.managers.event import EventTermCfg
from unilab.envs.managers.metrics import MetricsTermCfg
from unilab.envs.managers.observation import (
    ObservationGroupCfg,
    ObservationTermCfg,
    UniformNoiseCfg,
)
from unilab.envs.managers.recorder import RecorderTermCfg, RecordingCfg
from unilab.envs.managers.reward import RewardTermCfg
from unilab.envs.managers.term import ManagerTermBase, reads, writes
from unilab.envs.managers.termination import TerminationTermCfg

__all__ = [
    "ActionTermCfg",
    "CommandTerm",
    "CommandTermCfg",
    "CurriculumTermCfg",
    "EventTermCfg",
    "JointEffortActionCfg",
    "JointPositionActionCfg",
    "ManagerTermBase",
    "MetricsTermCfg",
    "ObservationGroupCfg",
    "ObservationTermCfg",
    "RecorderTermCfg",
    "RecordingCfg",
    "RewardTermCfg",
    "TerminationTermCfg",
    "UniformNoiseCfg",
    "reads",
    "writes",
]
