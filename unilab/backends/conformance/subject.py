"""What the clauses share: the backends under check, states and controls to drive them with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.backends.base import SimBackend

BackendFactory = Callable[[int], SimBackend]
"""Makes a new backend of so many environments; every call an equal one."""

N, STEPS, NSTEP = 5, 8, 3
"""Environments, control steps and substeps that a clause tries."""


@dataclass(frozen=True)
class Subject:
    """The backend to be checked."""

    factory: BackendFactory
    late_sensors: Collection[str]

    @contextmanager
    def made(self, *sizes: int) -> Iterator[tuple[SimBackend, ...]]:
        """New backends of so many environments, closed in the end."""
        made = [self.factory(size) for size in sizes]
        try:
            yield tuple(made)
        finally:
            for backend in made:
                backend.close()

    def current(self, backend: SimBackend) -> dict[str, Tensor]:
        """Copies of every state field and every sensor that belongs to the present state."""
        return {
            name: value
            for name, value in snapshot(backend).items()
            if name.removeprefix("sensor:") not in self.late_sensors
        }


def poses(backend: SimBackend, seed: int) -> tuple[Tensor, Tensor]:
    """A state near home for every environment, ``[num_envs, nq]`` and ``[num_envs, nv]``."""
    draw = torch.Generator().manual_seed(seed)
    qpos = backend.default_qpos.repeat(backend.num_envs, 1)
    for joint in backend.joints:
        # A quaternion stays as it is, so that it stays one.
        moved = slice(joint.qpos.start, joint.qpos.start + (3 if joint.type == "free" else 1))
        if joint.type != "ball":
            qpos[:, moved] += 0.1 * torch.rand(qpos[:, moved].shape, generator=draw).double()
    nv = backend.get_state_views()["qvel"].shape[1]
    return qpos, 0.2 * torch.rand(backend.num_envs, nv, generator=draw).double()


def controls(backend: SimBackend, seed: int) -> Tensor:
    """``[steps, num_envs, nu]`` float32 controls within their ranges, at most 1 in size."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.rand(STEPS, backend.num_envs, len(backend.actuators), generator=draw)
    ranges = [actuator.ctrl_range for actuator in backend.actuators]
    low = torch.tensor([max(low, -1.0) for low, _ in ranges])
    high = torch.tensor([min(high, 1.0) for _, high in ranges])
    return low + share * (high - low)


def drive(backend: SimBackend) -> None:
    """Some control steps, the same for every backend of a model."""
    for ctrl in controls(backend, 0):
        backend.step_tensor(ctrl, NSTEP)


def snapshot(backend: SimBackend) -> dict[str, Tensor]:
    """Copies of every state field and sensor."""
    sensors = {n: backend.get_sensor_view(n) for n in backend.get_tensor_capabilities().sensors}
    values = {**backend.get_state_views(), **{f"sensor:{n}": v for n, v in sensors.items()}}
    return {name: value.clone() for name, value in values.items()}


def state(backend: SimBackend) -> Tensor:
    """A copy of positions and velocities, ``[num_envs, nq + nv]``."""
    views = backend.get_state_views()
    return torch.cat((views["qpos"], views["qvel"]), dim=1)


def same(a: dict[str, Tensor], b: dict[str, Tensor], rows: Tensor, where: str) -> None:
    """Assert that two snapshots agree in some rows, bit for bit."""
    for name, value in a.items():
        assert torch.equal(value[rows], b[name][rows]), f"{name} differs {where}"


def refuses(kind: type[Exception], what: str, call: Callable[[], object]) -> None:
    """Assert that a call raises an error of a kind."""
    try:
        call()
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}, not {kind.__name__}") from None
    raise AssertionError(f"{what} was accepted: expected {kind.__name__}")
