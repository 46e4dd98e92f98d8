"""Robots on screen: command and velocity arrows for videos, and MuJoCo's viewer."""

from __future__ import annotations

import math
import sys
import time
import warnings
from typing import Any

import mujoco
import numpy as np
import torch

from unilab.backends import MujocoBackend
from unilab.backends.base import JointInfo
from unilab.cli.runs import RobotEnv
from unilab.envs import ManagerBasedRlEnv, mdp
from unilab.envs.rotations import heading, rotate_inverse
from unilab.errors import CapabilityError
from unilab.record.renderer import Arrow, View, draw_arrows, follow_root

_COMMANDED = (0.1, 0.75, 0.2, 1.0)
_ACTUAL = (0.15, 0.35, 0.95, 1.0)
# Arrows hang above the root, half a metre long for 1 m/s.
_ABOVE, _LENGTH, _SHORTEST = 0.35, 0.5, 0.05


def mj_model(env: RobotEnv) -> mujoco.MjModel:
    """The MuJoCo model of an environment."""
    if not isinstance(env.backend, MujocoBackend):
        raise CapabilityError(
            f"MuJoCo draws pictures, but this task runs on {type(env.backend).__name__}: "
            "play it without --video and --viewer"
        )
    return env.backend.mj_model


def views(env: RobotEnv, rows: int) -> list[View]:
    """Poses, arrows and titles of the first robots of an environment.

    A robot with a free root that follows a planar velocity gets two arrows: green for the command,
    blue for its own velocity; the title has their numbers (forward, left in m/s, yaw in rad/s), and
    on a terrain the kind and the level of the tile where it started.
    """
    state = env.backend.get_state_views()
    qpos = state["qpos"][:rows]
    titles = [
        [f"robot {i}   {seconds:.1f} s"]
        for i, seconds in enumerate((env.episode_length[:rows] * env.step_dt).tolist())
    ]
    terrain = env.scene.terrain if isinstance(env, ManagerBasedRlEnv) else None
    if terrain is not None:
        for i, title in enumerate(titles):
            title.append(f"{terrain.kinds[int(terrain.types[i])]}, level {int(terrain.levels[i])}")
    arrows: list[list[Arrow]] = [[] for _ in range(rows)]
    commands, roots = _commands(env, rows)
    if commands and roots:
        pose, velocity = qpos[:, roots[0].qpos], state["qvel"][:rows, roots[0].qvel]
        own = torch.cat((rotate_inverse(pose[:, 3:], velocity[:, :3])[:, :2], velocity[:, 5:]), 1)
        for i in range(rows):
            command, actual = commands[0][i].tolist(), own[i].tolist()
            titles[i] += [
                "command {:+.2f} {:+.2f} {:+.2f}".format(*command),
                "actual  {:+.2f} {:+.2f} {:+.2f}".format(*actual),
            ]
            for value, colour, height in ((command, _COMMANDED, 0.06), (actual, _ACTUAL, 0.0)):
                arrows[i] += _arrow(pose[i], value, _ABOVE + height, colour)
    return [
        View(qpos=qpos[i].numpy().copy(), arrows=arrows[i], title="\n".join(titles[i]))
        for i in range(rows)
    ]


def _commands(env: RobotEnv, rows: int) -> tuple[list[torch.Tensor], list[JointInfo]]:
    """Commanded planar velocities ``[rows, 3]``, and the free joints of the robots."""
    if not isinstance(env, ManagerBasedRlEnv):
        return [], []
    commands = [
        term.command[:rows].double().cpu()
        for term in env.command_manager.terms.values()
        if isinstance(term, mdp.UniformVelocityCommand)
    ]
    roots = [e.root_joint for e in env.scene.entities.values() if e.root_joint is not None]
    return commands, roots


def _arrow(pose: Any, planar: list[float], height: float, colour: Any) -> list[Arrow]:
    """A planar velocity in the root's frame as an arrow above the root; empty if it is tiny."""
    forward, left = planar[:2]
    if math.hypot(forward, left) < _SHORTEST:
        return []
    yaw = float(heading(pose[None, 3:]))
    cos, sin = math.cos(yaw), math.sin(yaw)
    vector = np.array([cos * forward - sin * left, sin * forward + cos * left, 0.0])
    start = pose[:3].numpy() + np.array([0.0, 0.0, height])
    return [Arrow(start, _LENGTH * vector, colour)]


class LiveViewer:
    """MuJoCo's viewer on the first robot of an environment, in real time."""

    def __init__(self, env: RobotEnv) -> None:
        from mujoco import viewer

        _require_display()

        self._env = env
        self._model = mj_model(env)
        self._data = mujoco.MjData(self._model)
        try:
            self._window = viewer.launch_passive(
                self._model, self._data, show_left_ui=False, show_right_ui=False
            )
        except RuntimeError as error:
            raise CapabilityError(f"MuJoCo's viewer does not open: {error}") from error
        with self._window.lock():
            follow_root(self._model, self._window.cam)
        self._due = time.monotonic()

    def show(self) -> bool:
        """Show the robot and wait for real time to catch up; False once the window is closed."""
        if not self._window.is_running():
            return False
        (view,) = views(self._env, 1)
        with self._window.lock():
            self._data.qpos[:] = view.qpos
            mujoco.mj_forward(self._model, self._data)
            self._window.user_scn.ngeom = 0
            draw_arrows(self._window.user_scn, view.arrows)
        corner = int(mujoco.mjtGridPos.mjGRID_TOPLEFT)
        self._window.set_texts((None, corner, view.title, ""))
        self._window.sync()
        self._due = max(self._due + self._env.step_dt, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))
        return True

    def close(self) -> None:
        """Close the window."""
        self._window.close()


def _require_display() -> None:
    # Without a display the viewer's thread waits forever.
    import glfw

    if sys.platform == "darwin":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = glfw.init()
    if not opened:
        raise CapabilityError(
            "--viewer needs a display, which DISPLAY or WAYLAND_DISPLAY names: use --video out.mp4"
        )
