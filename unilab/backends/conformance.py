"""For the tests of a backend's author: does it keep the contract that environments build on?"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from unilab.backends.base import JointInfo, SimBackend
from unilab.errors import CapabilityError, ConfigError

BackendFactory = Callable[[int], SimBackend]
"""Makes a new backend of so many environments; every call an equal one."""

__all__ = ["CLAUSES", "assert_backend_conforms"]


@dataclass(frozen=True)
class _Subject:
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
            for name, value in _snapshot(backend).items()
            if name.removeprefix("sensor:") not in self.late_sensors
        }


CLAUSES: dict[str, Callable[[_Subject], None]] = {}
"""The contract's clauses by name, each with its check."""

_N, _STEPS, _NSTEP = 5, 8, 3
_WIDTHS = {"free": (7, 6), "ball": (4, 3), "slide": (1, 1), "hinge": (1, 1)}


def assert_backend_conforms(factory: BackendFactory, *, late_sensors: Collection[str] = ()) -> None:
    """Asserts that a backend keeps every clause of the contract of :class:`SimBackend`.

    Each clause makes backends of its own, of up to 6 environments, and closes them.

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
            check(_Subject(factory, late_sensors))
        except AssertionError as error:
            broken.append(f"{name}: {error}")
        except Exception as error:  # whatever a foreign backend raises
            broken.append(f"{name}: raised {type(error).__name__}: {error}")
    if broken:
        raise AssertionError(
            f"the backend breaks {len(broken)} of {len(CLAUSES)} clauses of the contract:\n  "
            + "\n  ".join(broken)
        )


def _clause(check: Callable[[_Subject], None]) -> None:
    CLAUSES[check.__name__.strip("_").replace("_", " ")] = check


def _poses(backend: SimBackend, seed: int) -> tuple[Tensor, Tensor]:
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


def _controls(backend: SimBackend, seed: int) -> Tensor:
    """``[steps, num_envs, nu]`` float32 controls within their ranges, at most 1 in size."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.rand(_STEPS, backend.num_envs, len(backend.actuators), generator=draw)
    ranges = [actuator.ctrl_range for actuator in backend.actuators]
    low = torch.tensor([max(low, -1.0) for low, _ in ranges])
    high = torch.tensor([min(high, 1.0) for _, high in ranges])
    return low + share * (high - low)


def _drive(backend: SimBackend, seed: int = 0) -> None:
    for ctrl in _controls(backend, seed):
        backend.step_tensor(ctrl, _NSTEP)


def _snapshot(backend: SimBackend) -> dict[str, Tensor]:
    """Copies of every state field and sensor."""
    sensors = {n: backend.get_sensor_view(n) for n in backend.get_tensor_capabilities().sensors}
    values = {**backend.get_state_views(), **{f"sensor:{n}": v for n, v in sensors.items()}}
    return {name: value.clone() for name, value in values.items()}


def _state(backend: SimBackend) -> Tensor:
    views = backend.get_state_views()
    return torch.cat((views["qpos"], views["qvel"]), dim=1)


def _same(a: dict[str, Tensor], b: dict[str, Tensor], rows: Tensor, where: str) -> None:
    for name, value in a.items():
        assert torch.equal(value[rows], b[name][rows]), f"{name} differs {where}"


def _refuses(kind: type[Exception], what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}, not {kind.__name__}") from None
    raise AssertionError(f"{what} was accepted: expected {kind.__name__}")


@_clause
def _metadata_describes_the_model(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        assert backend.num_envs == _N, f"num_envs is {backend.num_envs}, the factory was given {_N}"
        assert backend.timestep > 0.0, f"timestep is {backend.timestep}: expected seconds"
        views = backend.get_state_views()
        for which, place in (("qpos", 0), ("qvel", 1)):
            columns = _columns(backend.joints, which, place)
            width = views[which].shape[1]
            assert columns == list(range(width)), (
                f"the joints' {which} columns are {columns}: expected all {width} in order"
            )
        for name, value, width in (
            ("default_qpos", backend.default_qpos, views["qpos"].shape[1]),
            ("default_ctrl", backend.default_ctrl, len(backend.actuators)),
        ):
            assert value.shape == (width,), f"{name} has shape {tuple(value.shape)}, not {(width,)}"
            assert value.dtype == torch.float64, f"{name} is {value.dtype}: expected torch.float64"
        names = [joint.name for joint in backend.joints]
        assert len(set(names)) == len(names), f"joint names are not unique: {names}"
        bodies = backend.bodies
        assert len(set(bodies)) == len(bodies), f"body names are not unique: {bodies}"
        lost = {part.body for part in (*backend.joints, *backend.geoms)} - set(bodies)
        assert not lost, f"joints or geoms belong to {sorted(lost)}, which are no bodies"
        for joint in backend.joints:
            assert joint.range[0] <= joint.range[1], f"joint {joint.name!r} has range {joint.range}"
        for actuator in backend.actuators:
            assert actuator.joint is None or actuator.joint in names, (
                f"actuator {actuator.name!r} drives {actuator.joint!r}, which is no joint"
            )
            for bounds in (actuator.ctrl_range, actuator.force_range):
                assert bounds[0] <= bounds[1], f"actuator {actuator.name!r} has a range {bounds}"


def _columns(joints: tuple[JointInfo, ...], which: str, place: int) -> list[int]:
    columns: list[int] = []
    for joint in joints:
        cols: slice = getattr(joint, which)
        width = _WIDTHS[joint.type][place]
        assert cols.stop - cols.start == width, (
            f"joint {joint.name!r} is a {joint.type} with {which} {cols}: expected {width} columns"
        )
        columns += range(cols.start, cols.stop)
    return columns


@_clause
def _subtree_is_a_body_and_all_below_it(it: _Subject) -> None:
    with it.made(1) as (backend,):
        trees = {body: backend.subtree(body) for body in backend.bodies}
        for body, tree in trees.items():
            assert body in tree, f"subtree({body!r}) lacks {body!r} itself"
            assert tree <= set(backend.bodies), f"subtree({body!r}) has {tree}: not all are bodies"
            for below in tree:
                assert trees[below] <= tree, (
                    f"subtree({body!r}) has {below!r} and not all of subtree({below!r})"
                )


@_clause
def _execution_names_the_device_of_the_views(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        execution = backend.tensor_execution()
        assert execution.kind == "HOST_BRIDGE", (
            f"kind is {execution.kind!r}: the suite checks HOST_BRIDGE backends"
        )
        assert execution.device.type == "cpu", f"HOST_BRIDGE on {execution.device}: expected cpu"
        for name, view in backend.get_state_views().items():
            assert view.device == execution.device, f"{name} is on {view.device}"


@_clause
def _capabilities_tell_the_truth(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        capabilities, views = backend.get_tensor_capabilities(), backend.get_state_views()
        missing = {"qpos", "qvel"} - set(views)
        assert not missing, f"state fields lack {sorted(missing)}"
        given = {name: tuple(view.shape) for name, view in views.items()}
        told = {name: (_N, width) for name, width in capabilities.state_fields.items()}
        assert given == told, f"state_fields tell {told}, the views have {given}"
        for name, width in capabilities.sensors.items():
            shape = tuple(backend.get_sensor_view(name).shape)
            assert shape == (_N, width), f"sensor {name!r} has shape {shape}, not {(_N, width)}"
        extra = capabilities.derived_from - capabilities.model_fields
        assert not extra, f"derived_from has {sorted(extra)}, which model_fields lacks"
        _refuses(CapabilityError, "an unknown sensor", lambda: backend.get_sensor_view("no such"))


@_clause
def _it_begins_at_home(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        views = backend.get_state_views()
        home = backend.default_qpos.expand(_N, -1)
        assert torch.equal(views["qpos"].double(), home), "qpos is not default_qpos in every row"
        assert not views["qvel"].any(), "qvel is not 0"
        if "ctrl" in views:
            held = backend.default_ctrl.expand(_N, -1)
            assert torch.equal(views["ctrl"].double(), held), "ctrl is not default_ctrl"


@_clause
def _views_are_live(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        sensors = backend.get_tensor_capabilities().sensors
        views = {**backend.get_state_views()} | {s: backend.get_sensor_view(s) for s in sensors}
        before = backend.get_state_views()["qpos"].clone()
        _drive(backend)
        again = {**backend.get_state_views()} | {s: backend.get_sensor_view(s) for s in sensors}
        for name, view in views.items():
            assert view.data_ptr() == again[name].data_ptr(), f"{name} is a copy, or moved"
        if backend.actuators and len(before[0]):
            assert not torch.equal(views["qpos"], before), "qpos does not change with the physics"


@_clause
def _the_same_controls_give_the_same_states(it: _Subject) -> None:
    with it.made(_N, _N) as (one, other):
        _drive(one)
        _drive(other)
        assert torch.equal(_state(one), _state(other)), "two equal runs end in different states"


@_clause
def _substeps_hold_the_control(it: _Subject) -> None:
    with it.made(_N, _N) as (at_once, one_by_one):
        for ctrl in _controls(at_once, 0):
            at_once.step_tensor(ctrl, _NSTEP)
            for _ in range(_NSTEP):
                one_by_one.step_tensor(ctrl, 1)
        assert torch.equal(_state(at_once), _state(one_by_one)), (
            f"a step of {_NSTEP} substeps ends elsewhere than {_NSTEP} steps of one"
        )


@_clause
def _environments_do_not_touch_each_other(it: _Subject) -> None:
    with it.made(_N, _N) as (one, other):
        for mine, theirs in zip(_controls(one, 0), _controls(other, 1), strict=True):
            theirs[2] = mine[2]
            one.step_tensor(mine, _NSTEP)
            other.step_tensor(theirs, _NSTEP)
        assert torch.equal(_state(one)[2], _state(other)[2]), (
            "a row's state depends on its neighbours' controls"
        )


@_clause
def _controls_that_do_not_fit_are_refused(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        before, nu = _snapshot(backend), len(backend.actuators)
        for shape in ((_N, nu + 1), (_N + 1, nu)):
            ctrl = torch.zeros(shape)
            _refuses(
                ConfigError, f"ctrl of shape {shape}", lambda c=ctrl: backend.step_tensor(c, 1)
            )
        _same(before, _snapshot(backend), torch.arange(_N), "although the controls were refused")


@_clause
def _a_write_sets_its_rows_and_no_others(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        if not backend.get_tensor_capabilities().selected_row_reset:
            return
        _drive(backend)
        before = _snapshot(backend)
        qpos, qvel = _poses(backend, 1)
        rows = torch.tensor([3, 0])
        for reset in (False, True):
            backend.set_state_tensor(rows, qpos[rows], qvel[rows], reset=reset)
            _same(before, _snapshot(backend), torch.tensor([1, 2, 4]), "in rows not written")
            written = _state(backend)[rows].double()
            assert torch.equal(written, torch.cat((qpos, qvel), 1)[rows]), (
                f"rows {rows.tolist()} do not hold what was written to them (reset={reset})"
            )


@_clause
def _a_write_that_does_not_fit_is_refused_whole(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        _drive(backend)
        before = _snapshot(backend)
        qpos, qvel = (value[:2] for value in _poses(backend, 1))
        payloads: dict[str, tuple[Tensor, Tensor, Tensor]] = {
            f"rows {rows.tolist()} ({rows.dtype})": (rows, qpos[: len(rows)], qvel[: len(rows)])
            for rows in (
                torch.tensor([1, 1]),
                torch.tensor([-1, 2]),
                torch.tensor([0, _N]),
                torch.tensor([[0, 1]]),
                torch.tensor([0.0, 1.0]),
                torch.tensor([True, False]),
            )
        }
        rows = torch.tensor([0, 1])
        payloads["qpos of another width"] = (rows, torch.cat((qpos, qpos), 1), qvel)
        payloads["qvel of another length"] = (rows, qpos, qvel[:1])
        for what, payload in payloads.items():
            _refuses(ConfigError, what, lambda p=payload: backend.set_state_tensor(*p))
            _same(before, _snapshot(backend), torch.arange(_N), f"although {what} was refused")


@_clause
def _a_reset_row_is_like_new(it: _Subject) -> None:
    with it.made(_N, _N) as (old, new):
        rows = torch.arange(_N)
        if old.get_tensor_capabilities().selected_row_reset:
            rows = torch.tensor([1, 3])
        _drive(old)
        home, still = old.default_qpos.repeat(len(rows), 1), torch.zeros_like(_poses(old, 0)[1])
        old.set_state_tensor(rows, home, still[rows], reset=True)
        _same(it.current(new), it.current(old), rows, "after a reset from a new backend")
        for ctrl in _controls(old, 2):
            for backend in (old, new):
                backend.step_tensor(ctrl, _NSTEP)
        _same(_snapshot(new), _snapshot(old), rows, "some steps after a reset from a new backend")


@_clause
def _a_write_without_reset_keeps_time_and_controls(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        _drive(backend)
        kept = {k: v.clone() for k, v in backend.get_state_views().items() if k in ("time", "ctrl")}
        backend.set_state_tensor(torch.arange(_N), *_poses(backend, 1), reset=False)
        _same(kept, dict(backend.get_state_views()), torch.arange(_N), "after reset=False")


@_clause
def _sensors_are_current_with_the_state(it: _Subject) -> None:
    with it.made(_N, _N) as (direct, detour):
        rows, pose = torch.arange(_N), _poses(direct, 1)
        for backend in (direct, detour):
            _snapshot(backend)  # somebody looks at the sensors from now on
        detour.set_state_tensor(rows, *_poses(detour, 2))
        for backend in (direct, detour):
            backend.set_state_tensor(rows, *pose)
        _same(it.current(direct), it.current(detour), rows, "between writes of one state")
        _drive(detour)
        after = it.current(detour)
        qpos, qvel = (detour.get_state_views()[name].double() for name in ("qpos", "qvel"))
        direct.set_state_tensor(rows, qpos, qvel)
        seen = it.current(direct)
        for name in [name for name in after if name.startswith("sensor:")]:
            torch.testing.assert_close(
                after[name],
                seen[name],
                rtol=1e-9,
                atol=1e-9,
                msg=lambda _, name=name: (
                    f"{name} after a step is not that of the state then; if it belongs to the last "
                    f"substep, name it in late_sensors"
                ),
            )


@_clause
def _a_diverged_row_stays_visible_and_alone(it: _Subject) -> None:
    with it.made(_N, _N) as (backend, sound):
        qpos, qvel = _poses(backend, 1)
        sound.set_state_tensor(torch.arange(_N), qpos, qvel)
        qvel = qvel.clone()
        qvel[2] = math.nan
        backend.set_state_tensor(torch.arange(_N), qpos, qvel)
        _drive(sound)
        _drive(backend)
        finite = _state(backend).isfinite().all(1)
        assert finite.tolist() == [True, True, False, True, True], (
            f"row 2 began with a velocity of NaN; finite after some steps are {finite.tolist()}"
        )
        assert torch.equal(_state(backend)[finite], _state(sound)[finite]), (
            "a row's state depends on a neighbour that has diverged"
        )


@_clause
def _a_step_can_be_replayed(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        _drive(backend)
        view = backend.get_replay_state()
        before, ctrl = view.clone(), _controls(backend, 3)[0]
        backend.step_tensor(ctrl, _NSTEP)
        after = backend.get_replay_state()
        assert after.data_ptr() == view.data_ptr(), "get_replay_state() is a copy, or moved"
        for row in (0, _N - 1):
            model = backend.get_model_bytes(row)
            again = type(backend).replay(model, before[row], ctrl[row].double(), _NSTEP)
            assert torch.equal(again, after[row]), f"row {row} replays to another state"


@_clause
def _model_fields_can_differ_between_rows(it: _Subject) -> None:
    with it.made(_N, _N) as (plain, varied):
        fields = sorted(varied.get_tensor_capabilities().model_fields)
        for name in fields:
            value = varied.expand(name)
            assert value.shape[:1] == (_N,), f"{name} has shape {tuple(value.shape)}, not [{_N}...]"
            assert torch.equal(value, value[:1].expand_as(value)), f"{name} differs from the start"
            live = varied.expand(name)
            assert live.data_ptr() == value.data_ptr(), f"{name} is a copy: writes are lost"
        if fields:
            varied.set_const(torch.tensor([1]))
            varied.set_const()
        _drive(plain)
        _drive(varied)
        assert torch.equal(_state(plain), _state(varied)), "expanding fields changes the physics"
        _refuses(CapabilityError, "an unknown model field", lambda: varied.expand("no such"))


@_clause
def _reads_are_packed(it: _Subject) -> None:
    with it.made(_N) as (backend,):
        sensors = [f"sensor:{name}" for name in backend.get_tensor_capabilities().sensors]
        sources = [(name, slice(None)) for name in (*backend.get_state_views(), *sensors)]
        plan = backend.compile_host_bridge_io(sources, torch.device("cpu"))
        _drive(backend)
        packet, values = plan.read(), _snapshot(backend)
        for (name, _), columns in zip(sources, plan.columns, strict=True):
            assert torch.equal(packet[:, columns], values[name].float()), f"{name} reads otherwise"
        for name in ("no such", "sensor:no such"):
            _refuses(
                CapabilityError,
                f"a read of {name!r}",
                lambda n=name: backend.compile_host_bridge_io(
                    [(n, slice(None))], torch.device("cpu")
                ),
            )
        # The meta device takes the path of an accelerator.
        away = backend.compile_host_bridge_io(sources, torch.device("meta"))
        away.read()
        away.read_rows(torch.tensor([0, 2]))
        sent = (_N + 2) * packet.shape[1] * packet.element_size()
        assert (away.transfers, away.bytes) == (2, sent), (
            f"a read of all rows and one of 2 are {away.transfers} transfers of {away.bytes} "
            f"bytes: expected 2 of {sent}"
        )


@_clause
def _closing_twice_is_harmless(it: _Subject) -> None:
    backend = it.factory(1)
    backend.close()
    backend.close()
