"""Environments: TorchRL ``EnvBase`` over a physics backend, assembled from tables of terms."""

from unilab.envs import managers, mdp
from unilab.envs.entity import EntityCfg, SceneEntityCfg
from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv, ManagerBasedRlEnvCfg
from unilab.envs.managers import *
from unilab.envs.nan_guard import NanGuardCfg
from unilab.envs.scene import EntityScene, SceneCfg
from unilab.envs.torch_env import TorchEnv

__all__ = [
    "EntityCfg",
    "EntityScene",
    "ManagerBasedRlEnv",
    "ManagerBasedRlEnvCfg",
    "NanGuardCfg",
    "SceneCfg",
    "SceneEntityCfg",
    "TorchEnv",
    "mdp",
]
__all__ += managers.__all__
