"""Environments: TorchRL ``EnvBase`` over a physics backend, assembled from tables of terms."""

from unilab.envs import mdp
from unilab.envs.entity import EntityCfg, SceneEntityCfg
from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv, ManagerBasedRlEnvCfg
from unilab.envs.managers import (
    ActionTermCfg,
    CommandTerm,
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    ManagerTermBase,
    MetricsTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RecordingCfg,
    RewardTermCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    reads,
    writes,
)
from unilab.envs.nan_guard import NanGuardCfg
from unilab.envs.scene import EntityScene, SceneCfg
from unilab.envs.torch_env import TorchEnv

__all__ = [
    "ActionTermCfg",
    "CommandTerm",
    "CommandTermCfg",
    "CurriculumTermCfg",
    "EntityCfg",
    "EntityScene",
    "EventTermCfg",
    "ManagerBasedRlEnv",
    "ManagerBasedRlEnvCfg",
    "ManagerTermBase",
    "MetricsTermCfg",
    "NanGuardCfg",
    "ObservationGroupCfg",
    "ObservationTermCfg",
    "RecorderTermCfg",
    "RecordingCfg",
    "RewardTermCfg",
    "SceneCfg",
    "SceneEntityCfg",
    "TerminationTermCfg",
    "TorchEnv",
    "UniformNoiseCfg",
    "mdp",
    "reads",
    "writes",
]
