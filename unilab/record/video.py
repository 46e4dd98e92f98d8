"""Frames to an mp4 file."""

from __future__ import annotations

import contextlib
import uuid
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from unilab.errors import CapabilityError, ConfigError

__all__ = ["VideoWriter"]


class VideoWriter:
    """Encodes RGB frames as H.264; the file appears when the ``with`` block ends without an error.

    Args:
        path: the ``.mp4`` file to write.
        width, height: pixels of a frame, even numbers.
        fps: frames a second.

    Raises:
        CapabilityError: PyAV, which brings the encoder, is not installed.
        ConfigError: another ending than .mp4, an odd size, or a path that cannot be written.
    """

    def __init__(self, path: str | Path, *, width: int, height: int, fps: float) -> None:
        self.path = Path(path)
        if self.path.suffix != ".mp4":
            raise ConfigError(f"cannot write {self.path}: give a name that ends with .mp4")
        if width % 2 or height % 2:
            raise ConfigError(
                f"a video of {width}x{height} pixels cannot be encoded: give even numbers"
            )
        self._av = _av()
        self._shape = (height, width, 3)
        self._partial = self.path.with_name(f".{self.path.stem}.{uuid.uuid4().hex[:8]}.mp4")
        self._file = self._av.open(str(self._partial), "w")
        self._stream = self._file.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        self._stream.width, self._stream.height = width, height
        # What every player reads.
        self._stream.pix_fmt = "yuv420p"
        try:
            self._file.start_encoding()
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path} ({error.strerror or error}): give a folder that exists "
                "and that you may write"
            ) from error

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame, ``[height, width, 3]`` uint8."""
        if frame.shape != self._shape or frame.dtype != np.uint8:
            raise ConfigError(
                f"a frame is {frame.dtype} {list(frame.shape)}: expected uint8 {list(self._shape)}"
            )
        picture = self._av.VideoFrame.from_ndarray(frame, format="rgb24")
        self._file.mux(self._stream.encode(picture))

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._file.mux(self._stream.encode(None))
            self._file.close()
            if kind is None:
                self._partial.replace(self.path)
        finally:
            with contextlib.suppress(OSError):
                self._partial.unlink(missing_ok=True)


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise CapabilityError(
            "videos need PyAV, which is not installed: pip install 'unilab-torchrl[video]'"
        ) from error
    return av
