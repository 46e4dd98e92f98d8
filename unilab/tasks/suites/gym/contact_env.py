"""Contact forces on bodies (``cfrc_ext``), as Gymnasium finds them after a step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import mujoco
import torch
from torch import Tensor

from unilab.backends import MujocoBackend
from unilab.envs.rotations import rotate_inverse
from unilab.tasks.suites.env import quietly
from unilab.tasks.suites.gym.gym_env import FallingEnv, HealthyCfg, model_path

Cfg = TypeVar("Cfg", bound=HealthyCfg)


class ContactEnv(FallingEnv[Cfg]):
    """A Gymnasium task that reads ``data["cfrc_ext"]``, ``[num_envs, 6 * nbody]``.

    Gymnasium calls ``mj_rnePostConstraint`` behind ``mj_step``, where the contacts are those that
    the integrator met last: of a Runge-Kutta substep its fourth stage. A batch of simulations
    publishes no contacts, but the fourth stage's positions and velocities. A second batch computes
    the forces from them, in the rows that touch anything; a reset sets them to zero.

    The robot has a free root, and a motor on each of its joints.
    """

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

    def __init__(
        self,
        cfg: Cfg,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        path = model_path(self.model)
        self._forces = MujocoBackend(
            quietly(lambda: _with_forces(path)),
            num_envs,
            num_threads=cfg.num_threads,
            fields=("cfrc_ext", "qacc_warmstart"),
        )
        self._cfrc_ext = torch.zeros_like(self._forces.get_state_views()["cfrc_ext"])
        super().__init__(cfg, num_envs=num_envs, device=device, seed=seed)
        joints = {joint.name: joint for joint in self.backend.joints}
        driven = [joints[a.joint] for a in self.backend.actuators if a.joint is not None]
        self._qpos_columns = torch.tensor([joint.qpos.start for joint in driven])
        self._qvel_columns = torch.tensor([joint.qvel.start for joint in driven])
        self._gear = torch.from_numpy(self.backend.mj_model.actuator_gear[:, 0])

    def _publish(self, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**views, "cfrc_ext": self._cfrc_ext}

    def _advance(self, ctrl: Tensor) -> None:
        views = self._forces.get_state_views()
        self.backend.step_tensor(ctrl, self.decimation - 1)
        # All four stages of the last substep begin their search for forces here.
        views["qacc_warmstart"].copy_(self.data["qacc_warmstart"])
        self.backend.step_tensor(ctrl, 1)
        touching = self.data["ncon"] > 0
        rows = touching[:, 0].nonzero().flatten()
        if rows.shape[0] == 0:
            self._cfrc_ext.zero_()
            return
        views["ctrl"].copy_(ctrl)
        self._forces.set_state_tensor(rows, *self._last_stage(rows), reset=False)
        self._cfrc_ext.copy_(views["cfrc_ext"]).masked_fill_(~touching, 0.0)

    def _last_stage(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``qpos`` and ``qvel`` of the integrator's last stage, from what follows from them."""

        def taken(name: str, columns: slice = slice(None)) -> Tensor:
            return self.data[name][:, columns].index_select(0, rows)

        qpos, qvel = taken("qpos"), taken("qvel")
        root, com = taken("xpos", slice(3, 6)), taken("subtree_com", slice(3, 6))
        qpos[:, :3], qpos[:, 3:7] = root, taken("xquat", slice(4, 8))
        qpos[:, self._qpos_columns] = taken("actuator_length") / self._gear
        qvel[:, self._qvel_columns] = taken("actuator_velocity") / self._gear
        # Velocities of the root: in cvel at the centre of mass and along the world's axes; in qvel
        # linear at the root along the world's axes, angular along the root's own.
        angular, linear = taken("cvel", slice(6, 12)).split(3, 1)
        qvel[:, :3] = linear - torch.linalg.cross(angular, com - root)
        qvel[:, 3:6] = rotate_inverse(qpos[:, 3:7], angular)
        return qpos, qvel

    def _commit_reset(self, rows: Tensor) -> None:
        super()._commit_reset(rows)
        self._cfrc_ext[rows.cpu()] = 0.0

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Free the physics; a second call does nothing."""
        super().close(raise_if_closed=raise_if_closed)
        self._forces.close()


def _with_forces(path: Path) -> mujoco.MjModel:
    """The model, and a sensor for whose sake MuJoCo computes forces on bodies."""
    spec = mujoco.MjSpec.from_file(str(path))
    spec.add_sensor(
        type=mujoco.mjtSensor.mjSENS_FRAMELINACC,
        objtype=mujoco.mjtObj.mjOBJ_BODY,
        objname=spec.worldbody.first_body().name,
    )
    return spec.compile()
