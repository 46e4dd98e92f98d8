"""Gymnasium's v4 tasks as they were on MuJoCo 3.3.3, from reference/record_gym_v4.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unilab

pytest.importorskip("gymnasium", reason="needs Gymnasium: pip install 'unilab-torchrl[gym]'")

# Observations and rewards are float32. Of a free body MuJoCo 4 integrates the rotation with fourth
# order, and 3.3.3 did with second order; PGS, the humanoid's solver, also stops elsewhere.
EXACT = {"rtol": 1e-6, "atol": 1e-6}
FREE = {"rtol": 1e-3, "atol": 5e-3}
TOLERANCE = {
    "HalfCheetah-v4": EXACT,
    "Hopper-v4": EXACT,
    "Walker2d-v4": EXACT,
    "Ant-v4": FREE,
    "Humanoid-v4": FREE,
}
# Steps after which rollouts are compared. Where robots touch the ground, differences grow from
# step to step: 1e-6 in the ant's first velocity is 3 after 100 steps of MuJoCo 3.3.3.
COMPARED = {
    "HalfCheetah-v4": (10, 50),
    "Hopper-v4": (10, 50, 100),
    "Walker2d-v4": (10, 50, 100),
    "Ant-v4": (10,),
    "Humanoid-v4": (10,),
}

Arrays = dict[str, np.ndarray]


def recorded(task: str, part: str) -> Arrays:
    with np.load(Path(__file__).with_name("gym_v4.npz")) as file:
        prefix = f"{task}/{part}/"
        return {name.removeprefix(prefix): file[name] for name in file if name.startswith(prefix)}


def results(task: str, qpos: np.ndarray, qvel: np.ndarray, actions: np.ndarray) -> list[Arrays]:
    """What steps from states ``[n, width]`` give, under actions ``[steps, n, nu]``."""
    n = len(qpos)
    env = unilab.make(f"gym/{task}", num_envs=n, seed=0, overrides={"num_threads": 1})
    root, steps = env.reset(), []
    states = (torch.from_numpy(state).double() for state in (qpos, qvel))
    env.backend.set_state_tensor(torch.arange(n), *states)
    for action in actions:
        after = env.step(root.set("action", torch.from_numpy(action)))["next"]
        steps.append({k: after[k].squeeze(-1).numpy() for k in ("obs", "reward", "terminated")})
        root = after.exclude("reward")
    env.close()
    return steps


@pytest.mark.parametrize("task", TOLERANCE)
def test_a_control_step_gives_what_it_gave_on_mujoco_3(task: str) -> None:
    then = recorded(task, "step")
    (now,) = results(task, then["qpos"], then["qvel"], then["action"][None])
    np.testing.assert_allclose(now["obs"], then["obs"], **TOLERANCE[task])
    np.testing.assert_allclose(now["reward"], then["reward"], **TOLERANCE[task])
    assert np.array_equal(now["terminated"], then["terminated"])
    assert then["terminated"].any() == ("HalfCheetah" not in task)


@pytest.mark.parametrize("task", TOLERANCE)
def test_a_rollout_gives_what_it_gave_on_mujoco_3(task: str) -> None:
    then, compared = recorded(task, "rollout"), COMPARED[task]
    actions = then["action"][: compared[-1], None]
    now = results(task, then["qpos"][None], then["qvel"][None], actions)
    obs = np.stack([now[step - 1]["obs"][0] for step in compared])
    np.testing.assert_allclose(obs, then["obs"][: len(compared)], **TOLERANCE[task])
    reward = np.concatenate([step["reward"] for step in now])
    np.testing.assert_allclose(reward, then["reward"][: len(now)], **TOLERANCE[task])
    terminated = np.concatenate([step["terminated"] for step in now])
    assert np.array_equal(terminated, then["terminated"][: len(now)])
