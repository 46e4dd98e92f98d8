"""Off-screen rendering of many copies of one MuJoCo model, side by side in one frame."""

from __future__ import annotations

import ctypes.util
import importlib
import math
import os
import sys
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from unilab.errors import CapabilityError, ConfigError, first_line
from unilab.markers import Arrow, Ghost, Marker

_ALL = int(mujoco.mjtCatBit.mjCAT_ALL)
_SEEN = 14.0
"""Side of the part of a height field that is drawn, m."""
_OPENGL_HELP = (
    "off-screen rendering needs OpenGL without a window. Debian and Ubuntu: apt-get install "
    "libegl1 libopengl0 libgl1-mesa-dri (EGL; enough without a GPU too), or libosmesa6 and "
    "MUJOCO_GL=osmesa. With an NVIDIA GPU in a container: NVIDIA_DRIVER_CAPABILITIES=all"
)


@dataclass(frozen=True)
class View:
    """One robot's tile of a frame."""

    qpos: np.ndarray
    markers: Sequence[Marker] = ()
    title: str = ""
    """Lines in the tile's corner."""


class TiledRenderer:
    """Renders each state of a model in a separate tile, with a camera that follows the robot.

    The camera is the model's ``track``, or else MuJoCo's default view tracking the first body with
    a free joint. Of a height field, pictures show what is near the robot. On a CPU they have no
    anti-aliasing and coarser shadows.

    Args:
        model: the compiled model; it is not changed.
        tiles: states in a frame.
        width, height: pixels of the frame.
    """

    def __init__(self, model: mujoco.MjModel, *, tiles: int, width: int, height: int) -> None:
        columns = math.ceil(math.sqrt(tiles))
        rows = math.ceil(tiles / columns)
        if width // columns < 64 or height // rows < 64:
            raise ConfigError(
                f"each of {tiles} tiles must have at least 64x64 pixels, got a frame of "
                f"{width}x{height}: enlarge it"
            )
        self.width, self.height = width, height
        self._tiles = _grid(tiles, columns, rows, width, height)
        self._context = offscreen_context(width, height)
        self._model = copy(model)
        quality, size = self._model.vis.quality, self._model.vis.global_
        size.offwidth, size.offheight = width, height
        if _renders_on_cpu():
            quality.offsamples = 0
            quality.shadowsize = min(quality.shadowsize, 1024)
        fields = self._model.geom_type == int(mujoco.mjtGeom.mjGEOM_HFIELD)
        self._ground = _Ground(self._model) if fields.any() else None
        self._data = mujoco.MjData(self._model)
        self._scene = mujoco.MjvScene(self._model, maxgeom=2 * self._model.ngeom + 1000)
        self._option = mujoco.MjvOption()
        self._camera = _camera(self._model)
        root = _free_joint(model)
        at = 0 if root is None else int(model.jnt_qposadr[root])
        self._planar = slice(at, at if root is None else at + 2)
        try:
            self._gpu = mujoco.MjrContext(self._model, int(mujoco.mjtFontScale.mjFONTSCALE_100))
        except mujoco.FatalError as error:
            self._context.free()
            raise ConfigError(
                f"a frame of {width}x{height} pixels cannot be rendered here ({error}): choose a "
                "smaller one"
            ) from error
        mujoco.mjr_setBuffer(int(mujoco.mjtFramebuffer.mjFB_OFFSCREEN), self._gpu)

    def draw(self, views: Sequence[View]) -> np.ndarray:
        """One frame ``[height, width, 3]`` uint8 of as many views as there are tiles."""
        whole = mujoco.MjrRect(0, 0, self.width, self.height)
        mujoco.mjr_rectangle(whole, 0.1, 0.1, 0.1, 1.0)
        for view, tile in zip(views, self._tiles, strict=True):
            self._data.qpos[:] = view.qpos
            if self._ground is not None:
                self._ground.show(*view.qpos[self._planar])
                mujoco.mjr_uploadHField(self._model, self._gpu, 0)
            mujoco.mj_forward(self._model, self._data)
            self._light()
            mujoco.mjv_updateScene(
                self._model, self._data, self._option, None, self._camera, _ALL, self._scene
            )
            draw_markers(self._scene, self._model, view.markers)
            mujoco.mjr_render(tile, self._scene, self._gpu)
            if view.title:
                mujoco.mjr_overlay(
                    int(mujoco.mjtFont.mjFONT_NORMAL),
                    int(mujoco.mjtGridPos.mjGRID_TOPLEFT),
                    tile,
                    view.title,
                    "",
                    self._gpu,
                )
        frame = np.empty((self.height, self.width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(frame, None, whole, self._gpu)
        # OpenGL counts rows from the bottom.
        return np.ascontiguousarray(frame[::-1])

    def _light(self) -> None:
        """World-fixed lights follow the robot."""
        travelled = self._data.qpos[self._planar] - self._model.qpos0[self._planar]
        if travelled.size:
            self._data.light_xpos[self._model.light_bodyid == 0, :2] += travelled

    def close(self) -> None:
        """Frees the OpenGL context."""
        self._gpu.free()
        self._context.free()


class _Ground:
    """The part of a model's height field near the robot: the whole takes seconds to draw."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        rows, columns = int(model.hfield_nrow[0]), int(model.hfield_ncol[0])
        self._heights = model.hfield_data[: rows * columns].reshape(rows, columns).copy()
        self._cell = 2.0 * model.hfield_size[0, :2] / (columns - 1, rows - 1)
        on_field = model.geom_type == int(mujoco.mjtGeom.mjGEOM_HFIELD)
        self._geom = int(np.flatnonzero(on_field & (model.geom_dataid == 0))[0])
        self._first = model.geom_pos[self._geom, :2] - model.hfield_size[0, :2]
        self._shown = [
            min(n, round(_SEEN / cell) + 1)
            for n, cell in zip((columns, rows), self._cell, strict=True)
        ]
        model.hfield_ncol[0], model.hfield_nrow[0] = self._shown
        model.hfield_size[0, :2] = 0.5 * self._cell * (np.array(self._shown) - 1)
        model.geom_sameframe[self._geom] = 0  # or MuJoCo ignores the position

    def show(self, x: float, y: float) -> None:
        """Move the part to the middle of the robot."""
        columns, rows = self._shown
        at = np.round(((x, y) - self._first) / self._cell).astype(int) - (columns // 2, rows // 2)
        column, row = np.clip(at, 0, np.array(self._heights.shape)[::-1] - self._shown)
        part = self._heights[row : row + rows, column : column + columns]
        self._model.hfield_data[: part.size] = part.ravel()
        middle = self._first + self._cell * (column, row) + self._model.hfield_size[0, :2]
        self._model.geom_pos[self._geom, :2] = middle


def draw_markers(scene: mujoco.MjvScene, model: mujoco.MjModel, markers: Sequence[Marker]) -> None:
    """Appends markers to a scene, as far as it has room."""
    for marker in markers:
        if isinstance(marker, Ghost):
            _draw_ghost(scene, model, marker)
            continue
        if scene.ngeom == scene.maxgeom:
            break
        geom, arrow = scene.geoms[scene.ngeom], isinstance(marker, Arrow)
        kind = int(mujoco.mjtGeom.mjGEOM_ARROW if arrow else mujoco.mjtGeom.mjGEOM_SPHERE)
        size, pos = np.zeros(3), np.zeros(3)
        if not isinstance(marker, Arrow):
            size[:], pos[:] = marker.radius, marker.centre
        rgba = np.array(marker.rgba, dtype=np.float32)
        mujoco.mjv_initGeom(geom, kind, size, pos, np.eye(3).ravel(), rgba)
        if isinstance(marker, Arrow):
            start = np.asarray(marker.start, dtype=np.float64)
            mujoco.mjv_connector(geom, kind, marker.width, start, start + marker.vector)
        scene.ngeom += 1


def _draw_ghost(scene: mujoco.MjvScene, model: mujoco.MjModel, ghost: Ghost) -> None:
    data, first = mujoco.MjData(model), scene.ngeom
    data.qpos[:] = ghost.qpos
    mujoco.mj_kinematics(model, data)
    moving = int(mujoco.mjtCatBit.mjCAT_DYNAMIC)
    mujoco.mjv_addGeoms(model, data, mujoco.MjvOption(), mujoco.MjvPerturb(), moving, scene)
    for geom in scene.geoms[first : scene.ngeom]:
        geom.rgba[:] = ghost.rgba


def follow_root(model: mujoco.MjModel, camera: mujoco.MjvCamera) -> None:
    """Makes a camera track the first body with a free joint, if the model has one."""
    root = _free_joint(model)
    if root is not None:
        camera.type = int(mujoco.mjtCamera.mjCAMERA_TRACKING)
        camera.trackbodyid = int(model.jnt_bodyid[root])


def offscreen_context(width: int, height: int) -> Any:
    """A current OpenGL context to render into, by EGL, OSMesa or ``MUJOCO_GL``."""
    platform = _opengl_platform()
    try:
        # Not mujoco.GLContext: it was chosen when mujoco was imported, and needs a window system
        # without MUJOCO_GL.
        if platform == "glfw":
            with warnings.catch_warnings(action="error"):  # it only warns if there is no display
                importlib.import_module("glfw").init()
        context = importlib.import_module(f"mujoco.{platform}").GLContext(width, height)
        context.make_current()
    except Exception as error:  # PyOpenGL raises AttributeError, ... where a library is missing
        raise CapabilityError(
            f"no OpenGL context by {platform} ({first_line(error)}): {_OPENGL_HELP}"
        ) from error
    return context


def _opengl_platform() -> str:
    asked = os.environ.get("MUJOCO_GL", "").strip().lower()
    if asked in ("egl", "osmesa", "glfw", "cgl"):
        return asked
    if sys.platform != "linux":
        return "cgl" if sys.platform == "darwin" else "glfw"
    # PyOpenGL takes one platform for the whole process, so it is chosen without trying.
    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            return name
    raise CapabilityError(f"neither libEGL nor libOSMesa is installed: {_OPENGL_HELP}")


def _renders_on_cpu() -> bool:
    from OpenGL import GL

    renderer = (GL.glGetString(GL.GL_RENDERER) or b"").decode().lower()
    return any(name in renderer for name in ("llvmpipe", "softpipe", "swrast", "swr"))


def _grid(tiles: int, columns: int, rows: int, width: int, height: int) -> list[mujoco.MjrRect]:
    """Rectangles from left to right and top to bottom, with a line of background between them."""
    wide, high, gap = width // columns, height // rows, 2
    return [
        mujoco.MjrRect(
            (i % columns) * wide,
            height - (i // columns + 1) * high,
            wide - (gap if columns > 1 else 0),
            high - (gap if rows > 1 else 0),
        )
        for i in range(tiles)
    ]


def _camera(model: mujoco.MjModel) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    own = mujoco.mj_name2id(model, int(mujoco.mjtObj.mjOBJ_CAMERA), "track")
    if own >= 0:
        camera.type, camera.fixedcamid = int(mujoco.mjtCamera.mjCAMERA_FIXED), own
        return camera
    mujoco.mjv_defaultFreeCamera(model, camera)
    follow_root(model, camera)
    return camera


def _free_joint(model: mujoco.MjModel) -> int | None:
    free = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE))
    return int(free[0]) if free.size else None
