"""Backends with a fault that leaves them plausible: carts in closed form, and MuJoCo."""

from __future__ import annotations

import json
from dataclasses import replace

import mujoco
import torch
from backends.conftest import RIG
from reference.carts import TIMESTEP, Carts

from unilab.backends import MujocoBackend
from unilab.errors import CapabilityError

POSITIONS = ("xpos", "xmat", "geom_xpos", "site_xpos", "xipos", "subtree_com")


class Rig(MujocoBackend):
    def __init__(self, num_envs):
        model = mujoco.MjModel.from_xml_string(RIG)
        super().__init__(
            model, num_envs, num_threads=1, keyframe="home", fields=POSITIONS, current=True
        )


class Shadows:
    """``expand`` gives a tensor that physics never reads."""

    def expand(self, field):
        shadows = self.__dict__.setdefault("_shadows", {})
        if field not in shadows:
            shadows[field] = super().expand(field).clone()
        return shadows[field]


class ShadowCarts(Shadows, Carts):
    pass


class ShadowRig(Shadows, Rig):
    pass


class ToldMass(ShadowCarts):
    """The model that is told of has the mass that physics never reads."""

    def get_model_bytes(self, row):
        return json.dumps(self.expand("body_mass")[row].tolist()).encode()


class Blurred(Carts):
    """Row 1's masses count in row 2 as well."""

    def set_const(self, rows=None):
        super().set_const(rows)
        if self.num_envs > 2:
            self._inverse[2] = self._inverse[1]


class OthersModels(Carts):
    def get_model_bytes(self, row):
        return super().get_model_bytes(1) if row == 2 else super().get_model_bytes(row)


class Shared(Carts):
    """One model for all rows, which only looks like one for each."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self._mass = self._mass[:1].expand(num_envs, -1)


class Forgetful(Carts):
    """A reset brings the model's own masses back."""

    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows, qpos, qvel, reset=reset)
        if reset:
            self._mass[rows] = torch.tensor([0.0, 0.0, 2.0, 0.5], dtype=torch.float64)


class ForgetfulRig(Rig):
    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        if reset:
            friction = self.expand("geom_friction")
            friction[rows] = torch.from_numpy(self.mj_model.geom_friction).to(friction)
        super().set_state_tensor(rows, qpos, qvel, reset=reset)


class Nominal(Carts):
    """After a reset physics goes on with the first masses; views and bytes tell of the others."""

    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows, qpos, qvel, reset=reset)
        first = self.__dict__.setdefault("_first", self._inverse[0].clone())
        if reset:
            self._inverse[rows] = first


class Homesick(Carts):
    """``set_const`` brings its rows home."""

    def set_const(self, rows=None):
        super().set_const(rows)
        rows = torch.arange(self.num_envs) if rows is None else rows
        self._views["qpos"][rows] = self.default_qpos
        self._views["qvel"][rows] = 0.0


MUSCLE = """
<mujoco>
  <worldbody>
    <body name="b"><joint name="j" axis="0 1 0"/><geom size=".1" pos="0 0 -1"/></body>
  </worldbody>
  <actuator>
    <general name="m" joint="j" dyntype="filter" dynprm="0.2" gainprm="3" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


class Relaxed(MujocoBackend):
    """A write without a reset clears activations."""

    def __init__(self, num_envs):
        super().__init__(mujoco.MjModel.from_xml_string(MUSCLE), num_envs, num_threads=1)

    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        super().set_state_tensor(rows, qpos, qvel, reset=reset)
        if not reset:
            self.get_state_views()["act"][rows] = 0.0


class Idle(Carts):
    """Its one field is of no consequence."""

    def get_tensor_capabilities(self):
        nothing, paint = frozenset(), frozenset({"paint"})
        return replace(super().get_tensor_capabilities(), model_fields=paint, derived_from=nothing)

    def expand(self, field):
        if field != "paint":
            raise CapabilityError(f"no {field}")
        return self.__dict__.setdefault("_paint", torch.ones(self.num_envs, 1))

    def get_model_bytes(self, row):
        return json.dumps([*self._mass[row].tolist(), float(self.expand("paint")[row])]).encode()

    @staticmethod
    def replay(model, state, ctrl, nstep):
        return Carts.replay(json.dumps(json.loads(model)[:-1]), state, ctrl, nstep)


class Underived(Carts):
    def set_const(self, rows=None):
        if not self.__dict__.setdefault("_derived", False):
            super().set_const(rows)
            self._derived = True


class UnderivedRig(Rig):
    def set_const(self, rows=None):
        pass


class Greedy(Carts):
    """``set_const`` takes all rows whichever it is given."""

    def set_const(self, rows=None):
        super().set_const()


class Slow(Carts):
    """``set_const`` takes the first of the rows that it is given."""

    def set_const(self, rows=None):
        super().set_const(rows if rows is None else rows[:1])


class FirstModel(Carts):
    def get_model_bytes(self, row):
        return super().get_model_bytes(0)


class FirstModelRig(Rig):
    def get_model_bytes(self, row):
        return super().get_model_bytes(0)


class ThreeAlways(Carts):
    @staticmethod
    def replay(model, state, ctrl, nstep):
        return Carts.replay(model, state, ctrl, 3)


class OneAlways(Carts):
    """Both count no substeps."""

    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, 1)

    @staticmethod
    def replay(model, state, ctrl, nstep):
        return Carts.replay(model, state, ctrl, 1)


class LosesTheFourth:
    def set_state_tensor(self, rows, qpos, qvel, *, reset=True):
        if rows.shape == (4,) and len(qpos) == len(qvel) == 4:
            rows, qpos, qvel = rows[:3], qpos[:3], qvel[:3]
        super().set_state_tensor(rows, qpos, qvel, reset=reset)


class LosesTheFourthCart(LosesTheFourth, Carts):
    pass


class LosesTheFourthRig(LosesTheFourth, Rig):
    pass


class TwiceAsLong(Carts):
    timestep = 2 * TIMESTEP


class TwiceAsLongRig(Rig):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.timestep *= 2


class TwiceAsFar(Carts):
    """Its clock is right and its carts go twice as far."""

    def _substep(self):
        before = self._views["qpos"].clone()
        super()._substep()
        self._views["qpos"].mul_(2.0).sub_(before)


class Backwards(Carts):
    actuators = Carts.actuators[::-1]


class BackwardsRig(Rig):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.actuators = self.actuators[::-1]


class OtherJoint(Carts):
    actuators = (Carts.actuators[0], replace(Carts.actuators[1], joint="left"))


class Shifted(Rig):
    """Publishes one kind of positions a constant away from where they are."""

    which, by = "xpos", 0.1

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self._shifted = self._views[self.which]
        self._views[self.which] = self._shifted.clone()
        self._shift()

    def _shift(self):
        self._views[self.which].copy_(self._shifted + self.by)

    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, nstep)
        self._shift()

    def set_state_tensor(self, *args, **kwargs):
        super().set_state_tensor(*args, **kwargs)
        if hasattr(self, "_shifted"):
            self._shift()


class ShiftedBodies(Shifted):
    by = torch.tensor([0.0] * 3 + [0.1] * 12)


class ShortOfBodies(Rig):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.bodies = (*self.bodies, "ghost")

    def subtree(self, body):
        return frozenset({"ghost"}) if body == "ghost" else super().subtree(body)


class ShiftedGeoms(Shifted):
    which = "geom_xpos"


class ShiftedSites(Shifted):
    which = "site_xpos"


class ShiftedSubtrees(Shifted):
    which = "subtree_com"


class Childless:
    def subtree(self, body):
        return frozenset({body})


class ChildlessCarts(Childless, Carts):
    pass


class ChildlessRig(Childless, Rig):
    pass


class AllRelated(Carts):
    """Every body is below every other."""

    def subtree(self, body):
        return frozenset(self.bodies)


class Overlapping(Carts):
    """The right cart is below the left one and below the frame's other child."""

    bodies = ("world", "frame", "left", "right", "bell")

    def subtree(self, body):
        below = {"left": {"left", "bell"}, "right": {"right", "bell"}}
        return frozenset(below.get(body) or super().subtree(body))


class Orphaned(Rig):
    """The hand is not counted to the arm, nor to anything else but the world."""

    def subtree(self, body):
        tree = super().subtree(body)
        return tree if body in ("world", "hand") else tree - {"hand"}


class Adopted(Rig):
    """The hand is counted to the ball."""

    def subtree(self, body):
        tree = super().subtree(body)
        return tree | {"hand"} if body == "ball" else tree


class Gentle(Carts):
    """Clamps what it is given and shows it."""

    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl.clamp(-1.0, 1.0), nstep)


class SecretlyGentle(Carts):
    """Clamps what it is given and shows the rest."""

    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl.clamp(-3.0, 3.0), nstep)
        self._views["ctrl"].copy_(ctrl)


class Immortal:
    def close(self):
        pass


class ImmortalCarts(Immortal, Carts):
    pass


class ImmortalRig(Immortal, Rig):
    pass


class TouchesTheLast(Carts):
    """The first row's controls reach into the last row alone."""

    def step_tensor(self, ctrl, nstep):
        super().step_tensor(ctrl, nstep)
        if self.num_envs > 1:
            self._views["qvel"][-1] += 0.1 * self._views["ctrl"][0]
