"""Environments: TorchRL ``EnvBase`` over a physics backend, assembled from tables of terms."""

from unilab.envs import mdp as mdp
from unilab.envs import terrains as terrains
from unilab.envs.actuators import DCMotorCfg as DCMotorCfg
from unilab.envs.actuators import IdealPDActuatorCfg as IdealPDActuatorCfg
from unilab.envs.entity import EntityCfg as EntityCfg
from unilab.envs.entity import SceneEntityCfg as SceneEntityCfg
from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv as ManagerBasedRlEnv
from unilab.envs.manager_based_rl_env import ManagerBasedRlEnvCfg as ManagerBasedRlEnvCfg
from unilab.envs.managers.action import ActionTermCfg as ActionTermCfg
from unilab.envs.managers.action import JointEffortActionCfg as JointEffortActionCfg
from unilab.envs.managers.action import JointPositionActionCfg as JointPositionActionCfg
from unilab.envs.managers.action import JointVelocityActionCfg as JointVelocityActionCfg
from unilab.envs.managers.action import (
    RelativeJointPositionActionCfg as RelativeJointPositionActionCfg,
)
from unilab.envs.managers.command import CommandTerm as CommandTerm
from unilab.envs.managers.command import CommandTermCfg as CommandTermCfg
from unilab.envs.managers.curriculum import CurriculumTermCfg as CurriculumTermCfg
from unilab.envs.managers.event import EventTermCfg as EventTermCfg
from unilab.envs.managers.metrics import MetricsTermCfg as MetricsTermCfg
from unilab.envs.managers.observation import GaussianNoiseCfg as GaussianNoiseCfg
from unilab.envs.managers.observation import ObservationGroupCfg as ObservationGroupCfg
from unilab.envs.managers.observation import ObservationTermCfg as ObservationTermCfg
from unilab.envs.managers.observation import UniformNoiseCfg as UniformNoiseCfg
from unilab.envs.managers.recorder import RecorderTermCfg as RecorderTermCfg
from unilab.envs.managers.recorder import RecordingCfg as RecordingCfg
from unilab.envs.managers.reward import RewardTermCfg as RewardTermCfg
from unilab.envs.managers.term import ManagerTermBase as ManagerTermBase
from unilab.envs.managers.term import reads as reads
from unilab.envs.managers.term import writes as writes
from unilab.envs.managers.termination import TerminationTermCfg as TerminationTermCfg
from unilab.envs.mirror_check import checked_mirror as checked_mirror
from unilab.envs.nan_guard import NanGuardCfg as NanGuardCfg
from unilab.envs.scene import EntityScene as EntityScene
from unilab.envs.scene import SceneCfg as SceneCfg
from unilab.envs.scene_model import scene_model as scene_model
from unilab.envs.sensors import ContactMatch as ContactMatch
from unilab.envs.sensors import ContactSensorCfg as ContactSensorCfg
from unilab.envs.terrains import TerrainGeneratorCfg as TerrainGeneratorCfg
from unilab.envs.torch_env import TorchEnv as TorchEnv
