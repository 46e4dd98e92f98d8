"""An OpenGL context without a window."""

from __future__ import annotations

import ctypes.util
import importlib
import os
import sys
from typing import Any

from unilab.errors import CapabilityError

__all__ = ["offscreen_context", "renders_in_software"]

_HELP = (
    "off-screen rendering needs OpenGL without a window. Debian and Ubuntu: apt-get install "
    "libegl1 libopengl0 libgl1-mesa-dri (EGL; enough without a GPU too), or libosmesa6 and "
    "MUJOCO_GL=osmesa. With an NVIDIA GPU in a container: NVIDIA_DRIVER_CAPABILITIES=all"
)


def offscreen_context(width: int, height: int) -> Any:
    """A current OpenGL context to render into, by EGL, OSMesa or what ``MUJOCO_GL`` says.

    Args:
        width, height: pixels.

    Raises:
        CapabilityError: the machine offers none; the message names the packages that bring one.
    """
    name = _platform()
    try:
        # Not mujoco.GLContext: which one that is was decided when mujoco was imported, and without
        # MUJOCO_GL it is the one that needs a window system.
        context = importlib.import_module(f"mujoco.{name}").GLContext(width, height)
        context.make_current()
    # PyOpenGL raises AttributeError and others where a library is missing.
    except Exception as error:
        raise CapabilityError(
            f"no OpenGL context by {name} ({_first_line(error)}): {_HELP}"
        ) from error
    return context


def renders_in_software() -> bool:
    """Whether the current context is rendered by the CPU."""
    from OpenGL import GL

    renderer = (GL.glGetString(GL.GL_RENDERER) or b"").decode().lower()
    return any(name in renderer for name in ("llvmpipe", "softpipe", "swrast", "swr"))


def _platform() -> str:
    asked = os.environ.get("MUJOCO_GL", "").strip().lower()
    if asked in ("egl", "osmesa", "glfw", "cgl"):
        return asked
    if sys.platform != "linux":
        return "cgl" if sys.platform == "darwin" else "glfw"
    # PyOpenGL takes one platform for the whole process, so it is chosen without trying.
    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            return name
    raise CapabilityError(f"neither libEGL nor libOSMesa is installed: {_HELP}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
