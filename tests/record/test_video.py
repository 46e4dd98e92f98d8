"""Video files."""

from __future__ import annotations

import sys

import av
import numpy as np
import pytest
from reference.disk import largest_file

from unilab.errors import CapabilityError, ConfigError
from unilab.record import VideoWriter

SIZE = {"width": 64, "height": 48, "fps": 25.0}


def shades(count):
    return [np.full((48, 64, 3), 10 * i, dtype=np.uint8) for i in range(count)]


def film(path, frames, error=None):
    with VideoWriter(path, **SIZE) as video:
        for frame in frames:
            video.add(frame)
        if error is not None:
            raise error


def test_the_file_holds_the_frames_in_order_at_their_rate(tmp_path):
    film(tmp_path / "out.mp4", shades(20))
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]
    with av.open(str(tmp_path / "out.mp4")) as file:
        (stream,) = file.streams
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height, stream.average_rate) == (64, 48, 25)
        brightness = [f.to_ndarray(format="rgb24").mean() for f in file.decode(video=0)]
    assert brightness == pytest.approx([10 * i for i in range(20)], abs=4)


def test_an_older_file_stays_until_the_new_one_is_complete(tmp_path):
    (tmp_path / "out.mp4").write_bytes(b"older")
    with pytest.raises(KeyboardInterrupt):
        film(tmp_path / "out.mp4", shades(1), error=KeyboardInterrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]
    assert (tmp_path / "out.mp4").read_bytes() == b"older"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("out.avi", {}),
        ("folder.mp4", {}),
        ("missing/out.mp4", {}),
        ("out.mp4", {"width": 63}),
        ("out.mp4", {"height": 47}),
        ("out.mp4", {"width": 20_000}),  # beyond the encoder
    ],
)
def test_a_path_or_size_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, name, size):
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(ConfigError, match=rf"{name}|width and height"):
        VideoWriter(tmp_path / name, **SIZE | size)
    assert [p.name for p in tmp_path.iterdir()] == ["folder.mp4"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.mp4").symlink_to("real.mp4")
    film(tmp_path / "link.mp4", shades(1))
    assert (tmp_path / "link.mp4").is_symlink()
    assert (tmp_path / "real.mp4").stat().st_size > 0


@pytest.mark.parametrize("room", [0, 20_000])
def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path, room):
    noise = np.random.default_rng(0).integers(0, 256, (100, 48, 64, 3), dtype=np.uint8)
    with largest_file(room), pytest.raises(ConfigError, match=r"out\.mp4"):
        film(tmp_path / "out.mp4", noise)
    assert list(tmp_path.iterdir()) == []


def test_without_the_encoder_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(CapabilityError, match="PyAV"):
        VideoWriter(tmp_path / "out.mp4", **SIZE)
