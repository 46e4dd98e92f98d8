"""For the tests of a backend's author: does it keep the contract that environments build on?"""

from __future__ import annotations

from collections.abc import Collection

from unilab.backends.conformance import actuation, description, model, physics, positions
from unilab.backends.conformance.subject import BackendFactory, Subject

__all__ = ["CLAUSES", "assert_backend_conforms"]

CLAUSES = {
    check.__name__.replace("_", " "): check
    for room in (description, model, physics, actuation, positions)
    for check in room.CLAUSES
}
"""The contract's clauses by name, each with its check."""


def assert_backend_conforms(factory: BackendFactory, *, late_sensors: Collection[str] = ()) -> None:
    """Asserts that a backend keeps every clause of the contract of :class:`SimBackend`.

    Each clause makes backends of its own, of up to 5 environments, and closes them. Backends are
    HOST_BRIDGE; the contract of others has no suite yet.

    Args:
        factory: makes a new backend of so many environments; every call an equal one.
        late_sensors: sensors that belong to the last substep and not to the state after it, such
            as accelerations and contact forces.

    Raises:
        AssertionError: lists every clause that does not hold, by name, with what was found.

    Examples:
        >>> import mujoco
        >>> from unilab.backends import MujocoBackend, assert_backend_conforms
        >>> model = mujoco.MjModel.from_xml_string(
        ...     "<mujoco><worldbody><body name='bob'><joint name='pivot' axis='0 1 0'/>"
        ...     "<geom size='.1' pos='0 0 -1'/></body></worldbody>"
        ...     "<actuator><motor name='drive' joint='pivot'/></actuator></mujoco>"
        ... )
        >>> assert_backend_conforms(lambda num_envs: MujocoBackend(model, num_envs))
    """
    broken = []
    for name, check in CLAUSES.items():
        try:
            check(Subject(factory, late_sensors))
        except AssertionError as error:
            broken.append(f"{name}: {error}")
        except Exception as error:  # whatever a foreign backend raises
            broken.append(f"{name}: raised {type(error).__name__}: {error}")
    if broken:
        raise AssertionError(
            f"the backend breaks {len(broken)} of {len(CLAUSES)} clauses of the contract:\n  "
            + "\n  ".join(broken)
        )
