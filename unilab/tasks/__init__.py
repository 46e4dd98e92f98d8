"""The packaged tasks: one folder a family, one readable file a task.

Each entry is ``module:function``, imported when the task is used. The function returns the task's
config; the first line of its docstring describes the task.
"""

TASKS = {
    "arm_reach": "unilab.tasks.reach.arm:arm_reach",
    "cartpole_swingup": "unilab.tasks.classic.cartpole_swingup:cartpole_swingup",
    "g1_motion_tracking": "unilab.tasks.tracking.g1:g1_motion_tracking",
    "g1_motion_tracking_deploy": "unilab.tasks.tracking.g1:g1_motion_tracking_deploy",
    "g1_velocity_flat": "unilab.tasks.velocity.g1:g1_velocity_flat",
    "g1_velocity_rough": "unilab.tasks.velocity.g1:g1_velocity_rough",
    "go2_getup": "unilab.tasks.getup.go2:go2_getup",
    "go2_velocity_flat": "unilab.tasks.velocity.go2:go2_velocity_flat",
    "go2_velocity_rough": "unilab.tasks.velocity.go2:go2_velocity_rough",
    "pendulum_swingup": "unilab.tasks.classic.pendulum_swingup:pendulum_swingup",
}
"""Tasks of unilab."""

SUITE_TASKS = {
    "dmc/cartpole-balance": "unilab.tasks.suites.dmc.cartpole:balance",
    "dmc/cartpole-balance_sparse": "unilab.tasks.suites.dmc.cartpole:balance_sparse",
    "dmc/cartpole-swingup": "unilab.tasks.suites.dmc.cartpole:swingup",
    "dmc/cartpole-swingup_sparse": "unilab.tasks.suites.dmc.cartpole:swingup_sparse",
    "dmc/cheetah-run": "unilab.tasks.suites.dmc.cheetah:run",
    "dmc/dog-run": "unilab.tasks.suites.dmc.dog:run",
    "dmc/dog-stand": "unilab.tasks.suites.dmc.dog:stand",
    "dmc/dog-trot": "unilab.tasks.suites.dmc.dog:trot",
    "dmc/dog-walk": "unilab.tasks.suites.dmc.dog:walk",
    "dmc/humanoid-run": "unilab.tasks.suites.dmc.humanoid:run",
    "dmc/humanoid-stand": "unilab.tasks.suites.dmc.humanoid:stand",
    "dmc/humanoid-walk": "unilab.tasks.suites.dmc.humanoid:walk",
    "dmc/pendulum-swingup": "unilab.tasks.suites.dmc.pendulum:swingup",
    "dmc/quadruped-run": "unilab.tasks.suites.dmc.quadruped:run",
    "dmc/quadruped-walk": "unilab.tasks.suites.dmc.quadruped:walk",
    "dmc/walker-run": "unilab.tasks.suites.dmc.walker:run",
    "dmc/walker-stand": "unilab.tasks.suites.dmc.walker:stand",
    "dmc/walker-walk": "unilab.tasks.suites.dmc.walker:walk",
    "gym/Ant-v4": "unilab.tasks.suites.gym.v4:ant_v4",
    "gym/Ant-v5": "unilab.tasks.suites.gym.ant_v5:ant_v5",
    "gym/HalfCheetah-v4": "unilab.tasks.suites.gym.v4:half_cheetah_v4",
    "gym/HalfCheetah-v5": "unilab.tasks.suites.gym.planar_v5:half_cheetah_v5",
    "gym/Hopper-v4": "unilab.tasks.suites.gym.v4:hopper_v4",
    "gym/Hopper-v5": "unilab.tasks.suites.gym.planar_v5:hopper_v5",
    "gym/Humanoid-v4": "unilab.tasks.suites.gym.v4:humanoid_v4",
    "gym/Humanoid-v5": "unilab.tasks.suites.gym.humanoid_v5:humanoid_v5",
    "gym/Walker2d-v4": "unilab.tasks.suites.gym.v4:walker2d_v4",
    "gym/Walker2d-v5": "unilab.tasks.suites.gym.planar_v5:walker2d_v5",
}
"""Tasks of other suites, which read their models from an installation of the suite."""

SUITES = {"dmc": "dm_control", "gym": "gymnasium"}
"""Package of each suite, by the first part of its tasks' names, which is also unilab's extra."""
