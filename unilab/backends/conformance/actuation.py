"""Clauses on what controls do, and on the time that a substep takes."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import torch
from torch import Tensor

from unilab.backends.base import SimBackend
from unilab.backends.conformance.subject import NSTEP, N, Subject, controls, poses

_SINGLE = ("slide", "hinge")


def timestep_is_the_time_of_a_substep(it: Subject) -> None:
    with it.made(N) as (backend,):
        views = backend.get_state_views()
        if "time" in views:
            before = views["time"].double().clone()
            backend.step_tensor(controls(backend, 0)[0], NSTEP)
            each = (views["time"].double() - before) / NSTEP
            expected = torch.full_like(each, backend.timestep)
            assert torch.allclose(each, expected, rtol=1e-3), (
                f"time goes on by {each.max():.6g} s a substep: timestep is {backend.timestep}"
            )
        # Fast, so that what a substep's forces add to a velocity is small beside it.
        velocity = 1.0 + poses(backend, 0)[1]
        home = backend.default_qpos.repeat(N, 1)
        backend.set_state_tensor(torch.arange(N), home, velocity)
        before, slow = _translations(backend)
        backend.step_tensor(backend.default_ctrl.repeat(N, 1).float(), 1)
        after, fast = _translations(backend)
        steady = (fast - slow).abs() < 0.2 * slow.abs()
        if steady.any():
            took = float((2.0 * (after - before) / (slow + fast))[steady].median())
            assert 0.8 < took / backend.timestep < 1.25, (
                f"positions go on as velocities say in {took:.6g} s a substep: "
                f"timestep is {backend.timestep}"
            )


def _translations(backend: SimBackend) -> tuple[Tensor, Tensor]:
    """Copies of the coordinates whose derivative is a velocity, and of those velocities."""
    views = backend.get_state_views()
    qpos: list[int] = []
    qvel: list[int] = []
    for joint in backend.joints:
        width = 3 if joint.type == "free" else 1 if joint.type in _SINGLE else 0
        qpos += range(joint.qpos.start, joint.qpos.start + width)
        qvel += range(joint.qvel.start, joint.qvel.start + width)
    return views["qpos"][:, qpos].double(), views["qvel"][:, qvel].double()


def actuators_are_in_the_order_of_controls(it: Subject) -> None:
    with it.made(N) as (backend,):
        single = {joint.name: joint for joint in backend.joints if joint.type in _SINGLE}
        driving = [i for i, a in enumerate(backend.actuators) if a.joint in single]
        columns = [single[backend.actuators[i].joint or ""].qvel.start for i in driving]
        held = backend.default_ctrl.float()
        still = _after(backend, held)
        nudged = held.repeat(len(driving), 1)
        for ctrl, i in zip(nudged, driving, strict=True):
            low, high = (_tried(bound) for bound in backend.actuators[i].ctrl_range)
            ctrl[i] += 0.1 * (high - low) * (1.0 if held[i] < (low + high) / 2.0 else -1.0)
        moved = [(_after(backend, ctrl) - still).abs() for ctrl in nudged]
        # A joint's own force moves it more, in proportion, than those of others do: the inverse
        # of a mass matrix is positive definite, whatever the gears and gains.
        for (a, at), (b, bt) in combinations(enumerate(columns), 2):
            own = float((moved[a][:, at] * moved[b][:, bt]).sum())
            crossed = float((moved[a][:, bt] * moved[b][:, at]).sum())
            assert crossed <= 1.5 * own + 1e-18, (
                f"control {driving[a]} moves joint {backend.actuators[driving[b]].joint!r} and "
                f"control {driving[b]} joint {backend.actuators[driving[a]].joint!r}: "
                "expected the order of actuators"
            )
        for i, column, change in zip(driving, columns, moved, strict=True):
            assert not change.any() or change[:, column].any(), (
                f"control {i} does not move joint {backend.actuators[i].joint!r}, but others"
            )


def _after(backend: SimBackend, ctrl: Tensor) -> Tensor:
    """Velocities of every row after a step from states that are the same in each call."""
    backend.set_state_tensor(torch.arange(N), *poses(backend, 0))
    backend.step_tensor(ctrl.repeat(N, 1), NSTEP)
    return backend.get_state_views()["qvel"].double().clone()


def _tried(bound: float) -> float:
    """A bound of a range, or what is tried in its place where it is far away."""
    return max(-4.0, min(4.0, bound))


def controls_are_taken_as_they_are(it: Subject) -> None:
    with it.made(N) as (backend,):
        held = backend.default_ctrl.float()
        joints = {joint.name for joint in backend.joints if joint.type in _SINGLE}
        for end in (0, 1):
            bounds = torch.tensor([_tried(a.ctrl_range[end]) for a in backend.actuators])
            for share in (0.9, 2.0):
                _after(backend, share * bounds)
                shown = backend.get_state_views().get("ctrl")
                assert shown is None or torch.equal(
                    shown.float(), (share * bounds).expand(N, -1)
                ), f"ctrl holds {shown[0].tolist()}, it was given {(share * bounds).tolist()}"
            for i, actuator in enumerate(backend.actuators):
                # A servo's force or a limited one saturates, and hides what lies beyond.
                gains = actuator.stiffness, actuator.damping
                endless = gains == (0.0, 0.0) and math.isinf(actuator.force_range[end])
                if actuator.joint not in joints or not endless or not bounds[i]:
                    continue
                ctrls = held.repeat(3, 1)
                ctrls[:, i] = torch.tensor([0.5, 0.9, 1.0]) * bounds[i]
                for less, more in pairwise([_after(backend, ctrl) for ctrl in ctrls]):
                    assert not torch.equal(less, more), (
                        f"control {i} does the same at {bounds[i]:g} as at less: it is clamped "
                        f"within its range {actuator.ctrl_range}"
                    )


CLAUSES = (
    timestep_is_the_time_of_a_substep,
    actuators_are_in_the_order_of_controls,
    controls_are_taken_as_they_are,
)
