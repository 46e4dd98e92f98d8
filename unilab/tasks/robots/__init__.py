"""The packaged robot models: MJCF with primitive geoms only, nothing to download."""

from __future__ import annotations

from pathlib import Path


def model_path(name: str) -> Path:
    """The MJCF file of a packaged robot model.

    >>> model_path("go2").name
    'go2.xml'
    """
    return Path(__file__).parent / f"{name}.xml"
