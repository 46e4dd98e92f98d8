"""dm_control's own suite, to compare with; import after ``pytest.importorskip("dm_control")``."""

from __future__ import annotations

import os
from typing import Any

import mujoco
import numpy as np

# dm_control looks for a display on import, unless it is told not to draw.
before = os.environ.get("MUJOCO_GL")
os.environ["MUJOCO_GL"] = "disable"
try:
    from dm_control import suite
    from dm_control.mujoco.wrapper.mjbindings import sizes
finally:
    os.environ.pop("MUJOCO_GL")
    if before is not None:
        os.environ["MUJOCO_GL"] = before

# It indexes every array field that the MuJoCo it was made with had; a newer one has renamed some of
# deformable bodies, which no task here has.
for struct, kind in (("mjmodel", mujoco.MjModel), ("mjdata", mujoco.MjData)):
    for name in [name for name in sizes.array_sizes[struct] if not hasattr(kind, name)]:
        assert name.startswith("flex"), name
        del sizes.array_sizes[struct][name]


def load(task: str, seed: int = 0) -> Any:
    """The suite's environment of a task ``dmc/<domain>-<task>``."""
    domain, name = task.removeprefix("dmc/").split("-")
    return suite.load(domain, name, task_kwargs={"random": seed})


def flat(observation: dict[str, Any]) -> np.ndarray:
    """An observation as one vector."""
    return np.concatenate([np.ravel(value) for value in observation.values()])


def begin(environment: Any, state: np.ndarray) -> np.ndarray:
    """Begin an episode in a state (``mjSTATE_INTEGRATION``); returns its first observation."""
    environment.reset()
    with environment.physics.reset_context():
        environment.physics.set_state(state, sig=int(mujoco.mjtState.mjSTATE_INTEGRATION))
    return flat(environment.task.get_observation(environment.physics))
