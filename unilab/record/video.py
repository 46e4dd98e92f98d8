"""Frames to an mp4 file."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from unilab.errors import CapabilityError, ConfigError


class VideoWriter:
    """Encodes RGB frames as H.264; the file appears when the ``with`` block ends without an error.

    Args:
        path: the ``.mp4`` file to write.
        width, height: pixels of a frame, even numbers.
    """

    def __init__(self, path: str | Path, *, width: int, height: int, fps: float) -> None:
        try:
            import av
        except ImportError as error:
            raise CapabilityError(
                "videos need PyAV, which is not installed: pip install 'unilab-torchrl[video]'"
            ) from error
        self.path = Path(path)
        if self.path.suffix != ".mp4" or self.path.is_dir():
            raise ConfigError(f"path must be an .mp4 file, got {self.path}")
        if width % 2 or height % 2:
            raise ConfigError(f"width and height must be even, got {width}x{height}")
        self._av = av
        self._target = self.path.resolve()  # a link stays a link
        self._partial = self._target.with_name(f".{self._target.stem}.{uuid.uuid4().hex[:8]}.mp4")
        self._file = av.open(str(self._partial), "w")
        self._stream = self._file.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"  # every player reads it
        try:
            with self._errors():
                self._file.start_encoding()
        except ConfigError:
            self._discard()
            raise

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame, ``[height, width, 3]`` uint8."""
        picture = self._av.VideoFrame.from_ndarray(frame, format="rgb24")
        with self._errors():
            self._file.mux(self._stream.encode(picture))

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                with self._errors():
                    self._file.mux(self._stream.encode(None))
                    self._file.close()
                    self._partial.replace(self._target)
        finally:
            self._discard()

    def _discard(self) -> None:
        """Removes an unfinished file; its errors must not hide the first one."""
        with contextlib.suppress(OSError, self._av.FFmpegError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._av.FFmpegError) as error:
            raise ConfigError(
                f"cannot write {self.path} ({error.strerror or error}): choose a writable folder "
                "with free space, and a size that H.264 can encode"
            ) from error
