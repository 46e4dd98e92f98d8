"""Robots on screen: poses, markers and titles for videos, and MuJoCo's viewer."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence

import mujoco
import torch

from unilab.backends import MjModelBackend
from unilab.cli.runs import RobotEnv
from unilab.envs import CommandTerm, ManagerBasedRlEnv, mdp
from unilab.errors import CapabilityError
from unilab.markers import Marker
from unilab.record.renderer import View, draw_markers, follow_root


def mj_model(env: RobotEnv) -> mujoco.MjModel:
    """The MuJoCo model of an environment."""
    if not isinstance(env.backend, MjModelBackend):
        raise CapabilityError(
            f"MuJoCo draws pictures, but this task runs on {type(env.backend).__name__}: "
            "play it without --video and --viewer"
        )
    return env.backend.mj_model


def views(env: RobotEnv, rows: int) -> list[View]:
    """Poses, markers and titles of the first robots of an environment.

    The title has the numbers of a velocity command and of the robot's own velocity (forward, left
    in m/s, yaw in rad/s), the errors of other commands, and on a terrain the kind and the level of
    the tile where the robot started.
    """
    qpos = env.backend.get_state_views()["qpos"][:rows].cpu()
    titles = [
        [f"robot {i}   {seconds:.1f} s"]
        for i, seconds in enumerate((env.episode_length[:rows] * env.step_dt).tolist())
    ]
    if not isinstance(env, ManagerBasedRlEnv):
        return _views(qpos, titles, [[]] * rows)
    terrain = env.scene.terrain
    if terrain is not None:
        for i, title in enumerate(titles):
            title.append(f"{terrain.kinds[int(terrain.types[i])]}, level {int(terrain.levels[i])}")
    for term in env.command_manager.terms.values():
        for title, lines in zip(titles, _lines(term, rows), strict=True):
            title += lines
    return _views(qpos, titles, [env.debug_draw(i) for i in range(rows)])


def _views(
    qpos: torch.Tensor, titles: Sequence[list[str]], markers: Sequence[list[Marker]]
) -> list[View]:
    poses = qpos.numpy().copy()
    return [
        View(qpos=pose, markers=own, title="\n".join(title))
        for pose, title, own in zip(poses, titles, markers, strict=True)
    ]


@torch.inference_mode()
def _lines(term: CommandTerm, rows: int) -> list[list[str]]:
    """How each of the first robots follows a command, in lines of a title."""
    if not isinstance(term, mdp.UniformVelocityCommand):
        errors = {name: value[:rows].tolist() for name, value in term.metrics().items()}
        return [[f"{name} {each[i]:.3f}" for name, each in errors.items()] for i in range(rows)]
    return [
        [
            "command {:+.2f} {:+.2f} {:+.2f}".format(*term.command[i].tolist()),
            "actual  {:+.2f} {:+.2f} {:+.2f}".format(*term.actual(i).tolist()),
        ]
        for i in range(rows)
    ]


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
            draw_markers(self._window.user_scn, self._model, view.markers)
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
