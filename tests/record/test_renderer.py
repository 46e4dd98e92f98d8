"""Frames with a tile for each robot."""

from __future__ import annotations

import ctypes.util
import os
import sys

import mujoco
import numpy as np
import pytest
from reference.opengl import needs_opengl

from unilab.backends import put_on_height_field
from unilab.errors import CapabilityError, ConfigError
from unilab.markers import Arrow, Ghost, Sphere, axes
from unilab.record.renderer import TiledRenderer, View, offscreen_context
from unilab.tasks.robots import model_path

# Without a camera.
BALL_XML = """
<mujoco>
  <worldbody>
    <light pos="0 0 5"/>
    <geom type="plane" size="0 0 1"/>
    <body name="ball" pos="0 0 1"><freejoint/><geom size="0.3" rgba="1 0 0 1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture
def model():
    return mujoco.MjModel.from_xml_path(str(model_path("go2")))


@pytest.fixture
def draw():
    """Draws one frame of some views."""
    made = []

    def frame(model, views, width=256, height=128):
        made.append(TiledRenderer(model, tiles=len(views), width=width, height=height))
        return made[-1].draw(views)

    yield frame
    for renderer in made:
        renderer.close()


def home(model, x=0.0, y=0.0):
    qpos = model.key("home").qpos.copy()
    qpos[:2] = x, y
    return qpos


def difference(a, b):
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


@needs_opengl
def test_each_tile_shows_its_robot(model, draw):
    upright, lying = home(model), home(model)
    lying[2], lying[3:7] = 0.1, (0.0, 1.0, 0.0, 0.0)
    frame = draw(model, [View(upright), View(lying)])
    left, right = frame[:, :126], frame[:, 128:254]
    assert difference(left, right) > 3.0
    again = draw(model, [View(upright), View(upright)])
    assert difference(again[:, :126], again[:, 128:254]) < 0.5
    assert difference(again[:, :126], left) < 0.5
    sky, floor = left[:10].astype(float).mean((0, 1)), left[-10:].astype(float).mean((0, 1))
    assert sky[2] - sky[0] > 10.0 + abs(floor[2] - floor[0])  # blue above, grey below


@needs_opengl
def test_camera_and_lights_follow_the_robot(model, draw):
    here, far, shifted = (
        draw(model, [View(home(model, x, y))]) for x, y in ((0, 0), (40, -20), (0.5, 0))
    )
    # The floor's squares are 1 m wide, so that 40 m away looks the same and 0.5 m away does not.
    assert difference(here, far) < 4.0
    assert abs(here.mean() - far.mean()) < 2.0
    assert difference(here, shifted) > difference(here, far)


@needs_opengl
def test_ground_near_the_robot_is_drawn_wherever_it_is(draw):
    heights = np.zeros((401, 601))
    for x, y in ((-20, -10), (10, 10)):  # a block ahead of each of two places
        row, column = 200 + 10 * y, 300 + 10 * x
        heights[row - 5 : row + 5, column - 5 : column + 5] = 1.0
    spec = mujoco.MjSpec.from_file(str(model_path("go2")))
    put_on_height_field(spec, heights, 0.1)
    model = spec.compile()
    places = ((-20.0, -11.0), (10.0, 9.0), (0.0, 0.0))
    first, second, plain = (draw(model, [View(home(model, x, y))]) for x, y in places)

    assert difference(first, second) < 1.0
    assert difference(first, plain) > 3.0


@needs_opengl
def test_a_height_field_that_no_geom_uses_is_not_drawn(draw):
    field = '<asset><hfield name="unused" nrow="4" ncol="4" size="1 1 1 1"/></asset></mujoco>'
    model = mujoco.MjModel.from_xml_string(BALL_XML.replace("</mujoco>", field))
    frame = draw(model, [View(np.array([0, 0, 1, 1, 0, 0, 0.0]))]).astype(int)
    assert ((frame[..., 0] - frame[..., 1]) > 60).sum() > 100


@needs_opengl
def test_a_model_without_a_camera_is_followed(draw):
    model = mujoco.MjModel.from_xml_string(BALL_XML)
    for x in (0.0, 30.0):
        frame = draw(model, [View(np.array([x, 0, 1, 1, 0, 0, 0.0]))]).astype(int)
        red = (frame[..., 0] - frame[..., 1]) > 60
        rows, columns = red.nonzero()
        assert red.sum() > 100
        assert abs(columns.mean() - 128) < 12
        assert abs(rows.mean() - 64) < 40


@needs_opengl
@pytest.mark.parametrize(
    "marker",
    [
        Arrow((0.0, 0.0, 0.7), (0.5, 0.0, 0.0), (0.0, 1.0, 0.0, 1.0)),
        Sphere((0.0, 0.0, 0.7), 0.05, (0.0, 1.0, 0.0, 1.0)),
        axes((0.0, 0.0, 0.7), (1.0, 0.0, 0.0, 0.0), 0.5)[1],
        Ghost((0.6, 0.0, 0.3, 1.0, *[0.0] * 15), (0.0, 1.0, 0.0, 1.0)),
    ],
    ids=["arrow", "sphere", "axis", "ghost"],
)
def test_markers_are_drawn(marker, model, draw):
    marked = draw(model, [View(home(model), [marker])]).astype(int)
    green = (marked[..., 1] - np.maximum(marked[..., 0], marked[..., 2])) > 60
    assert green.sum() > 20


@needs_opengl
def test_titles_are_drawn(model, draw):
    plain = draw(model, [View(home(model))])
    titled = draw(model, [View(home(model), title="robot 0")])
    assert difference(titled[:32, :96], plain[:32, :96]) > 5.0
    assert difference(titled[64:, 128:], plain[64:, 128:]) < 0.5


@needs_opengl
@pytest.mark.parametrize(("tiles", "share"), [(1, 1.0), (2, 1.0), (3, 3 / 4), (5, 5 / 6)])
def test_any_number_of_tiles_fits_and_none_is_empty(tiles, share, draw):
    model = mujoco.MjModel.from_xml_path(str(model_path("cartpole")))
    frame = draw(model, [View(model.key("home").qpos)] * tiles, width=384, height=256)
    sky = frame[..., 2].astype(int) > 150
    assert sky.mean() == pytest.approx(share, abs=0.1)


def test_a_frame_too_small_for_its_tiles_is_refused(model):
    with pytest.raises(ConfigError, match="100x200"):
        TiledRenderer(model, tiles=4, width=100, height=200)


@needs_opengl
def test_a_frame_larger_than_opengl_renders_is_refused(model):
    with pytest.raises(ConfigError, match="100000x100000"):
        TiledRenderer(model, tiles=1, width=100_000, height=100_000)
    TiledRenderer(model, tiles=1, width=64, height=64).close()


@pytest.mark.skipif(sys.platform != "linux", reason="EGL and OSMesa are Linux's")
def test_without_a_library_the_error_names_the_packages(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(CapabilityError, match="libegl1"):
        offscreen_context(64, 64)


@pytest.mark.skipif(sys.platform != "linux", reason="EGL and OSMesa are Linux's")
def test_osmesa_is_used_without_egl_and_named_with_the_packages_if_it_fails(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", {"OSMesa": "libOSMesa.so.8"}.get)
    monkeypatch.setitem(sys.modules, "mujoco.osmesa", None)
    with pytest.raises(CapabilityError, match=r"osmesa.*libegl1"):
        offscreen_context(64, 64)


@pytest.mark.skipif("DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ, reason="a display")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_a_window_library_without_a_display_is_named_and_not_the_size(monkeypatch, model):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(CapabilityError, match=r"glfw.*libegl1"):
        TiledRenderer(model, tiles=1, width=64, height=64)
