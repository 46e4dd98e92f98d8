"""Clauses on model fields that differ between environments, and on what repeats a step."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab.backends.base import SimBackend
from unilab.backends.conformance.subject import (
    NSTEP,
    N,
    Subject,
    controls,
    drive,
    poses,
    refuses,
    same,
    state,
)
from unilab.errors import CapabilityError

_WRITTEN = (
    "body_mass",
    "body_inertia",
    "body_ipos",
    "geom_friction",
    "dof_armature",
    "dof_damping",
    "dof_frictionloss",
    "actuator_gainprm",
    "actuator_biasprm",
    "opt.gravity",
)
"""The fields that the events of :mod:`unilab.envs.mdp` write."""
_TELLING = frozenset({"body_mass", "dof_armature", "dof_damping", "actuator_gainprm"})
"""Those that matter to any joint that an actuator moves."""


def model_fields_can_differ_between_rows(it: Subject) -> None:
    with it.made(N, N) as (plain, varied):
        fields = sorted(varied.get_tensor_capabilities().model_fields)
        for name in fields:
            value = varied.expand(name)
            assert value.shape[:1] == (N,), f"{name} has shape {tuple(value.shape)}, not [{N}...]"
            assert torch.equal(value, value[:1].expand_as(value)), f"{name} differs from the start"
            live = varied.expand(name)
            assert live.data_ptr() == value.data_ptr(), f"{name} is a copy: writes are lost"
        if fields:
            varied.set_const(torch.tensor([1]))
            varied.set_const()
        drive(plain)
        drive(varied)
        assert torch.equal(state(plain), state(varied)), "expanding fields changes the physics"
        refuses(CapabilityError, "an unknown model field", lambda: varied.expand("no such"))


def a_model_field_acts_in_its_row(it: Subject) -> None:
    rows, others = torch.tensor([1, 3]), torch.tensor([0, 2, 4])
    with it.made(N) as (plain,):
        drive(plain)
        ends, moves = state(plain), any(a.joint is not None for a in plain.actuators)
    effective, fields = False, _fields(it)
    for name in fields:
        with it.made(N) as (varied,):
            nominal = varied.expand(name)[0].clone()
            _write(varied, [name], rows)
            value = varied.expand(name)
            assert all(torch.equal(value[row], nominal) for row in others), (
                f"{name} of rows 1 and 3 is that of other rows as well"
            )
            if torch.equal(value[1], nominal):  # zeros, which stay zeros
                continue
            varied.set_const(rows)
            told = [varied.get_model_bytes(row) for row in range(N)]
            for row in rows.tolist():
                assert told[row] != told[0], f"get_model_bytes({row}) lacks what {name} holds there"
            assert told[2] == told[0] == told[4], f"{name} of rows 1 and 3 is in other rows' models"
            drive(varied)
            assert torch.equal(ends[others], state(varied)[others]), (
                f"{name} of rows 1 and 3 changes the physics of other rows"
            )
            changed = (ends != state(varied)).any(1)[rows]
            effective |= bool(changed.any())
            assert changed.all() or not (moves and name in _TELLING), (
                f"{name} does not change the physics of the rows where it is written"
            )
    assert effective or not (moves and fields), f"no model field of {fields} changes the physics"


def a_reset_keeps_the_model_of_its_rows(it: Subject) -> None:
    fields = _fields(it)
    if not fields:
        return
    with it.made(N) as (varied,):
        rows = torch.arange(N)
        _write(varied, fields, rows)
        varied.set_const()
        values = {name: varied.expand(name).clone() for name in fields}
        models = [varied.get_model_bytes(row) for row in range(N)]
        varied.set_state_tensor(rows, *poses(varied, 2), reset=True)
        for name, value in values.items():
            assert torch.equal(varied.expand(name), value), f"a reset writes over {name}"
        told = [varied.get_model_bytes(row) for row in range(N)]
        assert told == models, "a reset changes what get_model_bytes returns"
        before, ctrl = varied.get_replay_state().clone(), controls(varied, 3)[0]
        varied.step_tensor(ctrl, NSTEP)
        for row, model in enumerate(models):
            again = type(varied).replay(model, before[row], ctrl[row].double(), NSTEP)
            assert torch.equal(again, varied.get_replay_state()[row]), (
                f"after a reset row {row} steps with another model than it had"
            )


def set_const_leaves_the_state(it: Subject) -> None:
    names = ("qpos", "qvel", "act", "time", "ctrl")
    with it.made(N) as (backend,):
        fields = sorted(backend.get_tensor_capabilities().derived_from)
        for name in fields:
            backend.expand(name)
        drive(backend)
        views = backend.get_state_views()
        before = {k: v.clone() for k, v in views.items() if k in names}
        for rows in (torch.tensor([1, 3]), None) if fields else ():
            backend.set_const(rows)
            same(before, dict(views), torch.arange(N), f"after set_const({rows})")


def set_const_recomputes_what_follows(it: Subject) -> None:
    rows, others = torch.tensor([1, 3]), torch.tensor([0, 2, 4])
    with it.made(N, N, N) as (none, some, everything):
        fields = [n for n in _fields(it) if n in none.get_tensor_capabilities().derived_from]
        if not fields:
            return
        for backend in (none, some, everything):
            _write(backend, fields, torch.arange(N))
        some.set_const(rows)
        everything.set_const()
        found = [_outcome(backend) for backend in (none, some, everything)]
        for row in range(N):
            assert found[0][row] != found[2][row], (
                f"set_const does nothing in row {row} after a write to {fields}, of which "
                "derived_from says that others follow"
            )
        for row, like, what in (
            *((row, 2, "does not do") for row in rows.tolist()),
            *((row, 0, "does more than") for row in others.tolist()),
        ):
            assert found[1][row] == found[like][row], (
                f"set_const([1, 3]) {what} its rows: row {row} is otherwise"
            )


def _outcome(backend: SimBackend) -> list[tuple[bytes, bytes]]:
    """What can be seen of each row's model: its bytes, and where a few steps lead."""
    drive(backend)
    ends = state(backend)
    return [
        (backend.get_model_bytes(row), ends[row].numpy().tobytes())
        for row in range(backend.num_envs)
    ]


def a_step_can_be_replayed(it: Subject) -> None:
    for fields, nstep in (([], NSTEP), ([], 1), (_fields(it), 2)):
        with it.made(N) as (backend,):
            if fields:
                _write(backend, fields, torch.arange(N))
                backend.set_const()
            drive(backend)
            view = backend.get_replay_state()
            before, ctrl = view.clone(), controls(backend, 3)[0]
            backend.step_tensor(ctrl, nstep)
            after = backend.get_replay_state()
            assert after.data_ptr() == view.data_ptr(), "get_replay_state() is a copy, or moved"
            for row in range(N):
                model = backend.get_model_bytes(row)
                again = type(backend).replay(model, before[row], ctrl[row].double(), nstep)
                assert torch.equal(again, after[row]), (
                    f"row {row} replays to another state ({nstep} substeps, written: {fields})"
                )


def _fields(it: Subject) -> list[str]:
    """Fields that are tried: those that environments write, or else all that hold numbers."""
    with it.made(1) as (backend,):
        fields = sorted(backend.get_tensor_capabilities().model_fields)
        known = [name for name in _WRITTEN if name in fields]
        values = {name: backend.expand(name) for name in known or fields}
        return [n for n, value in values.items() if value.is_floating_point() and value.numel()]


def _write(backend: SimBackend, fields: list[str], rows: Tensor) -> None:
    """Somewhat larger values in some rows, of a size of their own in each."""
    for name in fields:
        value = backend.expand(name)
        for row in rows.tolist():
            value[row] = value[row] * (1.3 + 0.1 * row) + (0.01 if name[:4] == "dof_" else 0.0)


CLAUSES = (
    model_fields_can_differ_between_rows,
    a_model_field_acts_in_its_row,
    a_reset_keeps_the_model_of_its_rows,
    set_const_recomputes_what_follows,
    set_const_leaves_the_state,
    a_step_can_be_replayed,
)
