"""Conformance tests for physics backends: the clauses of the contract that environments rely on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from unilab.backends.base import JOINT_WIDTHS, JointInfo, SimBackend
from unilab.errors import CapabilityError, ConfigError

N, STEPS, NSTEP = 5, 8, 3
"""Environments, control steps and substeps of a clause."""
ALL, SOME, OTHERS = torch.arange(N), torch.tensor([1, 3]), torch.tensor([0, 2, 4])
CPU = torch.device("cpu")
_RANDOMISED = ("body_mass", "body_inertia", "body_ipos", "geom_friction", "dof_armature",
               "dof_damping", "dof_frictionloss", "actuator_gainprm", "actuator_biasprm",
               "actuator_delay", "opt.gravity")  # fmt: skip
"""Model fields that the events of :mod:`unilab.envs.mdp` and delayed actuators write."""
_KINEMATICS = ("xpos", "xquat", "cvel", "subtree_com")


def assert_backend_conforms(
    factory: Callable[[int], SimBackend], *, late_sensors: Collection[str] = ()
) -> None:
    """Assert that a HOST_BRIDGE backend keeps every clause of the contract of :class:`SimBackend`.

    The AssertionError lists every clause that the backend breaks, with what was found.

    Args:
        factory: makes a new backend with so many environments; every call makes an equal one.
        late_sensors: sensors that belong to the last substep and not to the state after it, such
            as accelerations and contact forces.
    """
    broken = []
    for name, check in CLAUSES.items():
        make = _Maker(factory, late_sensors)
        try:
            check(make)
            for backend in make.made:
                backend.close()
        except AssertionError as error:
            broken.append(f"{name}: {error}")
        except Exception as error:  # third-party code may raise anything
            broken.append(f"{name}: raised {type(error).__name__}: {error}")
    if broken:
        listed = "\n  ".join(broken)
        raise AssertionError(
            f"the backend breaks {len(broken)} of {len(CLAUSES)} clauses:\n  {listed}"
        )


class _Maker:
    """Makes the backends of one clause, each of ``N`` environments."""

    def __init__(self, factory: Callable[[int], SimBackend], late_sensors: Collection[str]) -> None:
        self.made: list[SimBackend] = []
        self._factory = factory
        self._late = {f"sensor:{name}" for name in late_sensors}

    def __call__(self) -> SimBackend:
        self.made.append(self._factory(N))
        return self.made[-1]

    def current(self, backend: SimBackend) -> dict[str, Tensor]:
        """Copies of the state fields and of the sensors that belong to the present state."""
        return {name: v for name, v in _snapshot(backend).items() if name not in self._late}


CLAUSES: dict[str, Callable[[_Maker], None]] = {}
"""The contract's clauses by name, each with its check."""


def _clause(check: Callable[[_Maker], None]) -> Callable[[_Maker], None]:
    CLAUSES[check.__name__.replace("_", " ")] = check
    return check


@_clause
def metadata_matches_the_views(make: _Maker) -> None:
    backend = make()
    capabilities, execution = backend.get_tensor_capabilities(), backend.tensor_execution()
    there = {view.device for view in _views(backend).values()}
    assert there == {execution.device}, f"{execution}, but its views are on {there}"
    assert execution.kind == "DEVICE_RESIDENT" or execution.device == CPU, f"{execution}"
    assert backend.num_envs == N, f"num_envs is {backend.num_envs}, not {N}"
    shapes = {name: tuple(view.shape) for name, view in _views(backend).items()}
    told = {**capabilities.state_fields}
    told |= {f"sensor:{name}": width for name, width in capabilities.sensors.items()}
    for name, shape in shapes.items():
        assert shape == (N, told[name]), f"{name} has width {told[name]}, its view is {shape}"
    for i, field in enumerate(("qpos", "qvel")):
        end = 0
        for joint in backend.joints:
            columns: slice = getattr(joint, field)
            assert columns == slice(end, end + JOINT_WIDTHS[joint.type][i]), f"{field} of {joint}"
            end = columns.stop
        assert end == told[field], f"the joints have {end} of {told[field]} {field} columns"
    for name, size in (("default_qpos", told["qpos"]), ("default_ctrl", len(backend.actuators))):
        value: Tensor = getattr(backend, name)
        assert (value.shape, value.dtype) == ((size,), torch.float64), f"{name} is {value}"
    for joint in backend.joints:
        axis = joint.axis
        assert axis is None or math.isclose(math.hypot(*axis), 1.0, rel_tol=1e-6), f"{joint}"
    for part in ("joints", "actuators", "bodies"):
        names = [getattr(each, "name", each) for each in getattr(backend, part)]
        assert len(set(names)) == len(names), f"names of {part} are not unique: {names}"
    joints, bodies = {joint.name for joint in backend.joints}, set(backend.bodies)
    for actuator in backend.actuators:
        assert actuator.joint in {None, *joints}, f"{actuator} drives an unknown joint"
    used = {joint.body for joint in backend.joints} | {geom.body for geom in backend.geoms}
    assert used <= bodies, f"joints or geoms belong to unknown bodies {sorted(used - bodies)}"
    for body in backend.bodies:
        tree, least = backend.subtree(body), bodies if body == backend.bodies[0] else {body}
        assert least <= tree <= bodies, f"subtree({body!r}) is {sorted(tree)}"


@_clause
def a_new_backend_is_at_home(make: _Maker) -> None:
    backend = make()
    views = backend.get_state_views()
    home = {"qpos": backend.default_qpos, "qvel": torch.zeros(1), "ctrl": backend.default_ctrl}
    for name in home.keys() & views.keys():
        expected = home[name].to(views[name]).expand_as(views[name])
        assert torch.equal(views[name], expected), f"{name} is {views[name][0].tolist()}"


@_clause
def views_are_live(make: _Maker) -> None:
    backend = make()
    views, before = _views(backend), _snapshot(backend)
    _drive(backend)
    for name, view in _views(backend).items():
        assert view.data_ptr() == views[name].data_ptr(), f"{name} is a copy, or moved"
    assert not torch.equal(views["qpos"], before["qpos"]), "qpos does not follow the physics"


@_clause
def reads_are_packed(make: _Maker) -> None:
    backend = make()
    sources = [(name, slice(None)) for name in _views(backend)]
    plan = backend.compile_host_bridge_io(sources, CPU)
    _drive(backend)
    packet, values = plan.read(), _snapshot(backend)
    for (name, _), columns in zip(sources, plan.columns, strict=True):
        assert torch.equal(packet[:, columns], values[name].float()), f"{name} reads otherwise"
    # The meta device takes the path of an accelerator.
    away = backend.compile_host_bridge_io(sources, torch.device("meta"))
    away.read()
    away.read_rows(SOME, SOME.to("meta"))
    counted, sent = (away.transfers, away.bytes), (N + len(SOME)) * packet.shape[1] * 4
    assert counted == (2, sent), f"two reads count {counted} transfers and bytes, not {(2, sent)}"


@_clause
def sensors_are_current_with_the_state(make: _Maker) -> None:
    direct, detour = make(), make()
    _snapshot(detour)  # binds the sensors
    detour.set_state_tensor(ALL, *_poses(detour, 1))
    _drive(detour)
    after = make.current(detour)
    direct.set_state_tensor(ALL, after["qpos"], after["qvel"])
    seen = make.current(direct)
    for name in after:
        same = torch.allclose(after[name], seen[name], rtol=1e-6, atol=1e-6)
        assert same or not (name.startswith("sensor:") or name in _KINEMATICS), (
            f"{name} after a step belongs to another state: fix it or name a sensor in late_sensors"
        )


@_clause
def substeps_hold_the_control(make: _Maker) -> None:
    at_once, one_by_one = make(), make()
    _drive(at_once)
    for ctrl in _controls(one_by_one, 0):
        for _ in range(NSTEP):
            one_by_one.step_tensor(ctrl, 1)
    same = torch.equal(_state(at_once), _state(one_by_one))
    assert same, f"a step of {NSTEP} substeps differs from {NSTEP} steps of one"
    time = at_once.get_state_views().get("time", torch.tensor(STEPS * NSTEP * at_once.timestep))
    each = float(time.flatten()[0]) / (STEPS * NSTEP)
    right = math.isclose(each, at_once.timestep, rel_tol=1e-3)
    assert right, f"a substep takes {each:.6g} s, but timestep is {at_once.timestep}"


@_clause
def joints_stay_in_their_ranges(make: _Maker) -> None:
    backend = make()
    qvel = backend.get_state_views()["qvel"]
    ends = []
    for joint in backend.joints:
        low, high = joint.range
        assert low < high, f"the range of joint {joint.name!r} is {joint.range}"
        if joint.type in ("hinge", "slide") and math.isfinite(high - low):
            ends += [(joint, high, high - low), (joint, low, low - high)]
    for at in range(0, len(ends), N):
        chosen = ends[at : at + N]
        pose, speed = backend.default_qpos.repeat(N, 1), torch.zeros_like(qvel)
        for row, (joint, end, span) in enumerate(chosen):
            pose[row, joint.qpos], speed[row, joint.qvel] = end, span / 0.1
        backend.set_state_tensor(ALL, pose, speed)
        for _ in range(math.ceil(0.1 / (NSTEP * backend.timestep))):
            backend.step_tensor(backend.default_ctrl.repeat(N, 1).float(), NSTEP)
            for row, (joint, end, span) in enumerate(chosen):
                over = (backend.get_state_views()["qpos"][row, joint.qpos] - end) / span
                assert over < 0.3, (
                    f"joint {joint.name!r} left its range {joint.range} by 30 % of it: the range "
                    "is wrong, or physics does not keep it"
                )


@_clause
def actuators_have_their_gains_and_limits(make: _Maker) -> None:
    backend = make()
    views = backend.get_state_views()
    driven = [actuator.joint for actuator in backend.actuators]
    joints = {joint.name: joint for joint in backend.joints if joint.type in ("hinge", "slide")}
    for i, actuator in enumerate(backend.actuators):
        for what in ("ctrl_range", "force_range"):
            low, high = getattr(actuator, what)
            assert low < high, f"{what} of actuator {actuator.name!r} is {low, high}"
        alone = driven.count(actuator.joint) == 1 and actuator.joint in joints
        known = math.isfinite(actuator.gain) and not views.get("act", torch.empty(0)).numel()
        known = known and not actuator.delay  # the control of before would act
        if alone and known and "qfrc_actuator" in views:
            _check_actuator(backend, i, joints[actuator.joint or ""])


def _check_actuator(backend: SimBackend, i: int, joint: JointInfo) -> None:
    """Compare forces of an actuator, alone on its joint, with what is published about it."""
    actuator, home = backend.actuators[i], float(backend.default_qpos[joint.qpos])
    (low, high), (first, last), gear = actuator.force_range, actuator.ctrl_range, actuator.gear
    stiffness, damping = gear * actuator.stiffness, gear * actuator.damping
    reach = min(high - low, 1e3)
    angle, speed = reach / max(abs(stiffness), reach), reach / max(abs(damping), reach)
    idle = (stiffness * home - actuator.bias) / (actuator.gain or 1.0)  # no force at home
    lowest, highest = max(first, idle - 1e3), min(last, idle + 1e3)
    qpos, qvel = backend.default_qpos.repeat(N, 1), 0.0 * backend.get_state_views()["qvel"]
    still, moved = torch.zeros(N), torch.tensor([0.0, 2.0, -2.0, 0.0, 0.0])
    for ctrl, at, rate in (
        (torch.full((N,), idle), 0.01 * angle * moved, 0.01 * speed * moved.flip(0)),
        (torch.full((N,), idle), angle * moved, speed * moved.flip(0)),  # beyond the limits
        (torch.tensor([lowest, lowest - 1.0, idle, highest, highest + 1.0]), still, still),
    ):
        controls = backend.default_ctrl.repeat(N, 1).float()
        controls[:, i] = ctrl
        backend.set_state_tensor(ALL, qpos, qvel)
        backend.step_tensor(controls, 1)  # so that the write below finds them
        there, moving = qpos.clone(), qvel.clone()
        there[:, joint.qpos], moving[:, joint.qvel] = home + at[:, None], rate[:, None].to(qvel)
        backend.set_state_tensor(ALL, there, moving, reset=False)
        found = backend.get_state_views()["qfrc_actuator"][:, joint.qvel.start] / gear
        wanted = actuator.gain * ctrl.clamp(first, last) + actuator.bias
        wanted = wanted - stiffness * (home + at) - damping * rate
        wanted = wanted.clamp(*actuator.limits(gear * rate))
        assert torch.allclose(found.float(), wanted, rtol=1e-3, atol=1e-3), (
            f"{actuator} has forces {found.tolist()}, not {wanted.tolist()}, at {at.tolist()} rad "
            f"from home and {rate.tolist()} rad/s under {ctrl.tolist()}"
        )


@_clause
def rows_are_deterministic_and_independent(make: _Maker) -> None:
    fields, ends = _fields(make), []
    for changed in ([], *([row] for row in range(N))):
        backend = make()
        rows = torch.tensor(changed, dtype=torch.int64)
        (qpos, qvel), controls = _poses(backend, 0), _controls(backend, 0)
        qvel[rows] *= 0.5
        controls[:, rows] *= 0.5
        _write(backend, fields, rows)
        backend.set_const(rows)
        backend.set_state_tensor(ALL, qpos, qvel)
        for ctrl in controls:
            backend.step_tensor(ctrl, NSTEP)
        ends.append(_snapshot(backend))
    for row, end in enumerate(ends[1:]):
        where = f"beside another state, control and model of row {row}"
        _assert_same(ends[0], end, ALL[row != ALL], where)


@_clause
def a_diverged_row_stays_visible_and_alone(make: _Maker) -> None:
    sound = make()
    qpos, qvel = _poses(sound, 1)
    sound.set_state_tensor(ALL, qpos, qvel)
    _drive(sound)
    for row in range(N):
        diverged = make()
        broken = qvel.clone()
        broken[row] = math.nan
        diverged.set_state_tensor(ALL, qpos, broken)
        _drive(diverged)
        finite = _state(diverged).isfinite().all(1)
        assert finite.tolist() == [i != row for i in range(N)], f"finite: {finite.tolist()}"
        where = f"beside row {row}, which has diverged"
        _assert_same(_snapshot(sound), _snapshot(diverged), ALL[finite], where)


@_clause
def bad_arguments_are_refused_and_change_nothing(make: _Maker) -> None:
    backend = make()
    _drive(backend)
    nu, pair, (qpos, qvel) = len(backend.actuators), torch.tensor([0, 1]), _poses(backend, 1)
    step, write, read = backend.step_tensor, backend.set_state_tensor, backend.get_sensor_view
    compiled = backend.compile_host_bridge_io
    two = qpos[:2], qvel[:2]
    calls: list[tuple[Any, ...]] = [
        ("ctrl of another width", ConfigError, step, torch.zeros(N, nu + 1), 1),
        ("ctrl of another length", ConfigError, step, torch.zeros(N + 1, nu), 1),
        ("qpos of another width", ConfigError, write, pair, qpos[:2, :-1], qvel[:2]),
        ("qvel of another length", ConfigError, write, pair, qpos[:2], qvel[:1]),
        ("rows of floats", ConfigError, write, pair.double(), *two),
        ("a row that comes twice", ConfigError, write, torch.tensor([1, 1]), *two),
        ("a negative row", ConfigError, write, torch.tensor([-1, 2]), *two),
        ("a row too many", ConfigError, write, torch.tensor([0, N]), *two),
        ("an unknown sensor", CapabilityError, read, "no such"),
        ("an unknown model field", CapabilityError, backend.expand, "no such"),
        ("an unknown state field", CapabilityError, compiled, [("no such", slice(None))], CPU),
    ]
    before = _snapshot(backend)
    for what, kind, call, *arguments in calls:
        try:
            call(*arguments)
        except kind:
            _assert_same(before, _snapshot(backend), ALL, f"although {what} was refused")
        else:
            raise AssertionError(f"{what} was accepted: expected {kind.__name__}")


@_clause
def a_write_sets_its_rows_and_no_others(make: _Maker) -> None:
    backend = make()
    if not backend.get_tensor_capabilities().selected_row_reset:
        return
    _drive(backend)
    for chosen, reset in (([4, 2, 3, 0], False), ([3, 1], True)):
        rows, others = torch.tensor(chosen), torch.tensor([*{*range(N)} - {*chosen}])
        before, (qpos, qvel) = _snapshot(backend), _poses(backend, len(rows))
        backend.set_state_tensor(rows, qpos[rows], qvel[rows], reset=reset)
        _assert_same(before, _snapshot(backend), others, "in rows that were not written")
        written, given = _state(backend)[rows], torch.cat((qpos, qvel), 1)[rows]
        same = torch.equal(written, given.to(written))
        assert same, f"rows {chosen} do not hold what was written to them (reset={reset})"


@_clause
def a_reset_row_is_like_new(make: _Maker) -> None:
    old, new = make(), make()
    rows = SOME if old.get_tensor_capabilities().selected_row_reset else ALL
    _drive(old)
    home = old.default_qpos.repeat(len(rows), 1)
    old.set_state_tensor(rows, home, torch.zeros_like(_poses(old, 0)[1][rows]), reset=True)
    _assert_same(make.current(new), make.current(old), rows, "between a new and a reset row")
    _drive(old, new, seed=2)
    _assert_same(_snapshot(new), _snapshot(old), rows, "some steps after a reset")


@_clause
def a_write_without_reset_keeps_the_rest(make: _Maker) -> None:
    backend = make()
    _drive(backend)
    kept = {k: v for k, v in _snapshot(backend).items() if k in ("time", "ctrl", "act")}
    backend.set_state_tensor(ALL, *_poses(backend, 1), reset=False)
    _assert_same(kept, _snapshot(backend), ALL, "after reset=False")


@_clause
def a_model_field_acts_in_its_rows(make: _Maker) -> None:
    plain = make()
    _drive(plain)
    for name in _fields(make):
        varied = make()
        nominal = varied.expand(name)[0].clone()
        _write(varied, [name], SOME)
        varied.set_const(SOME)
        written = [not torch.equal(value, nominal) for value in varied.expand(name)]
        assert not any(written[::2]), f"{name} of rows 1 and 3 is in other rows, too"
        assert all(written[1::2]) or not nominal.any(), f"{name} is a copy: writes are lost"
        models = [varied.get_model_bytes(row) for row in range(N)]
        told = [model != models[0] for model in models]
        assert told == written, f"get_model_bytes tells of {name} in rows {told}, not {written}"
        _drive(varied)
        differ = (_state(plain) != _state(varied)).any(1)
        assert not differ[OTHERS].any(), f"{name} of rows 1 and 3 changes other rows' physics"
        assert differ[SOME].all() or name != "body_mass", f"{name} does not change the physics"


@_clause
def a_force_on_bodies_acts_in_its_rows_until_a_reset(make: _Maker) -> None:
    plain, pushed = make(), make()
    if "xfrc_applied" not in plain.get_tensor_capabilities().state_fields:
        return
    applied = pushed.get_state_view("xfrc_applied")
    applied[SOME] = 1.0
    _drive(plain)
    _drive(pushed)
    differ = (_state(plain) != _state(pushed)).any(1)
    assert not differ[OTHERS].any(), "xfrc_applied of rows 1 and 3 changes other rows' physics"
    assert differ[SOME].all(), "xfrc_applied does not change the physics"
    if plain.get_tensor_capabilities().selected_row_reset:
        pushed.set_state_tensor(SOME, *(value[SOME] for value in _poses(pushed, 0)))
        assert not applied.any(), "a reset leaves xfrc_applied as it was"


@_clause
def set_const_recomputes_its_rows(make: _Maker) -> None:
    derived_from = make().get_tensor_capabilities().derived_from
    fields = [name for name in _fields(make) if name in derived_from]
    if not fields:
        return
    ends = []
    for rows in ([], [SOME], [None]):
        backend = make()
        _write(backend, fields, ALL)
        before = _state(backend)
        for selected in rows:
            backend.set_const(selected)
        assert torch.equal(before, _state(backend)), "set_const changes the state"
        models = [backend.get_model_bytes(row) for row in range(N)]
        _drive(backend)
        ends.append([*zip(models, _state(backend).tolist(), strict=True)])
    for row, (none, some, everything) in enumerate(zip(*ends, strict=True)):
        assert none != everything, f"set_const does nothing after a write to {fields}"
        expected = everything if row in SOME else none
        assert some == expected, f"set_const([1, 3]) is wrong in row {row}"


@_clause
def a_step_can_be_replayed(make: _Maker) -> None:
    backend = make()
    fields = _fields(make)
    _write(backend, fields, ALL)
    backend.set_const()
    backend.set_state_tensor(ALL, *_poses(backend, 2))  # a reset, which keeps the model
    _drive(backend)
    view, ctrl = backend.get_replay_state(), _controls(backend, 3)[0]
    before = view.clone()
    backend.step_tensor(ctrl, NSTEP)
    after = backend.get_replay_state()
    assert after.data_ptr() == view.data_ptr(), "get_replay_state() is a copy, or moved"
    for row in range(N):
        model = backend.get_model_bytes(row)
        again = type(backend).replay(model, before[row], ctrl[row].double(), NSTEP)
        same = torch.equal(again, after[row])
        assert same, f"row {row} replays to another state (written: {fields})"


@_clause
def a_saved_state_continues(make: _Maker) -> None:
    fields = _fields(make)
    saved, other = make(), make()
    for backend in (saved, other):
        _views(backend)
    for name in fields:
        other.expand(name)
    _write(saved, fields, ALL)
    saved.set_const()
    saved.set_state_tensor(ALL, *_poses(saved, 2))
    _drive(saved)
    state = saved.state_dict()
    other.load_state_dict(state)
    _assert_same(_snapshot(saved), _snapshot(other), ALL, "after load_state_dict")
    _drive(saved, seed=1)
    other.load_state_dict(state)
    _drive(other, seed=1)
    _assert_same(_snapshot(saved), _snapshot(other), ALL, "some steps after load_state_dict")


@_clause
def close_frees_the_simulator(make: _Maker) -> None:
    backend = make()
    backend.close()
    try:
        backend.step_tensor(backend.default_ctrl.repeat(N, 1).float(), 1)
    except Exception:  # of any kind
        return
    raise AssertionError("it steps after close(): the simulator was not freed")


def _poses(backend: SimBackend, seed: int) -> tuple[Tensor, Tensor]:
    """A state near home for every environment, ``[N, nq]`` and ``[N, nv]``."""
    draw = torch.Generator().manual_seed(seed)
    qpos = backend.default_qpos.repeat(N, 1)
    for joint in backend.joints:
        # Quaternions stay as they are.
        moved = {"free": 3, "ball": 0}.get(joint.type, 1)
        start = joint.qpos.start
        qpos[:, start : start + moved] += 0.1 * torch.rand(N, moved, generator=draw).double()
    nv = backend.get_state_views()["qvel"].shape[1]
    return qpos, 0.2 * torch.rand(N, nv, generator=draw).double()


def _controls(backend: SimBackend, seed: int) -> Tensor:
    """``[STEPS, N, nu]`` float32 controls within their ranges, at most 1 in size."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.rand(STEPS, N, len(backend.actuators), generator=draw)
    ranges = [actuator.ctrl_range for actuator in backend.actuators]
    low = torch.tensor([max(low, -1.0) for low, _ in ranges])
    high = torch.tensor([min(high, 1.0) for _, high in ranges])
    return low + share * (high - low)


def _drive(*backends: SimBackend, seed: int = 0) -> None:
    """Some control steps, the same for every backend of a model."""
    for backend in backends:
        for ctrl in _controls(backend, seed):
            backend.step_tensor(ctrl, NSTEP)


def _views(backend: SimBackend) -> dict[str, Tensor]:
    """Live views of every state field and sensor."""
    capabilities = backend.get_tensor_capabilities()
    fields = {name: backend.get_state_view(name) for name in capabilities.state_fields}
    return fields | {f"sensor:{n}": backend.get_sensor_view(n) for n in capabilities.sensors}


def _snapshot(backend: SimBackend) -> dict[str, Tensor]:
    return {name: view.clone() for name, view in _views(backend).items()}


def _state(backend: SimBackend) -> Tensor:
    """A copy of positions and velocities, ``[N, nq + nv]``."""
    views = backend.get_state_views()
    return torch.cat((views["qpos"], views["qvel"]), dim=1)


def _assert_same(a: dict[str, Tensor], b: dict[str, Tensor], rows: Tensor, where: str) -> None:
    for name, value in a.items():
        assert torch.equal(value[rows], b[name][rows]), f"{name} differs {where}"


def _fields(make: _Maker) -> list[str]:
    backend = make()
    known = backend.get_tensor_capabilities().model_fields
    return [name for name in _RANDOMISED if name in known and backend.expand(name).numel()]


def _write(backend: SimBackend, fields: list[str], rows: Tensor) -> None:
    """Somewhat larger values in some rows, different in each."""
    for name in fields:
        value = backend.expand(name)
        for row in rows.tolist():
            value[row] = value[row] * (1.3 + 0.1 * row) + (0.01 if name[:4] == "dof_" else 0.0)
