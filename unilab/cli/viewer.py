"""MuJoCo's own viewer on the first robot, in real time."""

from __future__ import annotations

import sys
import time
import warnings

import mujoco

from unilab.cli.pictures import mj_model, views
from unilab.cli.runs import RobotEnv
from unilab.errors import CapabilityError
from unilab.record.renderer import draw_arrows, follow_root

__all__ = ["LiveViewer"]


class LiveViewer:
    """A window that follows the first robot of an environment.

    Args:
        env: the environment.

    Raises:
        CapabilityError: there is no display to open a window on.
    """

    def __init__(self, env: RobotEnv) -> None:
        _require_display()
        import mujoco.viewer

        self._env = env
        self._model = mj_model(env)
        self._data = mujoco.MjData(self._model)
        try:
            self._window = mujoco.viewer.launch_passive(
                self._model, self._data, show_left_ui=False, show_right_ui=False
            )
        except RuntimeError as error:
            raise CapabilityError(f"MuJoCo's viewer does not open: {error}") from error
        with self._window.lock():
            follow_root(self._model, self._window.cam)
        self._due = time.monotonic()

    def show(self) -> bool:
        """Shows the robot as it is now, at the pace of the simulated time.

        Returns:
            False once the window was closed.
        """
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
        """Closes the window."""
        self._window.close()


def _require_display() -> None:
    """The viewer's thread would wait for ever for a window that cannot open."""
    import glfw

    if sys.platform == "darwin":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = glfw.init()
    if not opened:
        raise CapabilityError(
            "--viewer needs a display, and this machine offers none (DISPLAY and WAYLAND_DISPLAY "
            "say which): log in with one, or use --video out.mp4"
        )
