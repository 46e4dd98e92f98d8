"""Command terms."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unilab.checks import check_fields, check_fits, check_range
from unilab.envs import rotations
from unilab.envs.entity import SceneEntityCfg, require_ids
from unilab.envs.managers.command import CommandTerm, CommandTermCfg
from unilab.errors import ConfigError, did_you_mean
from unilab.markers import Arrow, Colour, Marker, Sphere, axes

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "UniformPoseCommand",
    "UniformPoseCommandCfg",
    "UniformVelocityCommand",
    "UniformVelocityCommandCfg",
]

_COMMANDED: Colour = (0.1, 0.75, 0.2, 1.0)
_ACTUAL: Colour = (0.15, 0.35, 0.95, 1.0)
# Arrows of velocities hang above the root, half a metre long for 1 m/s.
_ABOVE, _LENGTH, _SHORTEST = 0.35, 0.5, 0.05
_VELOCITIES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


@dataclass(frozen=True, kw_only=True)
class UniformVelocityCommandCfg(CommandTermCfg):
    """A planar velocity in the root frame, drawn uniformly; or, for a share of the draws, a
    horizontal velocity and a direction to face."""

    @dataclass(frozen=True, kw_only=True)
    class Ranges:
        """Lower and upper bounds of the draws."""

        lin_vel_x: tuple[float, float]
        """m/s, forward."""
        lin_vel_y: tuple[float, float]
        """m/s, to the left."""
        ang_vel_z: tuple[float, float]
        """rad/s, to the left."""
        heading: tuple[float, float] | None = None
        """Direction to face, rad in the world frame; for ``heading_command``."""

        def __post_init__(self) -> None:
            _check_ranges(self)

    ranges: Ranges
    rel_standing_envs: float = 0.0
    """Share of the draws that are zero: stand still."""
    heading_command: bool = False
    """Whether to draw directions to face."""
    rel_heading_envs: float = 1.0
    """Share of the draws that face one: their yaw rate turns towards it, within its range."""
    heading_control_stiffness: float = 1.0
    """Commanded yaw rate per angle left to turn, 1/s."""
    entity_name: str = "robot"
    """The entity that follows the command; needs a free root joint."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rel_standing_envs", "rel_heading_envs"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.heading_command != (self.ranges.heading is not None):
            raise ConfigError(
                "ranges.heading must be given exactly with heading_command=True, got "
                f"{self.ranges.heading} with {self.heading_command}"
            )

    def build(self, env: ManagerBasedRlEnv) -> UniformVelocityCommand:
        return UniformVelocityCommand(self, env)


class UniformVelocityCommand(CommandTerm):
    """``[num_envs, 3]``: forward, left (m/s) and yaw rate (rad/s)."""

    mirror = ("lin_vel_x", "-lin_vel_y", "-ang_vel_z")

    def __init__(self, cfg: UniformVelocityCommandCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self._cfg = cfg
        self._robot = env.scene[cfg.entity_name].data
        self._ranges = {name: getattr(cfg.ranges, name) for name in _VELOCITIES}
        self._bounds = torch.zeros(2, 3, device=env.device)
        self._low, self._span = self._bounds
        self.set_ranges()
        self._command = torch.zeros(env.num_envs, 3, device=env.device)
        self._heading = torch.zeros(env.num_envs, device=env.device)
        self._faces = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self._stale = False

    @property
    def command(self) -> Tensor:
        if self._stale:
            self._steer()
        return self._command

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Current bounds, by name of the configuration's fields."""
        return dict(self._ranges)

    def check_ranges(self, **ranges: tuple[float, float]) -> None:
        """Refuse unknown names, and bounds that are reversed or not finite."""
        for name, bounds in ranges.items():
            if name not in _VELOCITIES:
                raise ConfigError(
                    f"the command has no range {name!r}{did_you_mean(name, _VELOCITIES)}: "
                    f"it has {_VELOCITIES}"
                )
            check_fits(name, bounds, tuple[float, float])
            check_range(name, bounds)

    def set_ranges(self, **ranges: tuple[float, float]) -> None:
        """Change the bounds of later draws, for a curriculum."""
        self.check_ranges(**ranges)
        self._ranges.update(ranges)
        low, high = torch.tensor([self._ranges[name] for name in _VELOCITIES]).T
        self._bounds.copy_(torch.stack((low, high - low)))

    def compute(self) -> None:
        super().compute()
        self._stale = self._cfg.heading_command

    def metrics(self) -> dict[str, Tensor]:
        """``error_vel_xy`` (m/s) and ``error_vel_yaw`` (rad/s): distances from the command."""
        off_xy = self.command[:, :2] - self._robot.root_lin_vel_b[:, :2]
        off_yaw = self.command[:, 2] - self._robot.root_ang_vel_b[:, 2]
        return {
            "error_vel_xy": torch.linalg.vector_norm(off_xy, dim=1),
            "error_vel_yaw": off_yaw.abs(),
        }

    def resample(self, rows: Tensor) -> None:
        draw = torch.rand(rows.shape[0], 4, generator=self._env.generator, device=self._env.device)
        moving = draw[:, 3:] >= self._cfg.rel_standing_envs
        drawn = (self._low + self._span * draw[:, :3]).mul_(moving)
        self._command.index_copy_(0, rows, drawn)
        bounds = self._cfg.ranges.heading
        if bounds is not None:
            draw = draw.new_empty(2, rows.shape[0]).uniform_(generator=self._env.generator)
            faces = (draw[0] < self._cfg.rel_heading_envs) & moving[:, 0]
            self._faces.index_copy_(0, rows, faces)
            self._heading.index_copy_(0, rows, bounds[0] + (bounds[1] - bounds[0]) * draw[1])
            self._stale = True

    def reflect(self, rows: Tensor) -> None:
        self._heading[rows] *= -1.0

    def actual(self, row: int) -> Tensor:
        """``[3]``, what the robot of an environment does, in the columns of :attr:`command`."""
        root, state = self._root_state(row)
        turned = rotations.rotate_inverse(root[None, 3:], state[None, :3])[0]
        return torch.cat((turned[:2], state[5:]))

    def debug_draw(self, row: int) -> list[Marker]:
        """Green for the command and blue for the robot's velocity; none for a tiny one."""
        root, _ = self._root_state(row)
        yaw = float(rotations.heading(root[None, 3:]))
        cos, sin = math.cos(yaw), math.sin(yaw)
        x, y, z = root[:3].tolist()
        drawn: list[Marker] = []
        for planar, rgba, above in (
            (self.command[row], _COMMANDED, _ABOVE + 0.06),
            (self.actual(row), _ACTUAL, _ABOVE),
        ):
            forward, left = planar[:2].tolist()
            if math.hypot(forward, left) >= _SHORTEST:
                vector = (cos * forward - sin * left, sin * forward + cos * left, 0.0)
                drawn.append(Arrow((x, y, z + above), tuple(_LENGTH * v for v in vector), rgba))
        return drawn

    def _root_state(self, row: int) -> tuple[Tensor, Tensor]:
        """``[7]`` pose and ``[6]`` velocity; terms may read less, so not from the packet."""
        root = self._env.scene[self._cfg.entity_name].require_root()
        state = self._env.backend.get_state_views()
        return state["qpos"][row, root.qpos], state["qvel"][row, root.qvel]

    def _steer(self) -> None:
        """Turn the rows that face a direction towards it."""
        heading = rotations.heading(self._env.scene[self._cfg.entity_name].data.root_quat_w)
        left = (self._heading - heading + math.pi).remainder(2.0 * math.pi) - math.pi
        rate = left * self._cfg.heading_control_stiffness
        rate = torch.clamp(rate, self._low[2], self._low[2] + self._span[2])
        yaw = self._command[:, 2]
        yaw.copy_(torch.where(self._faces, rate, yaw))
        self._stale = False


@dataclass(frozen=True, kw_only=True)
class UniformPoseCommandCfg(CommandTermCfg):
    """A pose for one body of a robot, drawn uniformly in the frame of the robot's root body."""

    @dataclass(frozen=True, kw_only=True)
    class Ranges:
        """Lower and upper bounds of the draws."""

        pos_x: tuple[float, float]
        """m, as the two below."""
        pos_y: tuple[float, float]
        pos_z: tuple[float, float]
        roll: tuple[float, float] = (0.0, 0.0)
        """rad; roll, then pitch, then yaw turn the body about the fixed axes."""
        pitch: tuple[float, float] = (0.0, 0.0)
        yaw: tuple[float, float] = (0.0, 0.0)

        def __post_init__(self) -> None:
            _check_ranges(self)

    ranges: Ranges
    body_name: str
    """The body that is to take the pose."""
    entity_name: str = "robot"
    """The entity that follows the command."""

    def build(self, env: ManagerBasedRlEnv) -> UniformPoseCommand:
        return UniformPoseCommand(self, env)


class UniformPoseCommand(CommandTerm):
    """``[num_envs, 7]``: position (m) and orientation (w, x, y, z) in the root body's frame."""

    def __init__(self, cfg: UniformPoseCommandCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        entity = env.scene[cfg.entity_name]
        self._data = entity.data
        self._root, self._body = (
            env.scene.resolve(SceneEntityCfg(cfg.entity_name, body_names=pattern))
            for pattern in (re.escape(entity.cfg.root_body), cfg.body_name)
        )
        if len(require_ids(self._body.body_ids)) != 1:
            raise ConfigError(f"body_name must be of one body, got {cfg.body_name!r}")
        low, high = torch.tensor([getattr(cfg.ranges, f.name) for f in fields(cfg.ranges)]).T
        self._low, self._span = low.to(env.device), (high - low).to(env.device)
        self._command = torch.zeros(env.num_envs, 7, device=env.device)

    @property
    def command(self) -> Tensor:
        return self._command

    def pose_w(self) -> tuple[Tensor, Tensor]:
        """The commanded position ``[num_envs, 3]`` m and orientation ``[num_envs, 4]`` in the
        world frame."""
        pos, quat = self._pose_of(self._root)
        target, turn = self._command.split((3, 4), 1)
        return pos + rotations.rotate(quat, target), rotations.multiply(quat, turn)

    def resample(self, rows: Tensor) -> None:
        draw = torch.rand(rows.shape[0], 6, generator=self._env.generator, device=self._env.device)
        pos, angles = torch.addcmul(self._low, draw, self._span).split(3, 1)
        pose = torch.cat((pos, rotations.from_euler(*angles.unbind(1))), 1)
        self._command.index_copy_(0, rows, pose)

    def metrics(self) -> dict[str, Tensor]:
        """``position_error`` (m) and ``orientation_error`` (rad): distances from the command."""
        (wanted_pos, wanted), (pos, quat) = self.pose_w(), self._pose_of(self._body)
        return {
            "position_error": (wanted_pos - pos).norm(dim=1),
            "orientation_error": rotations.angle_between(wanted, quat),
        }

    def debug_draw(self, row: int) -> list[Marker]:
        """A green ball with the axes of the commanded frame, and the axes of the body's."""
        target, at = (
            (pos[row].tolist(), quat[row].tolist())
            for pos, quat in (self.pose_w(), self._pose_of(self._body))
        )
        return [Sphere(target[0], 0.02, _COMMANDED), *axes(*target, 0.15), *axes(*at, 0.1)]

    def _pose_of(self, body: SceneEntityCfg) -> tuple[Tensor, Tensor]:
        return self._data.body_pos_w(body)[:, 0], self._data.body_quat_w(body)[:, 0]


def _check_ranges(ranges: UniformVelocityCommandCfg.Ranges | UniformPoseCommandCfg.Ranges) -> None:
    check_fields(ranges, "ranges")
    for field in fields(ranges):
        bounds = getattr(ranges, field.name)
        if bounds is not None:
            check_range(field.name, bounds)
