"""Clauses on what a backend tells of itself and on what it shows."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import torch

from unilab.backends.base import JointInfo
from unilab.backends.conformance.subject import (
    N,
    Subject,
    drive,
    refuses,
    snapshot,
)
from unilab.errors import CapabilityError

_WIDTHS = {"free": (7, 6), "ball": (4, 3), "slide": (1, 1), "hinge": (1, 1)}


def metadata_describes_the_model(it: Subject) -> None:
    with it.made(N) as (backend,):
        assert backend.num_envs == N, f"num_envs is {backend.num_envs}, the factory was given {N}"
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
        used = {joint.body for joint in backend.joints} | {geom.body for geom in backend.geoms}
        lost = used - set(bodies)
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


def subtree_is_a_body_and_all_below_it(it: Subject) -> None:
    with it.made(1) as (backend,):
        bodies = set(backend.bodies)
        trees = {body: backend.subtree(body) for body in backend.bodies}
        for body, tree in trees.items():
            assert body in tree, f"subtree({body!r}) lacks {body!r} itself"
            assert tree <= bodies, f"subtree({body!r}) has {tree}: not all are bodies"
            for other in tree - {body}:
                assert trees[other] < tree, (
                    f"subtree({body!r}) has {other!r} and not all of subtree({other!r}), or no more"
                )
        first = backend.bodies[0]
        assert trees[first] == bodies, (
            f"subtree({first!r}) lacks {sorted(bodies - trees[first])}: expected every body below "
            "the first"
        )
        for one, other in combinations(trees, 2):
            shared = trees[one] & trees[other]
            assert not shared or one in trees[other] or other in trees[one], (
                f"{sorted(shared)} are below {one!r} and below {other!r}, neither of which is "
                "below the other"
            )


def execution_names_the_device_of_the_views(it: Subject) -> None:
    with it.made(N) as (backend,):
        execution = backend.tensor_execution()
        assert execution.kind == "HOST_BRIDGE", (
            f"kind is {execution.kind!r}: the suite checks HOST_BRIDGE backends"
        )
        assert execution.device.type == "cpu", f"HOST_BRIDGE on {execution.device}: expected cpu"
        for name, view in backend.get_state_views().items():
            assert view.device == execution.device, f"{name} is on {view.device}"


def capabilities_tell_the_truth(it: Subject) -> None:
    with it.made(N) as (backend,):
        capabilities, views = backend.get_tensor_capabilities(), backend.get_state_views()
        missing = {"qpos", "qvel"} - set(views)
        assert not missing, f"state fields lack {sorted(missing)}"
        given = {name: tuple(view.shape) for name, view in views.items()}
        told = {name: (N, width) for name, width in capabilities.state_fields.items()}
        assert given == told, f"state_fields tell {told}, the views have {given}"
        for name, width in capabilities.sensors.items():
            shape = tuple(backend.get_sensor_view(name).shape)
            assert shape == (N, width), f"sensor {name!r} has shape {shape}, not {(N, width)}"
        extra = capabilities.derived_from - capabilities.model_fields
        assert not extra, f"derived_from has {sorted(extra)}, which model_fields lacks"
        refuses(CapabilityError, "an unknown sensor", lambda: backend.get_sensor_view("no such"))


def it_begins_at_home(it: Subject) -> None:
    with it.made(N) as (backend,):
        views = backend.get_state_views()
        home = backend.default_qpos.expand(N, -1).to(views["qpos"])
        assert torch.equal(views["qpos"], home), "qpos is not default_qpos in every row"
        assert not views["qvel"].any(), "qvel is not 0"
        if "ctrl" in views:
            held = backend.default_ctrl.expand(N, -1).to(views["ctrl"])
            assert torch.equal(views["ctrl"], held), "ctrl is not default_ctrl"


def views_are_live(it: Subject) -> None:
    with it.made(N) as (backend,):
        sensors = backend.get_tensor_capabilities().sensors
        views = {**backend.get_state_views()} | {s: backend.get_sensor_view(s) for s in sensors}
        before = backend.get_state_views()["qpos"].clone()
        drive(backend)
        again = {**backend.get_state_views()} | {s: backend.get_sensor_view(s) for s in sensors}
        for name, view in views.items():
            assert view.data_ptr() == again[name].data_ptr(), f"{name} is a copy, or moved"
        if backend.actuators and len(before[0]):
            assert not torch.equal(views["qpos"], before), "qpos does not change with the physics"


def reads_are_packed(it: Subject) -> None:
    with it.made(N) as (backend,):
        sensors = [f"sensor:{name}" for name in backend.get_tensor_capabilities().sensors]
        sources = [(name, slice(None)) for name in (*backend.get_state_views(), *sensors)]
        plan = backend.compile_host_bridge_io(sources, torch.device("cpu"))
        drive(backend)
        packet, values = plan.read(), snapshot(backend)
        for (name, _), columns in zip(sources, plan.columns, strict=True):
            assert torch.equal(packet[:, columns], values[name].float()), f"{name} reads otherwise"
        for name in ("no such", "sensor:no such"):
            refuses(
                CapabilityError,
                f"a read of {name!r}",
                partial(backend.compile_host_bridge_io, [(name, slice(None))], torch.device("cpu")),
            )
        # The meta device takes the path of an accelerator.
        away = backend.compile_host_bridge_io(sources, torch.device("meta"))
        away.read()
        away.read_rows(torch.tensor([0, 2]))
        sent = (N + 2) * packet.shape[1] * packet.element_size()
        assert (away.transfers, away.bytes) == (2, sent), (
            f"a read of all rows and one of 2 are {away.transfers} transfers of {away.bytes} "
            f"bytes: expected 2 of {sent}"
        )


def close_is_the_end_and_twice_is_harmless(it: Subject) -> None:
    backend = it.factory(1)
    ctrl = backend.default_ctrl.unsqueeze(0).float()
    backend.step_tensor(ctrl, 1)
    backend.close()
    backend.close()
    try:
        backend.step_tensor(ctrl, 1)
    except Exception:  # of whatever kind: the simulator is gone
        return
    raise AssertionError("it steps after close(): the simulator was not freed")


CLAUSES = (
    metadata_describes_the_model,
    subtree_is_a_body_and_all_below_it,
    execution_names_the_device_of_the_views,
    capabilities_tell_the_truth,
    it_begins_at_home,
    views_are_live,
    reads_are_packed,
    close_is_the_end_and_twice_is_harmless,
)
