"""The optional packages that ONNX needs."""

from __future__ import annotations

import importlib
from typing import Any

from unilab.errors import CapabilityError


def require(package: str) -> Any:
    """Imports a package of the ``export`` extra.

    Raises:
        CapabilityError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise CapabilityError(
            f"ONNX files need {package}, which is not installed: "
            "pip install 'unilab-torchrl[export]'"
        ) from error
