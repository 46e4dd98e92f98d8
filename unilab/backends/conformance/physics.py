"""Clauses on how a backend steps, and how its state is written."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import torch
from torch import Tensor

from unilab.backends.conformance.subject import (
    NSTEP,
    N,
    Subject,
    controls,
    drive,
    poses,
    refuses,
    same,
    snapshot,
    state,
)
from unilab.errors import ConfigError


def the_same_controls_give_the_same_states(it: Subject) -> None:
    with it.made(N, N) as (one, other):
        drive(one)
        drive(other)
        assert torch.equal(state(one), state(other)), "two equal runs end in different states"


def substeps_hold_the_control(it: Subject) -> None:
    with it.made(N, N) as (at_once, one_by_one):
        for ctrl in controls(at_once, 0):
            at_once.step_tensor(ctrl, NSTEP)
            for _ in range(NSTEP):
                one_by_one.step_tensor(ctrl, 1)
        assert torch.equal(state(at_once), state(one_by_one)), (
            f"a step of {NSTEP} substeps ends elsewhere than {NSTEP} steps of one"
        )


def environments_do_not_touch_each_other(it: Subject) -> None:
    rows = torch.arange(N)
    with it.made(N, *(N,) * N) as (one, *others):
        plans = [(*poses(one, seed), controls(one, seed)) for seed in (0, 1)]
        for row, backend in zip([N, *range(N)], (one, *others), strict=True):
            # Its own row as in the first backend, and everything else otherwise.
            own = (rows == row) | (row == N)
            qpos, qvel, ctrls = (
                torch.where(own.unsqueeze(1), mine, theirs)
                for mine, theirs in zip(*plans, strict=True)
            )
            backend.set_state_tensor(rows, qpos, qvel)
            for ctrl in ctrls:
                backend.step_tensor(ctrl, NSTEP)
        for row, other in enumerate(others):
            assert torch.equal(state(one)[row], state(other)[row]), (
                f"row {row} depends on the states or controls of its neighbours"
            )


def controls_that_do_not_fit_are_refused(it: Subject) -> None:
    with it.made(N) as (backend,):
        before, nu = snapshot(backend), len(backend.actuators)
        for shape in ((N, nu + 1), (N + 1, nu)):
            ctrl = torch.zeros(shape)
            refuses(ConfigError, f"ctrl of shape {shape}", partial(backend.step_tensor, ctrl, 1))
        same(before, snapshot(backend), torch.arange(N), "although the controls were refused")


def a_write_sets_its_rows_and_no_others(it: Subject) -> None:
    with it.made(N) as (backend,):
        if not backend.get_tensor_capabilities().selected_row_reset:
            return
        drive(backend)
        draw = torch.Generator().manual_seed(0)
        for n, reset in product(range(1, N + 1), (False, True)):
            order = torch.randperm(N, generator=draw)
            rows, others = order[:n], order[n:]
            before = snapshot(backend)
            qpos, qvel = poses(backend, 2 * n + reset)
            backend.set_state_tensor(rows, qpos[rows], qvel[rows], reset=reset)
            same(before, snapshot(backend), others, f"in rows not written, {others.tolist()}")
            written = state(backend)[rows]
            assert torch.equal(written, torch.cat((qpos, qvel), 1)[rows].to(written)), (
                f"rows {rows.tolist()} do not hold what was written to them (reset={reset})"
            )


def a_write_that_does_not_fit_is_refused_whole(it: Subject) -> None:
    with it.made(N) as (backend,):
        drive(backend)
        before = snapshot(backend)
        qpos, qvel = (value[:2] for value in poses(backend, 1))
        payloads: dict[str, tuple[Tensor, Tensor, Tensor]] = {
            f"rows {rows.tolist()} ({rows.dtype})": (rows, qpos[: len(rows)], qvel[: len(rows)])
            for rows in (
                torch.tensor([1, 1]),
                torch.tensor([-1, 2]),
                torch.tensor([0, N]),
                torch.tensor([[0, 1]]),
                torch.tensor([0.0, 1.0]),
                torch.tensor([True, False]),
            )
        }
        rows = torch.tensor([0, 1])
        payloads["qpos of another width"] = (rows, torch.cat((qpos, qpos), 1), qvel)
        payloads["qvel of another length"] = (rows, qpos, qvel[:1])
        for what, payload in payloads.items():
            refuses(ConfigError, what, partial(backend.set_state_tensor, *payload))
            same(before, snapshot(backend), torch.arange(N), f"although {what} was refused")


def a_reset_row_is_like_new(it: Subject) -> None:
    with it.made(N, N) as (old, new):
        rows = torch.arange(N)
        if old.get_tensor_capabilities().selected_row_reset:
            rows = torch.tensor([1, 3])
        drive(old)
        home, still = old.default_qpos.repeat(len(rows), 1), torch.zeros_like(poses(old, 0)[1])
        old.set_state_tensor(rows, home, still[rows], reset=True)
        same(it.current(new), it.current(old), rows, "after a reset from a new backend")
        for ctrl in controls(old, 2):
            for backend in (old, new):
                backend.step_tensor(ctrl, NSTEP)
        same(snapshot(new), snapshot(old), rows, "some steps after a reset from a new backend")


def a_write_without_reset_keeps_the_rest(it: Subject) -> None:
    with it.made(N) as (backend,):
        drive(backend)
        views = backend.get_state_views()
        kept = {k: v.clone() for k, v in views.items() if k in ("time", "ctrl", "act")}
        backend.set_state_tensor(torch.arange(N), *poses(backend, 1), reset=False)
        same(kept, dict(backend.get_state_views()), torch.arange(N), "after reset=False")


def sensors_are_current_with_the_state(it: Subject) -> None:
    with it.made(N, N) as (direct, detour):
        rows, pose = torch.arange(N), poses(direct, 1)
        for backend in (direct, detour):
            snapshot(backend)  # somebody looks at the sensors from now on
        detour.set_state_tensor(rows, *poses(detour, 2))
        for backend in (direct, detour):
            backend.set_state_tensor(rows, *pose)
        same(it.current(direct), it.current(detour), rows, "between writes of one state")
        drive(detour)
        after = it.current(detour)
        qpos, qvel = (detour.get_state_views()[name].double() for name in ("qpos", "qvel"))
        direct.set_state_tensor(rows, qpos, qvel)
        seen = it.current(direct)
        for name in [name for name in after if name.startswith("sensor:")]:
            assert torch.allclose(after[name], seen[name], rtol=1e-6, atol=1e-6), (
                f"{name} after a step is not that of the state then; if it belongs to the last "
                "substep, name it in late_sensors"
            )


def a_diverged_row_stays_visible_and_alone(it: Subject) -> None:
    with it.made(N, N) as (backend, sound):
        qpos, qvel = poses(backend, 1)
        sound.set_state_tensor(torch.arange(N), qpos, qvel)
        qvel = qvel.clone()
        qvel[2] = math.nan
        backend.set_state_tensor(torch.arange(N), qpos, qvel)
        drive(sound)
        drive(backend)
        finite = state(backend).isfinite().all(1)
        assert finite.tolist() == [True, True, False, True, True], (
            f"row 2 began with a velocity of NaN; finite after some steps are {finite.tolist()}"
        )
        assert torch.equal(state(backend)[finite], state(sound)[finite]), (
            "a row's state depends on a neighbour that has diverged"
        )


CLAUSES = (
    the_same_controls_give_the_same_states,
    substeps_hold_the_control,
    environments_do_not_touch_each_other,
    controls_that_do_not_fit_are_refused,
    a_write_sets_its_rows_and_no_others,
    a_write_that_does_not_fit_is_refused_whole,
    a_reset_row_is_like_new,
    a_write_without_reset_keeps_the_rest,
    sensors_are_current_with_the_state,
    a_diverged_row_stays_visible_and_alone,
)
