"""Records Gymnasium's v4 tasks on MuJoCo 3.3.3, in a Python of its own:

    pip install mujoco==3.3.3 gymnasium==1.4.0 imageio packaging
    python tests/reference/record_gym_v4.py tests/tasks/gym_v4.npz

Arrays by ``<task>/<part>/<name>``. Part ``step``: the state before a control step (qpos, qvel), its
action, and what it gave, for every 4th of 100 steps in a row. Part ``rollout``: the first state,
100 actions and what they gave, with the observations after 10, 50 and 100 steps.
"""

from __future__ import annotations

import sys

import gymnasium
import mujoco
import numpy as np

TASKS = ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4", "Humanoid-v4")
STEPS = 100
OBSERVED = (10, 50, 100)

Record = dict[str, np.ndarray]


def begin(env, qpos: np.ndarray, qvel: np.ndarray) -> None:
    """Begin in a state, also of what physics keeps beside it."""
    mujoco.mj_resetData(env.model, env.data)
    env.set_state(qpos.astype(float), qvel.astype(float))


def record(name: str) -> dict[str, Record]:
    """A task's steps and rollout. Episodes continue after the robot has fallen."""
    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    space, draw = env.action_space, np.random.default_rng(0)
    actions = draw.uniform(space.low, space.high, (STEPS, *space.shape)).astype(np.float32)
    qpos, qvel = (state.astype(np.float32) for state in (env.data.qpos, env.data.qvel))

    begin(env, qpos, qvel)
    obs, reward, terminated = zip(*(env.step(action)[:3] for action in actions), strict=True)
    rollout = {"qpos": qpos, "qvel": qvel, "action": actions, "reward": reward}
    rollout |= {"terminated": terminated, "obs": [obs[step - 1] for step in OBSERVED]}

    steps = []
    for action in actions:
        begin(env, qpos, qvel)
        obs, reward, terminated, *_ = env.step(action)
        steps.append((qpos, qvel, action, obs, reward, terminated))
        qpos, qvel = (state.astype(np.float32) for state in (env.data.qpos, env.data.qvel))
    names = ("qpos", "qvel", "action", "obs", "reward", "terminated")
    step = dict(zip(names, zip(*steps[::4], strict=True), strict=True))
    return {"step": step, "rollout": rollout}


def flat(recorded: dict[str, dict[str, Record]]) -> Record:
    """Float64 is kept as float32, which is what unilab's environments give."""
    arrays = {}
    for task, parts in recorded.items():
        for part, values in parts.items():
            for name, value in values.items():
                array = np.asarray(value)
                kind = np.float32 if array.dtype == np.float64 else array.dtype
                arrays[f"{task}/{part}/{name}"] = array.astype(kind)
    return arrays


if __name__ == "__main__":
    assert mujoco.__version__ == "3.3.3", mujoco.__version__
    np.savez_compressed(sys.argv[1], **flat({name: record(name) for name in TASKS}))
