"""Physics: the tensor contract that environments use, and MuJoCo behind it."""

from unilab.backends.base import (
    HostBridgeTransferPlan,
    SimBackend,
    TensorCapabilities,
    TensorExecution,
)
from unilab.backends.conformance import assert_backend_conforms
from unilab.backends.mujoco import MujocoBackend

__all__ = [
    "HostBridgeTransferPlan",
    "MujocoBackend",
    "SimBackend",
    "TensorCapabilities",
    "TensorExecution",
    "assert_backend_conforms",
]
