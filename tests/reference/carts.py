"""Physics in closed form: two carts on rails, pushed by forces; a backend of another's make."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from reference.accelerator import DEVICE
from unilab.backends import SimBackend, TensorCapabilities, TensorExecution
from unilab.backends.base import ActuatorInfo, GeomInfo, JointInfo
from unilab.errors import CapabilityError, ConfigError, did_you_mean

MASSES = (2.0, 0.5)
TIMESTEP = 0.05
_FORCE, _END = 4.0, 5.0
_NQ = 2


def _rail(name: str, column: int) -> JointInfo:
    cols = slice(column, column + 1)
    return JointInfo(name=name, body=name, type="slide", qpos=cols, qvel=cols, range=(-_END, _END))


class Carts(SimBackend):
    """``x'' = u / m`` for two carts: ``v += a dt`` and ``x += v dt + a dt^2 / 2`` are exact.

    Forces are limited to 4 N. A cart that reaches the end of its rail stops there.
    The masses may differ between environments (``body_mass``, of ``[world, frame, left, right]``);
    their inverses, which physics uses, follow from them by ``set_const``.
    """

    timestep = TIMESTEP
    joints = (_rail("left", 0), _rail("right", 1))
    actuators = tuple(
        ActuatorInfo(
            name=f"{name}_push",
            joint=name,
            ctrl_range=(-_FORCE, _FORCE),
            force_range=(-math.inf, math.inf),
            stiffness=0.0,
            damping=0.0,
            gain=1.0,
        )
        for name in ("left", "right")
    )
    bodies = ("world", "frame", "left", "right")
    geoms = (GeomInfo(name="left", body="left"), GeomInfo(name="", body="right"))
    default_qpos = torch.tensor([0.5, -0.5], dtype=torch.float64)
    default_ctrl = torch.tensor([0.25, 0.0], dtype=torch.float64)

    device = torch.device("cpu")

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._rows = torch.zeros(num_envs, 7, dtype=torch.float64, device=self.device)
        columns = {"qpos": 2, "qvel": 2, "ctrl": 2, "time": 1}
        self._views = dict(zip(columns, self._rows.split([*columns.values()], 1), strict=True))
        self._force = torch.zeros_like(self._views["qpos"])
        self._gap = torch.zeros_like(self._views["time"])
        mass = torch.tensor([0.0, 0.0, *MASSES], dtype=torch.float64)
        self._mass = mass.repeat(num_envs, 1).to(self.device)
        self._inverse = torch.zeros_like(self._force)
        self.set_const()
        self._everyone = torch.arange(num_envs, device=self.device)
        self._idle = self.default_ctrl.to(self.device)
        home = self.default_qpos.repeat(num_envs, 1).to(self.device)
        self.set_state_tensor(self._everyone, home, torch.zeros_like(home))

    def subtree(self, body: str) -> frozenset[str]:
        below = {"world": self.bodies, "frame": self.bodies[1:]}
        return frozenset(below.get(body, (body,)))

    def tensor_execution(self) -> TensorExecution:
        return TensorExecution(kind="HOST_BRIDGE", device=torch.device("cpu"))

    def get_tensor_capabilities(self) -> TensorCapabilities:
        return TensorCapabilities(
            state_fields={name: view.shape[1] for name, view in self.get_state_views().items()},
            sensors={"gap": 1},
            selected_row_reset=True,
            model_fields=frozenset({"body_mass"}),
            derived_from=frozenset({"body_mass"}),
        )

    def get_state_views(self) -> Mapping[str, Tensor]:
        return {**self._views, "qfrc_actuator": self._force}

    def get_sensor_view(self, name: str) -> Tensor:
        self.get_tensor_capabilities().require(f"sensor:{name}")
        return self._gap

    def step_tensor(self, ctrl: Tensor, nstep: int) -> None:
        if ctrl.shape != (self.num_envs, _NQ):
            raise ConfigError(f"ctrl has shape {tuple(ctrl.shape)}: expected {self.num_envs, _NQ}")
        self._views["ctrl"].copy_(ctrl)
        for _ in range(nstep):
            self._substep()
        self._sense(self._everyone)

    def _substep(self) -> None:
        x, v, u, time = self._views.values()
        self._force.copy_(u.clamp(-_FORCE, _FORCE))
        a = self._force * self._inverse
        x += v * TIMESTEP + 0.5 * TIMESTEP**2 * a
        v += TIMESTEP * a
        v[x.abs() > _END] = 0.0
        x.clamp_(-_END, _END)
        time += TIMESTEP

    def _sense(self, rows: Tensor) -> None:
        x = self._views["qpos"][rows]
        self._gap[rows] = x[:, :1] - x[:, 1:]

    def set_state_tensor(
        self, rows: Tensor, qpos: Tensor, qvel: Tensor, *, reset: bool = True
    ) -> None:
        whole = rows.ndim == 1 and rows.dtype in (torch.int32, torch.int64)
        if not whole or qpos.shape != (len(rows), _NQ) or qvel.shape != (len(rows), _NQ):
            raise ConfigError(f"rows {rows}, qpos {qpos.shape} and qvel {qvel.shape} do not fit")
        if len(rows.unique()) < len(rows) or ((rows < 0) | (rows >= self.num_envs)).any():
            raise ConfigError(f"rows {rows.tolist()} must be unique, in [0, {self.num_envs})")
        self._views["qpos"][rows] = qpos.double()
        self._views["qvel"][rows] = qvel.double()
        if reset:
            self._views["ctrl"][rows] = self._idle
            self._views["time"][rows] = 0.0
            self._force[rows] = self._idle
        self._sense(rows)

    def get_replay_state(self) -> Tensor:
        return self._rows

    def get_model_bytes(self, row: int) -> bytes:
        return json.dumps(self._mass[row].tolist()).encode()

    @staticmethod
    def replay(model: bytes, state: Tensor, ctrl: Tensor, nstep: int) -> Tensor:
        one = Carts(1)
        one.expand("body_mass")[0] = torch.tensor(json.loads(model), dtype=torch.float64)
        one.set_const()
        one._rows[0] = state
        one.step_tensor(ctrl.unsqueeze(0), nstep)
        return one._rows[0]

    def expand(self, field: str) -> Tensor:
        if field != "body_mass":
            raise CapabilityError(
                f"carts cannot vary {field!r}{did_you_mean(field, ['body_mass'])}"
            )
        return self._mass

    def set_const(self, rows: Tensor | None = None) -> None:
        rows = torch.arange(self.num_envs, device=self.device) if rows is None else rows
        self._inverse[rows] = 1.0 / self._mass[rows, 2:]

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return {"all": {name: tensor.clone() for name, tensor in self._all().items()}}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, tensor in self._all().items():
            tensor.copy_(state["all"][name])
        self.set_const()

    def _all(self) -> dict[str, Tensor]:
        return {"rows": self._rows, "force": self._force, "gap": self._gap, "mass": self._mass}

    def close(self) -> None:
        self._views.clear()
        self.__dict__.pop("_rows", None)


class ResidentCarts(Carts):
    """Carts that live on the emulated accelerator."""

    device = DEVICE

    def tensor_execution(self) -> TensorExecution:
        return TensorExecution(kind="DEVICE_RESIDENT", device=self.device)


class AllAtOnce(Carts):
    """Carts that can be written only all at once."""

    def get_tensor_capabilities(self) -> TensorCapabilities:
        return replace(super().get_tensor_capabilities(), selected_row_reset=False)

    def set_state_tensor(
        self, rows: Tensor, qpos: Tensor, qvel: Tensor, *, reset: bool = True
    ) -> None:
        if len(rows) != self.num_envs:
            raise ConfigError("these carts are written all at once")
        super().set_state_tensor(rows, qpos, qvel, reset=reset)
