"""MDP terms: functions of the environment's tensors that a task names in its tables."""

from unilab.envs.managers.action import JointEffortActionCfg as JointEffortActionCfg
from unilab.envs.managers.action import JointPositionActionCfg as JointPositionActionCfg
from unilab.envs.managers.action import JointVelocityActionCfg as JointVelocityActionCfg
from unilab.envs.managers.action import (
    RelativeJointPositionActionCfg as RelativeJointPositionActionCfg,
)
from unilab.envs.mdp.commands import *
from unilab.envs.mdp.contacts import *
from unilab.envs.mdp.curriculums import *
from unilab.envs.mdp.events import *
from unilab.envs.mdp.motion_command import *
from unilab.envs.mdp.observations import *
from unilab.envs.mdp.randomization import *
from unilab.envs.mdp.rays import *
from unilab.envs.mdp.rewards import *
from unilab.envs.mdp.terminations import *
from unilab.envs.mdp.tracking import *
