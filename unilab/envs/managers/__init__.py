"""Managers: each turns a table of terms into one part of the environment's step."""

from unilab.envs.managers.action import (
    ActionManager,
    ActionTermCfg,
    JointEffortActionCfg,
    JointPositionActionCfg,
)
from unilab.envs.managers.command import (
    CommandManager,
    CommandTerm,
    CommandTermCfg,
)
from unilab.envs.managers.curriculum import CurriculumManager, CurriculumTermCfg
from unilab.envs.managers.event import EventManager, EventTermCfg
from unilab.envs.managers.metrics import MetricsManager, MetricsTermCfg
from unilab.envs.managers.observation import (
    ObservationGroupCfg,
    ObservationManager,
    ObservationTermCfg,
    UniformNoiseCfg,
)
from unilab.envs.managers.recorder import (
    RecorderManager,
    RecorderTermCfg,
    RecordingCfg,
)
from unilab.envs.managers.reward import RewardManager, RewardTermCfg
from unilab.envs.managers.term import ManagerTermBase, reads, writes
from unilab.envs.managers.termination import TerminationManager, TerminationTermCfg

__all__ = [
    "ActionManager",
    "ActionTermCfg",
    "CommandManager",
    "CommandTerm",
    "CommandTermCfg",
    "CurriculumManager",
    "CurriculumTermCfg",
    "EventManager",
    "EventTermCfg",
    "JointEffortActionCfg",
    "JointPositionActionCfg",
    "ManagerTermBase",
    "MetricsManager",
    "MetricsTermCfg",
    "ObservationGroupCfg",
    "ObservationManager",
    "ObservationTermCfg",
    "RecorderManager",
    "RecorderTermCfg",
    "RecordingCfg",
    "RewardManager",
    "RewardTermCfg",
    "TerminationManager",
    "TerminationTermCfg",
    "UniformNoiseCfg",
    "reads",
    "writes",
]
