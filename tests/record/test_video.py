"""mp4 files from frames."""

from __future__ import annotations

import resource
import sys

import av
import numpy as np
import pytest

from unilab.errors import CapabilityError, ConfigError
from unilab.record import VideoWriter

SIZE = {"width": 64, "height": 48, "fps": 25.0}


def shades(count):
    return [np.full((48, 64, 3), 10 * i, dtype=np.uint8) for i in range(count)]


def test_the_file_holds_the_frames_in_order_at_their_rate(tmp_path):
    with VideoWriter(tmp_path / "out.mp4", **SIZE) as video:
        for frame in shades(20):
            video.add(frame)
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]
    with av.open(str(tmp_path / "out.mp4")) as file:
        (stream,) = file.streams
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height, stream.average_rate) == (64, 48, 25)
        brightness = [f.to_ndarray(format="rgb24").mean() for f in file.decode(video=0)]
    assert brightness == pytest.approx([10 * i for i in range(20)], abs=4)


def test_an_older_file_stays_until_the_new_one_is_complete(tmp_path):
    (tmp_path / "out.mp4").write_bytes(b"older")

    def film():
        with VideoWriter(tmp_path / "out.mp4", **SIZE) as video:
            video.add(shades(1)[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        film()
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]
    assert (tmp_path / "out.mp4").read_bytes() == b"older"


@pytest.mark.parametrize("name", ["out.avi", "out", "mp4"])
def test_another_ending_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=r"give a name that ends with \.mp4"):
        VideoWriter(tmp_path / name, **SIZE)


@pytest.mark.parametrize("size", [{"width": 63}, {"height": 47}])
def test_odd_sizes_are_refused(tmp_path, size):
    with pytest.raises(ConfigError, match=r"63x48|64x47 pixels cannot be encoded.*even"):
        VideoWriter(tmp_path / "out.mp4", **{**SIZE, **size})


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*missing/out.mp4 \(No such file"):
        VideoWriter(tmp_path / "missing" / "out.mp4", **SIZE)


def test_a_folder_by_that_name_is_an_error_at_once(tmp_path):
    (tmp_path / "out.mp4").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*out.mp4: it is a folder"):
        VideoWriter(tmp_path / "out.mp4", **SIZE)
    assert list((tmp_path / "out.mp4").iterdir()) == []


def test_a_size_beyond_the_encoder_is_an_error_that_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*a size that H.264 can encode"):
        VideoWriter(tmp_path / "out.mp4", width=20_000, height=64, fps=25.0)
    assert list(tmp_path.iterdir()) == []


def test_a_link_leads_to_the_file_that_is_written(tmp_path):
    (tmp_path / "link.mp4").symlink_to("real.mp4")
    with VideoWriter(tmp_path / "link.mp4", **SIZE) as video:
        video.add(shades(1)[0])
    assert (tmp_path / "link.mp4").is_symlink()
    assert (tmp_path / "real.mp4").stat().st_size > 0


@pytest.fixture
def limited():
    """Files that cannot grow past a number of bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 20, 20_000])
def test_a_disk_that_is_full_is_an_error_that_leaves_nothing(tmp_path, limited, room):
    noise = np.random.default_rng(0)

    def film():
        with VideoWriter(tmp_path / "out.mp4", **SIZE) as video:
            for _ in range(100):
                video.add(noise.integers(0, 256, (48, 64, 3), dtype=np.uint8))

    limited(room)
    with pytest.raises(ConfigError, match=r"cannot write .*out.mp4 \(.*has space"):
        film()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "frame", [np.zeros((48, 62, 3), dtype=np.uint8), np.zeros((48, 64, 3), dtype=np.float32)]
)
def test_a_frame_that_does_not_fit_is_refused(tmp_path, frame):
    with VideoWriter(tmp_path / "out.mp4", **SIZE) as video:
        video.add(shades(1)[0])
        with pytest.raises(ConfigError, match=r"expected uint8 \[48, 64, 3\]"):
            video.add(frame)


def test_without_the_encoder_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(CapabilityError, match=r"PyAV.*pip install 'unilab-torchrl\[video\]'"):
        VideoWriter(tmp_path / "out.mp4", **SIZE)
