"""Whether this machine can render without a window."""

from __future__ import annotations

import pytest

from unilab.errors import CapabilityError
from unilab.record.renderer import offscreen_context


def _why_not() -> str:
    try:
        offscreen_context(64, 64).free()
    except CapabilityError as error:
        return str(error)
    return ""


_PROBLEM = _why_not()
needs_opengl = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)
