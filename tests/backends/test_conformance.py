"""0011-C16: the suite passes backends that keep the contract and names what others break."""

from dataclasses import replace

import mujoco
import pytest
from backends.conftest import RIG
from reference.carts import AllAtOnce, Carts

from unilab.backends import MujocoBackend, assert_backend_conforms
from unilab.tasks.velocity.go2 import go2_velocity_flat

GO2 = go2_velocity_flat().scene.model
ACCELERATING = RIG.replace("</sensor>", '<accelerometer name="acc" site="tip"/></sensor>')


def rig(xml=RIG, **kwargs):
    model = mujoco.MjModel.from_xml_string(xml)
    return MujocoBackend(model, **{"num_threads": 2, "keyframe": "home", **kwargs})


@pytest.mark.parametrize("backend", [Carts, AllAtOnce])
def test_c16_physics_in_closed_form_conforms(backend):
    assert_backend_conforms(backend)


def test_c16_mujoco_conforms():
    assert_backend_conforms(lambda n: rig(GEARED, num_envs=n))
    assert_backend_conforms(lambda n: MujocoBackend(GO2, n, num_threads=2, keyframe="home"))


def test_sensors_of_the_last_substep_must_be_named():
    with pytest.raises(AssertionError, match=r"sensors are current .*sensor:acc .*late_sensors"):
        assert_backend_conforms(lambda n: rig(ACCELERATING, num_envs=n))
    assert_backend_conforms(lambda n: rig(ACCELERATING, num_envs=n), late_sensors=("acc",))


class CopiedViews(Carts):
    def get_state_views(self):
        return {name: view.clone() for name, view in super().get_state_views().items()}


class LateSensors(Carts):
    def step_tensor(self, ctrl, nstep):
        before = self._gap.clone()
        super().step_tensor(ctrl, nstep)
        self._gap.copy_(before)


class CoupledRows(Carts):
    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, nstep)
        self._views["qvel"] += 0.1 * self._views["ctrl"].mean(0)


class HiddenNan(Carts):
    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, nstep)
        self._rows.nan_to_num_(0.0)


class WrappedRows(Carts):
    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows % self.num_envs, qpos, qvel, reset=reset)


class IncompleteReset(Carts):
    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows, qpos, qvel, reset=False)


class UnusedField(Carts):
    """``expand`` gives a tensor that physics never reads."""

    def expand(self, field):
        return self.__dict__.setdefault("_unused", super().expand(field).clone())


class OneModel(Carts):
    def get_model_bytes(self, row):
        return super().get_model_bytes(0)


class ForgottenForce(Carts):
    def load_state_dict(self, state):
        before = self._force.clone()
        super().load_state_dict(state)
        self._force.copy_(before)


class OpenEnded(Carts):
    def close(self):
        pass


class OneLeak(Carts):
    """One row's velocity reaches one other row."""

    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, nstep)
        self._views["qvel"][4] += 1e-9 * self._views["qvel"][0]


class OneModelLeak(Carts):
    """One row's mass reaches one other row."""

    def set_const(self, rows=None):
        super().set_const(rows)
        self._inverse[2] = self._inverse[4]


GEARED = RIG.replace('joint="shoulder" kp', 'joint="shoulder" gear="-2" kp')


BROKEN = {
    OneLeak: "rows are deterministic and independent: .* differs beside .* of row 0",
    OneModelLeak: "rows are deterministic and independent: .* differs beside .* of row 4",
    CopiedViews: "views are live: qpos",
    LateSensors: "sensors are current with the state: sensor:gap",
    CoupledRows: "rows are deterministic and independent",
    HiddenNan: "a diverged row stays visible",
    WrappedRows: "bad arguments are refused and change nothing: a negative row",
    IncompleteReset: "a reset row is like new: ctrl",
    UnusedField: "a model field acts in its rows: .*body_mass",
    OneModel: "a step can be replayed: row 1",
    ForgottenForce: "a saved state continues: qfrc_actuator",
    OpenEnded: "close frees the simulator",
}


@pytest.mark.parametrize("backend", BROKEN, ids=lambda backend: backend.__name__)
def test_c16_faulty_backend_is_found_by_its_clause(backend):
    with pytest.raises(AssertionError, match=rf"(?m)^  {BROKEN[backend]}"):
        assert_backend_conforms(backend)


RANGES = "joints stay in their ranges: .*'left'"
FORCES = "actuators have their gains and limits: .*'left_push'"


@pytest.mark.parametrize(
    ("part", "values", "found"),
    [
        ("joints", {"range": (-3.0, 3.0)}, RANGES),
        ("joints", {"range": (0.0, 0.0)}, RANGES),
        ("actuators", {"stiffness": 0.5}, FORCES),
        ("actuators", {"gain": 0.95}, FORCES),
        ("actuators", {"damping": -1.0}, FORCES),
        ("actuators", {"force_range": (-3.5, 4.0)}, FORCES),
        ("actuators", {"ctrl_range": (-4.0, 5.0)}, f"{FORCES}.*ctrl_range"),
    ],
)
def test_c16_wrong_figures_of_a_model_are_found(part, values, found):
    first, second = getattr(Carts, part)
    misread = type("Misread", (Carts,), {part: (replace(first, **values), second)})
    with pytest.raises(AssertionError, match=rf"(?m)^  {found}"):
        assert_backend_conforms(misread)


def test_c16_every_broken_clause_is_listed():
    class Bad(HiddenNan, OpenEnded):
        pass

    with pytest.raises(AssertionError, match="breaks 2 of") as caught:
        assert_backend_conforms(Bad)
    assert "  a diverged row" in str(caught.value)
    assert "  close frees" in str(caught.value)
