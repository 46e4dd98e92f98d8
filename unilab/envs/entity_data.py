"""An entity's current quantities, as terms read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from unilab.backends.base import JointInfo
from unilab.envs.rotations import gravity_direction, rotate_inverse
from unilab.errors import ConfigError, did_you_mean

# What an entity publishes -> the fields it is computed from. Others are read as such.
DERIVED_FIELDS = {
    "root_lin_vel_b": ("root_quat_w", "root_lin_vel_w"),
    "projected_gravity_b": ("root_quat_w",),
}
ROOT_FIELDS = ("root_pos_w", "root_quat_w", "root_lin_vel_w", "root_ang_vel_b")
JOINT_FIELDS = ("joint_pos", "joint_vel", "joint_torque")
FIELDS = (*ROOT_FIELDS, *JOINT_FIELDS, *DERIVED_FIELDS)
"""Everything that a term may declare with ``@reads``."""


class EntityData:
    """An entity's current quantities, all float32 on the runtime device.

    Joint tensors are ``[num_envs, num_joints]`` in model order (rad, rad/s, N m), root tensors
    ``[num_envs, 3]`` (m, m/s, rad/s) or ``[num_envs, 4]`` (w, x, y, z). ``_w`` is the world frame,
    ``_b`` the root body's. Reading a field that no term declared is a ConfigError.
    """

    def __init__(
        self,
        entity: str,
        joints: Sequence[JointInfo],
        qpos: Tensor,
        num_envs: int,
        device: torch.device,
    ) -> None:
        self._entity = entity
        self._columns: dict[str, Tensor] = {}
        self._cache: dict[str, Tensor] = {}
        home = [float(qpos[j.qpos.start]) for j in joints]
        self.default_joint_pos = torch.tensor(home, dtype=torch.float32, device=device)
        """``[num_joints]``, the home pose."""
        limits = torch.tensor([j.range for j in joints], dtype=torch.float32, device=device)
        self.joint_pos_limits = limits.reshape(-1, 2)
        """``[num_joints, 2]``, lower and upper."""
        self.encoder_bias = torch.zeros(num_envs, len(joints), device=device)
        """``[num_envs, num_joints]`` rad, what the encoders read too much."""

    @property
    def joint_pos(self) -> Tensor:
        return self._read("joint_pos")

    @property
    def joint_vel(self) -> Tensor:
        return self._read("joint_vel")

    @property
    def joint_torque(self) -> Tensor:
        """Actuator torque at the joints during the last substep."""
        return self._read("joint_torque")

    @property
    def root_pos_w(self) -> Tensor:
        return self._read("root_pos_w")

    @property
    def root_quat_w(self) -> Tensor:
        return self._read("root_quat_w")

    @property
    def root_lin_vel_w(self) -> Tensor:
        return self._read("root_lin_vel_w")

    @property
    def root_ang_vel_b(self) -> Tensor:
        return self._read("root_ang_vel_b")

    @property
    def root_lin_vel_b(self) -> Tensor:
        cached = self._cache.get("root_lin_vel_b")
        if cached is None:
            cached = rotate_inverse(
                self._read("root_quat_w", "root_lin_vel_b"),
                self._read("root_lin_vel_w", "root_lin_vel_b"),
            )
            self._cache["root_lin_vel_b"] = cached
        return cached

    @property
    def projected_gravity_b(self) -> Tensor:
        """Unit vector of gravity in the root frame: (0, 0, -1) when upright."""
        cached = self._cache.get("projected_gravity_b")
        if cached is None:
            cached = gravity_direction(self._read("root_quat_w", "projected_gravity_b"))
            self._cache["projected_gravity_b"] = cached
        return cached

    if not TYPE_CHECKING:  # type checkers know a misspelt field as it is

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"an entity's data has no field {name!r}{did_you_mean(name, FIELDS)}; "
                f"it has {FIELDS}"
            )

    def _read(self, name: str, asked: str | None = None) -> Tensor:
        try:
            return self._columns[name]
        except KeyError:
            asked = asked or name
            raise ConfigError(
                f"{self._entity}.data.{asked} was read by a term that did not declare it: "
                f"decorate the term with @reads({asked!r})"
            ) from None
