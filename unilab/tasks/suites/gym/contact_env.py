"""Contact forces on bodies (``cfrc_ext``), as Gymnasium reads them after a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import mujoco
import torch
from torch import Tensor

from unilab.backends import MujocoBackend
from unilab.envs.rotations import rotate_inverse
from unilab.tasks.suites.gym.gym_env import FallingEnv, HealthyCfg


class ContactEnv(FallingEnv):
    """A Gymnasium task that reads ``data["cfrc_ext"]``, ``[num_envs, 6 * nbody]``.

    Gymnasium calls ``mj_rnePostConstraint`` after ``mj_step``. The contacts are then those of the
    integrator's last stage, the fourth of a Runge-Kutta substep. A batch of simulations publishes
    positions and velocities of that stage, but not its contacts. A second batch computes the forces
    from them in the rows that touch anything; a reset sets the forces to zero.

    The robot has a free root, and a motor on each of its joints.
    """

    decimation = 5
    fields: ClassVar[tuple[str, ...]] = (
        "actuator_length",
        "actuator_velocity",
        "cvel",
        "ncon",
        "qacc_warmstart",
        "subtree_com",
        "xpos",
        "xquat",
    )

    @cached_property
    def _forces(self) -> MujocoBackend:
        return MujocoBackend(
            self._compile(_add_force_sensor),
            self.num_envs,
            num_threads=self.cfg.num_threads,
            fields=("cfrc_ext", "qacc_warmstart"),
        )

    @cached_property
    def _motors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Columns of the driven joints in qpos and in qvel, and the motors' gears."""
        joints = {joint.name: joint for joint in self.backend.joints}
        driven = [joints[a.joint] for a in self.backend.actuators if a.joint is not None]
        return (
            torch.tensor([joint.qpos.start for joint in driven]),
            torch.tensor([joint.qvel.start for joint in driven]),
            torch.from_numpy(self.backend.mj_model.actuator_gear[:, 0]),
        )

    def _publish(self, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**views, "cfrc_ext": torch.zeros_like(self._forces.get_state_views()["cfrc_ext"])}

    def _advance(self, ctrl: Tensor) -> None:
        views = self._forces.get_state_views()
        self.backend.step_tensor(ctrl, self.decimation - 1)
        # All four stages of the last substep warm-start their constraint solver here.
        views["qacc_warmstart"].copy_(self.data["qacc_warmstart"])
        self.backend.step_tensor(ctrl, 1)
        touching = self.data["ncon"] > 0
        rows = touching[:, 0].nonzero().flatten()
        if rows.shape[0] == 0:
            self.data["cfrc_ext"].zero_()
            return
        views["ctrl"].copy_(ctrl)
        self._forces.set_state_tensor(rows, *self._last_stage(rows), reset=False)
        self.data["cfrc_ext"].copy_(views["cfrc_ext"]).masked_fill_(~touching, 0.0)

    def _last_stage(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``qpos`` and ``qvel`` of the integrator's last stage, from fields derived from them."""

        def taken(name: str, columns: slice = slice(None)) -> Tensor:
            return self.data[name][:, columns].index_select(0, rows)

        qpos, qvel = taken("qpos"), taken("qvel")
        root, com = taken("xpos", slice(3, 6)), taken("subtree_com", slice(3, 6))
        angles, rates, gear = self._motors
        qpos[:, :3], qpos[:, 3:7] = root, taken("xquat", slice(4, 8))
        qpos[:, angles] = taken("actuator_length") / gear
        qvel[:, rates] = taken("actuator_velocity") / gear
        # Velocities of the root: in cvel at the centre of mass and along the world's axes; in qvel
        # linear at the root along the world's axes, angular along the root's own.
        angular, linear = taken("cvel", slice(6, 12)).split(3, 1)
        qvel[:, :3] = linear - torch.linalg.cross(angular, com - root)
        qvel[:, 3:6] = rotate_inverse(qpos[:, 3:7], angular)
        return qpos, qvel

    def _commit_reset(self, rows: Tensor) -> None:
        super()._commit_reset(rows)
        self.data["cfrc_ext"][self._on_host(rows)] = 0.0

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self._forces.close()


@dataclass(frozen=True, kw_only=True)
class ContactCostCfg(HealthyCfg):
    """Settings of tasks in which contacts cost reward."""

    contact_cost_weight: float
    """Cost of the squared contact forces, summed over the bodies."""


class ContactCostEnv(ContactEnv):
    """A Gymnasium task in which contacts cost reward."""

    cfg: ContactCostCfg
    reward_terms = ("forward", "ctrl", "contact", "survive")

    @abstractmethod
    def _contact_cost(self) -> Tensor:
        """``[num_envs]``."""

    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        forward, control, survive = super()._rewards(action)
        return forward, control, -self._contact_cost(), survive


def _add_force_sensor(spec: mujoco.MjSpec) -> None:
    """A sensor that makes MuJoCo compute forces on bodies."""
    spec.add_sensor(
        type=mujoco.mjtSensor.mjSENS_FRAMELINACC,
        objtype=mujoco.mjtObj.mjOBJ_BODY,
        objname=spec.worldbody.first_body().name,
    )
