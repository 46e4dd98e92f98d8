"""Physics: the tensor contract that environments use, and MuJoCo behind it."""

from unilab.backends.base import HostBridgeTransferPlan as HostBridgeTransferPlan
from unilab.backends.base import SimBackend as SimBackend
from unilab.backends.base import TensorCapabilities as TensorCapabilities
from unilab.backends.base import TensorExecution as TensorExecution
from unilab.backends.conformance import assert_backend_conforms as assert_backend_conforms
from unilab.errors import mujoco_imports

with mujoco_imports():
    from unilab.backends.mj_model import MjModelBackend as MjModelBackend
    from unilab.backends.mj_model import put_on_height_field as put_on_height_field
    from unilab.backends.mujoco import MujocoBackend as MujocoBackend
