"""0011-C16: the suite passes backends that keep the contract and names what others break."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import pytest
import torch
from backends.conftest import RIG
from reference.carts import AllAtOnce, Carts

from unilab.backends import HostBridgeTransferPlan, MujocoBackend, assert_backend_conforms
from unilab.backends.conformance import CLAUSES
from unilab.tasks.velocity.go2 import go2_velocity_flat

GO2 = go2_velocity_flat().scene.model
ACCELERATING = RIG.replace("</sensor>", '<accelerometer name="acc" site="tip"/></sensor>')


def rig(xml: str = RIG, **kwargs: object) -> MujocoBackend:
    model = mujoco.MjModel.from_xml_string(xml)
    return MujocoBackend(model, **{"num_threads": 2, "keyframe": "home", **kwargs})


@pytest.mark.parametrize("backend", [Carts, AllAtOnce])
def test_physics_in_closed_form_conforms(backend):
    assert_backend_conforms(backend)


def test_mujoco_conforms():
    assert_backend_conforms(lambda n: rig(num_envs=n))
    assert_backend_conforms(lambda n: rig(num_envs=n, keyframe=None))
    assert_backend_conforms(lambda n: MujocoBackend(GO2, n, num_threads=2, keyframe="home"))


def test_sensors_of_the_last_substep_must_be_named():
    with pytest.raises(AssertionError, match=r"sensors are current .*sensor:acc .*late_sensors"):
        assert_backend_conforms(lambda n: rig(ACCELERATING, num_envs=n))
    assert_backend_conforms(lambda n: rig(ACCELERATING, num_envs=n), late_sensors=("acc",))


# One broken backend for each clause --------------------------------------------------------------


class WrongPrecision(Carts):
    default_qpos = Carts.default_qpos.float()


class Beheaded(Carts):
    def subtree(self, body):
        return super().subtree(body) - {body}


class Elsewhere(Carts):
    def tensor_execution(self):
        return replace(super().tensor_execution(), kind="DEVICE_RESIDENT")


class Boastful(Carts):
    def get_tensor_capabilities(self):
        return replace(super().get_tensor_capabilities(), sensors={"gap": 2})


class OnTheMove(Carts):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self._views["qvel"].fill_(1.0)


class Copying(Carts):
    def get_state_views(self):
        return {name: view.clone() for name, view in super().get_state_views().items()}


class Shaky(Carts):
    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl + 0.01 * torch.randn(ctrl.shape), nstep)


class Impatient(Carts):
    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, 1)


class Sociable(Carts):
    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, nstep)
        self._views["qvel"] += 0.1 * self._views["ctrl"].mean(0)


class Indulgent(Carts):
    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl[: self.num_envs, :2], nstep)


class Sweeping(Carts):
    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows, qpos, qvel, reset=reset)
        self._views["time"].zero_()


class Lenient(Carts):
    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows % self.num_envs, qpos, qvel, reset=reset)


class Nostalgic(Carts):
    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows, qpos, qvel, reset=False)


class Forgetful(Carts):
    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows, qpos, qvel, reset=True)


class Belated(Carts):
    """Its sensors belong to the state before the last step."""

    def step_tensor(self, ctrl, nstep):
        before = self._gap.clone()
        super().step_tensor(ctrl, nstep)
        self._gap.copy_(before)


class Cosmetic(Carts):
    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, nstep)
        self._rows.nan_to_num_(0.0)


class Unrepeatable(Carts):
    @staticmethod
    def replay(model, state, ctrl, nstep):
        return Carts.replay(model, state, ctrl, 1)


class Deaf(Carts):
    def expand(self, field):
        return super().expand(field).clone()


class PerTerm(Carts):
    """One transfer a block."""

    def compile_host_bridge_io(self, sources, device):
        plan = super().compile_host_bridge_io(sources, device)

        class Scattered(HostBridgeTransferPlan):
            def _count(self, sent):
                for segment in self._segments:
                    super()._count(segment)

        plan.__class__ = Scattered
        return plan


class Brittle(Carts):
    def close(self):
        del self._rows


BREAKS = {
    "metadata describes the model": (WrongPrecision, "default_qpos is torch.float32"),
    "subtree is a body and all below it": (Beheaded, "'world'.* lacks 'world' itself"),
    "execution names the device of the views": (Elsewhere, "kind is 'DEVICE_RESIDENT'"),
    "capabilities tell the truth": (Boastful, r"sensor 'gap' has shape \(5, 1\), not \(5, 2\)"),
    "it begins at home": (OnTheMove, "qvel is not 0"),
    "views are live": (Copying, "qpos is a copy, or moved"),
    "the same controls give the same states": (Shaky, "two equal runs end in different"),
    "substeps hold the control": (Impatient, "a step of 3 substeps ends elsewhere than 3 steps"),
    "environments do not touch each other": (Sociable, "row 0 depends on the states or controls"),
    "controls that do not fit are refused": (Indulgent, r"ctrl of shape \(5, 3\) was accepted"),
    "a write sets its rows and no others": (Sweeping, "time differs in rows not written"),
    "a write that does not fit is refused whole": (Lenient, r"rows \[-1, 2\] .* was accepted"),
    "a reset row is like new": (Nostalgic, "ctrl differs after a reset"),
    "a write without reset keeps the rest": (
        Forgetful,
        "ctrl differs after reset=False",
    ),
    "sensors are current with the state": (Belated, "sensor:gap after a step is not that of"),
    "a diverged row stays visible and alone": (Cosmetic, "row 2 began with a velocity of NaN"),
    "a step can be replayed": (Unrepeatable, "row 0 replays to another state"),
    "model fields can differ between rows": (Deaf, "body_mass is a copy: writes are lost"),
    "reads are packed": (PerTerm, r"are \d+ transfers of \d+ bytes: expected 2 of"),
    "close is the end and twice is harmless": (Brittle, "raised AttributeError: .*_rows"),
}


@pytest.mark.parametrize("clause", BREAKS)
def test_a_backend_that_breaks_a_clause_is_told_so(clause):
    backend, message = BREAKS[clause]
    with pytest.raises(AssertionError, match=rf"(?m)^  {clause}: .*{message}") as caught:
        assert_backend_conforms(backend)
    first, *broken = str(caught.value).splitlines()
    assert first == (f"the backend breaks {len(broken)} of {len(CLAUSES)} clauses of the contract:")


def test_every_broken_clause_is_listed():
    class Bad(Elsewhere, Beheaded):
        pass

    with pytest.raises(AssertionError, match="breaks 2 of") as caught:
        assert_backend_conforms(Bad)
    assert "  subtree is" in str(caught.value)
    assert "  execution names" in str(caught.value)
