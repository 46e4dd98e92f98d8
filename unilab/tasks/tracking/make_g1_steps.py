"""Makes ``motions/g1_steps.npz``: G1 squats, shifts its weight and steps in place.

    python -m unilab.tasks.tracking.make_g1_steps [FILE]

Pelvis and feet follow smooth paths; the legs' joints follow from them by inverse kinematics. The
motion is slow enough to stand: while a foot is in the air, the centre of mass is over the other.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mujoco
import numpy as np

from unilab.envs.motion import Motion
from unilab.tasks.robots import model_path

PATH = Path(__file__).parent / "motions" / "g1_steps.npz"
FPS = 50.0
SIDES = ("left", "right")


def make_motion() -> Motion:
    """Nine and a half seconds from the home pose and back: a squat, then two steps in place."""
    model = mujoco.MjModel.from_xml_path(str(model_path("g1")))
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_kinematics(model, data)
    feet = [model.body(f"{side}_ankle_roll_link").id for side in SIDES]
    stand = data.xpos[feet].copy()
    data.qpos[2] -= stand[:, 2].mean() - 0.035  # soles on the ground
    stand[:, 2] = 0.035
    home = data.qpos.copy()
    frames: list[np.ndarray] = []
    for t in np.arange(0.0, 9.4 + 0.5 / FPS, 1.0 / FPS):
        squat = _rise(t, 0.5, 1.6) - _rise(t, 2.0, 3.1)
        # Weight on the left foot, on the right foot and back on both.
        weight = _rise(t, 3.3, 4.5) - 2.0 * _rise(t, 5.3, 7.1) + _rise(t, 7.9, 9.1)
        lifts = {"left": _bump(t, 7.1, 7.9), "right": _bump(t, 4.5, 5.3)}
        data.qpos[:] = home
        data.qpos[:3] += (-0.02 * squat, 0.125 * weight, -0.16 * squat - 0.015 * abs(weight))
        foot_paths = stand + [(0.0, 0.0, 0.08 * lifts[side]) for side in SIDES]
        for side in SIDES:
            other = lifts["right" if side == "left" else "left"]
            data.joint(f"{side}_shoulder_pitch_joint").qpos += (
                -0.9 * squat - 0.5 * other + 0.35 * lifts[side]
            )
            data.joint(f"{side}_elbow_joint").qpos += 0.3 * squat + 0.3 * other
        data.joint("waist_pitch_joint").qpos += 0.12 * squat
        if frames:  # near the solution already
            for side in SIDES:
                legs = _leg(model, side)
                data.qpos[legs] = frames[-1][legs]
        for side, foot, path in zip(SIDES, feet, foot_paths, strict=True):
            _place(model, data, side, foot, path)
        frames.append(data.qpos.copy())
    return Motion.from_qpos(model, np.stack(frames), FPS)


def _rise(t: float, start: float, end: float) -> float:
    """0 before, 1 after, with continuous accelerations (minimum jerk)."""
    s = min(max((t - start) / (end - start), 0.0), 1.0)
    return s**3 * (10.0 - 15.0 * s + 6.0 * s * s)


def _bump(t: float, start: float, end: float) -> float:
    """0 before and after, 1 in the middle."""
    middle = 0.5 * (start + end)
    return _rise(t, start, middle) - _rise(t, middle, end)


def _leg(model: mujoco.MjModel, side: str) -> np.ndarray:
    """Columns of the leg's six joints in qpos."""
    first = model.joint(f"{side}_hip_pitch_joint").qposadr[0]
    return np.arange(first, first + 6)


def _place(
    model: mujoco.MjModel, data: mujoco.MjData, side: str, foot: int, path: np.ndarray
) -> None:
    """Move the leg so that the foot is at ``path``, level and pointing forward (Newton)."""
    legs, jac, turn = _leg(model, side), np.zeros((6, model.nv)), np.zeros(3)
    for _ in range(30):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mju_quat2Vel(turn, data.xquat[foot], 1.0)
        error = np.concatenate((path - data.xpos[foot], -turn))
        if np.abs(error).max() < 1e-8:
            return
        mujoco.mj_jacBody(model, data, jac[:3], jac[3:], foot)
        columns = jac[:, legs - 1]  # the free joint has one velocity less than positions
        data.qpos[legs] += np.linalg.solve(columns, error)
    raise ValueError(f"the {side} foot cannot reach {path}")


if __name__ == "__main__":
    make_motion().save(sys.argv[1] if len(sys.argv) > 1 else PATH)
