"""0011-C16: faults that leave a backend plausible, and the clause that finds each."""

from __future__ import annotations

import pytest
from backends import faulty
from backends.test_conformance import BREAKS

from unilab.backends import assert_backend_conforms
from unilab.backends.conformance import CLAUSES

FIELD, CONST = "a model field acts in its row", "set const recomputes what follows"
KEPT = "a reset keeps the model of its rows"
REPLAY, WRITE = "a step can be replayed", "a write sets its rows and no others"
TIME, ORDER = "timestep is the time of a substep", "actuators are in the order of controls"
POSE, TREE = "positions follow the pose", "subtree is a body and all below it"
BELOW, MEAN = "a joint moves the bodies below it", "subtree com is the mean of its masses"
GIVEN, END = "controls are taken as they are", "close is the end and twice is harmless"
FAULTS = [
    (faulty.ShadowCarts, FIELD, r"get_model_bytes\(1\) lacks what body_mass holds there"),
    (faulty.ShadowRig, FIELD, r"get_model_bytes\(1\) lacks what body_mass holds there"),
    (
        faulty.ToldMass,
        FIELD,
        "body_mass does not change the physics of the rows where it is written",
    ),
    (faulty.Blurred, FIELD, "body_mass of rows 1 and 3 changes the physics of other rows"),
    (faulty.OthersModels, FIELD, "body_mass of rows 1 and 3 is in other rows' models"),
    (faulty.Shared, FIELD, "body_mass of rows 1 and 3 is that of other rows as well"),
    (faulty.Forgetful, KEPT, "a reset writes over body_mass"),
    (faulty.ForgetfulRig, KEPT, "a reset writes over geom_friction"),
    (faulty.Nominal, KEPT, "after a reset row 0 steps with another model than it had"),
    (faulty.Homesick, "set const leaves the state", "qpos differs after set_const"),
    (
        faulty.Relaxed,
        "a write without reset keeps the rest",
        "act differs after reset=False",
    ),
    (faulty.Idle, FIELD, r"no model field of \['paint'\] changes the physics"),
    (faulty.Underived, CONST, "set_const does nothing in row 0 after a write to .*body_mass"),
    (faulty.UnderivedRig, CONST, "set_const does nothing in row 0 after a write to .*body_mass"),
    (faulty.Greedy, CONST, r"set_const\(\[1, 3\]\) does more than its rows: row 0 is otherwise"),
    (faulty.Slow, CONST, r"set_const\(\[1, 3\]\) does not do its rows: row 3 is otherwise"),
    (
        faulty.FirstModel,
        REPLAY,
        r"row 1 replays to another state \(2 substeps, written: \['body_mass'",
    ),
    (
        faulty.FirstModelRig,
        REPLAY,
        r"row 1 replays to another state \(2 substeps, written: \['body_m",
    ),
    (faulty.ThreeAlways, REPLAY, r"row 0 replays to another state \(1 substeps"),
    (faulty.OneAlways, "substeps hold the control", "a step of 3 substeps ends elsewhere"),
    (faulty.LosesTheFourthCart, WRITE, r"rows \[4, 2, 3, 0\] do not hold what was written to them"),
    (faulty.LosesTheFourthRig, WRITE, r"rows \[4, 2, 3, 0\] do not hold what was written to them"),
    (faulty.TwiceAsLong, TIME, "time goes on by 0.05 s a substep: timestep is 0.1"),
    (faulty.TwiceAsLongRig, TIME, "time goes on by 0.004 s a substep: timestep is 0.008"),
    (
        faulty.TwiceAsFar,
        TIME,
        "positions go on as velocities say in 0.1 s a substep: timestep is 0.05",
    ),
    (faulty.Backwards, ORDER, "control 0 moves joint 'left' and control 1 joint 'right'"),
    (faulty.BackwardsRig, ORDER, "control 0 moves joint 'shoulder' and control 1 joint 'elbow'"),
    (faulty.OtherJoint, ORDER, "control 1 does not move joint 'left', but others"),
    (faulty.Shifted, POSE, "xpos of 'world' is not the origin"),
    (faulty.ShiftedBodies, POSE, r"xpos of 'ball' is \[.*\], its joint is at \["),
    (faulty.ShiftedGeoms, POSE, r"geom_xpos of \[1, 2, 3, 4\] moves against its body"),
    (faulty.ShiftedSites, POSE, r"site_xpos of \[0\] moves against its body"),
    (faulty.ShortOfBodies, POSE, "xpos has 5 positions: there are 6 bodies"),
    (
        faulty.ShiftedSubtrees,
        MEAN,
        r"subtree_com of 'world' is \[.*\]: the mean of subtree\('world'\)",
    ),
    (
        faulty.ChildlessCarts,
        TREE,
        r"subtree\('world'\) lacks \['frame', 'left', 'right'\]: expected e",
    ),
    (faulty.AllRelated, TREE, r"and not all of subtree\('\w+'\), or no more"),
    (
        faulty.Overlapping,
        TREE,
        r"\['bell'\] are below 'left' and below 'right', neither of which is bel",
    ),
    (
        faulty.ChildlessRig,
        BELOW,
        r"'shoulder' moves \['hand', 'lower'\]: subtree\('upper'\) is \['upper'",
    ),
    (
        faulty.Orphaned,
        BELOW,
        r"'shoulder' moves \['hand'\]: subtree\('upper'\) is \['lower', 'upper'",
    ),
    (faulty.Adopted, BELOW, r"joint 'ball' does not move \['hand'\] of subtree\('ball'\)"),
    (faulty.Gentle, GIVEN, r"ctrl holds \[-1.0, -1.0\], it was given \[-3.59"),
    (
        faulty.SecretlyGentle,
        GIVEN,
        "control 0 does the same at -4 as at less: it is clamped within its",
    ),
    (faulty.ImmortalCarts, END, r"it steps after close\(\): the simulator was not freed"),
    (faulty.ImmortalRig, END, r"it steps after close\(\): the simulator was not freed"),
    (
        faulty.TouchesTheLast,
        "environments do not touch each other",
        "row 4 depends on the states or",
    ),
]


@pytest.mark.parametrize(
    ("backend", "clause", "message"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
def test_a_fault_is_found_by_its_clause(backend, clause, message):
    with pytest.raises(AssertionError, match=rf"(?m)^  {clause}: .*{message}"):
        assert_backend_conforms(backend)


def test_the_rig_without_a_fault_conforms():
    assert_backend_conforms(faulty.Rig)


def test_every_clause_is_broken_by_a_backend():
    assert {clause for _, clause, _ in FAULTS} | set(BREAKS) == set(CLAUSES)
