"""The command to follow a reference motion, and where in it episodes start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from unilab.checks import Count
from unilab.envs import rotations
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.command import CommandTerm, CommandTermCfg
from unilab.envs.mdp.events import draw_axes, draw_uniform
from unilab.envs.motion import Motion
from unilab.envs.names import Patterns, find_names
from unilab.errors import ConfigError, did_you_mean
from unilab.markers import Ghost, Marker

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = ["MotionCommand", "MotionCommandCfg"]

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class MotionCommandCfg(CommandTermCfg):
    """Follow a reference motion, a frame in each control step. Names are as in mjlab.

    Episodes start with the robot in a frame of the motion, plus noise; reset events come after it.
    """

    resampling_time_range: tuple[float, float] = (1e9, 1e9)
    """Has no effect: an episode starts one pass through the motion."""
    motion_file: str | Path
    """A ``.npz`` file as :class:`~unilab.envs.motion.Motion` describes it, for this robot, with as
    many frames a second as the task has control steps."""
    anchor_body_name: str
    """The body whose frame carries the others, one of ``body_names``."""
    body_names: Patterns
    """Regular expressions of the bodies that follow the motion; they are in the model's order."""
    entity_name: str = "robot"
    """The entity that follows; needs a free root joint."""
    pose_range: dict[str, Range] = field(default_factory=dict)
    """Noise of the root's first pose: x, y, z in m, roll, pitch, yaw in rad, world frame; 0 if
    absent."""
    velocity_range: dict[str, Range] = field(default_factory=dict)
    """Noise of the root's first velocity: x, y, z in m/s, world frame; roll, pitch, yaw in rad/s,
    body frame; 0 if absent."""
    joint_position_range: Range = (0.0, 0.0)
    """Noise of the first joint positions, rad, within the joints' limits."""
    sampling_mode: Literal["adaptive", "uniform", "start"] = "adaptive"
    """Where episodes start: ``adaptive`` draws more often where robots fail (BeyondMimic, Liao et
    al. 2025), by bins of a second; ``uniform`` anywhere; ``start`` always at the first frame."""
    adaptive_kernel_size: Count = 1
    """Bins before a failure that it makes more likely as well; at most the motion's bins."""
    adaptive_lambda: float = 0.8
    """Factor from each of these bins to the one before it."""
    adaptive_uniform_ratio: float = 0.1
    """Weight of the uniform distribution: what a bin without failures keeps."""
    adaptive_alpha: float = 0.001
    """Rate of the running mean of failures, each control step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("adaptive_lambda", "adaptive_uniform_ratio", "adaptive_alpha"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be in (0, 1], got {getattr(self, name)}")

    def build(self, env: ManagerBasedRlEnv) -> MotionCommand:
        return MotionCommand(self, env)


@dataclass(frozen=True)
class _Reference:
    """The motion as one table, so that one gather reads all of a frame.

    Frozen, as settings: neither checkpoints nor refused resets copy it.
    """

    table: Tensor
    """``[frames, width]``."""
    columns: Mapping[str, slice]
    cached: dict[str, tuple[tuple[int, int], Tensor]] = field(default_factory=dict)
    """Values of this phase of a step, with the versions of what they were computed from."""
    selections: dict[Patterns, Tensor] = field(default_factory=dict)
    """Columns of bodies by patterns."""


class MotionCommand(CommandTerm):
    """``[num_envs, 2 * joints]``: the reference's joint positions (rad) and velocities (rad/s).

    The reference is the frame that the robot should reach with the coming control step. A robot
    past the last frame stays there: end the episode with ``motion_ended``. Names without ``robot_``
    are the reference's; bodies are ``[num_envs, bodies, ...]``, in the order of ``body_names``.
    """

    def __init__(self, cfg: MotionCommandCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self._cfg = cfg
        self._entity = entity = env.scene[cfg.entity_name]
        entity.require_root()
        if env.scene.terrain is not None:
            raise ConfigError("scene.terrain must be None: a motion knows no ground but the plane")
        asset = SceneEntityCfg(cfg.entity_name, body_names=cfg.body_names)
        self._asset = env.scene.resolve(asset)
        ids = self._asset.body_ids.tolist()
        self.body_names = tuple(env.backend.bodies[i] for i in ids)
        """The bodies that follow, in the model's order."""
        if cfg.anchor_body_name not in self.body_names:
            raise ConfigError(
                f"anchor_body_name must be one of body_names, got {cfg.anchor_body_name!r}"
                f"{did_you_mean(cfg.anchor_body_name, self.body_names)}: they are "
                f"{list(self.body_names)}"
            )
        self.anchor = self.body_names.index(cfg.anchor_body_name)
        """Column of the anchor among the bodies."""
        motion = Motion.load(cfg.motion_file)
        try:
            self._reference = self._table(motion)
        except ConfigError as error:
            raise ConfigError(f"motion {cfg.motion_file}: {error}") from None
        self.sampling_mode = cfg.sampling_mode
        """As in the configuration; ``play`` sets ``start``."""
        frames = len(motion)
        self.last_frame = frames - 1
        self.frame = torch.zeros(env.num_envs, 1, dtype=torch.int64, device=env.device)
        """``[num_envs, 1]``, the frame to reach with the coming control step."""
        self._column = torch.zeros(1, dtype=torch.int64, device=env.device)
        self.bin_count = max(1, round(self.last_frame / motion.fps))
        if cfg.adaptive_kernel_size > self.bin_count:
            raise ConfigError(
                f"adaptive_kernel_size must be at most {self.bin_count}, the motion's bins of a "
                f"second, got {cfg.adaptive_kernel_size}"
            )
        self.bin_failed_count = torch.zeros(self.bin_count, device=env.device)
        """``[bins]``, running mean of the failures in a control step."""
        powers = torch.arange(cfg.adaptive_kernel_size, dtype=torch.float32, device=env.device)
        self._kernel = cfg.adaptive_lambda**powers
        self._kernel /= self._kernel.sum()

    def _table(self, motion: Motion) -> _Reference:
        env, entity = self._env, self._entity
        rate = 1.0 / env.step_dt
        if not math.isclose(motion.fps, rate, rel_tol=1e-3):
            raise ConfigError(
                f"fps must be {rate:g}, the task's control steps a second, got {motion.fps:g}: "
                f"convert it with unilab csv-to-npz --output-fps {rate:g}"
            )
        joints = _find("joint_names", entity.joint_names, motion.joint_names)
        extra = [name for name in motion.joint_names if name not in entity.joint_names]
        if extra:
            raise ConfigError(
                f"joint_names must be those of {entity.name!r}, got {_short(extra)} too: it is a "
                "motion of another robot"
            )
        limits = entity.data.joint_pos_limits.tolist()
        motion.check_joint_ranges(dict(zip(entity.joint_names, limits, strict=True)))
        bodies = _find("body_names", self.body_names, motion.body_names)
        (root,) = _find("body_names", (entity.cfg.root_body,), motion.body_names)
        quat = torch.from_numpy(motion.body_quat_w[:, root])
        spin = torch.from_numpy(motion.body_ang_vel_w[:, root])
        parts = {
            "joint_pos": motion.joint_pos[:, joints],
            "joint_vel": motion.joint_vel[:, joints],
            **{
                name: getattr(motion, name)[:, bodies].reshape(len(motion), -1)
                for name in ("body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")
            },
            "root_pos_w": motion.body_pos_w[:, root],
            "root_quat_w": quat,
            "root_lin_vel_w": motion.body_lin_vel_w[:, root],
            "root_ang_vel_b": rotations.rotate_inverse(quat, spin),
        }
        columns, at = {}, 0
        for name, part in parts.items():
            columns[name] = slice(at, at + part.shape[1])
            at += part.shape[1]
        table = torch.cat([torch.as_tensor(part) for part in parts.values()], 1)
        return _Reference(table.to(env.device), columns)

    @property
    def command(self) -> Tensor:
        return self._current()[:, : self._reference.columns["joint_vel"].stop]

    @property
    def joint_pos(self) -> Tensor:
        return self._part("joint_pos")

    @property
    def joint_vel(self) -> Tensor:
        return self._part("joint_vel")

    @property
    def body_pos_w(self) -> Tensor:
        return self._part("body_pos_w").unflatten(1, (-1, 3))

    @property
    def body_quat_w(self) -> Tensor:
        return self._part("body_quat_w").unflatten(1, (-1, 4))

    @property
    def body_lin_vel_w(self) -> Tensor:
        return self._part("body_lin_vel_w").unflatten(1, (-1, 3))

    @property
    def body_ang_vel_w(self) -> Tensor:
        return self._part("body_ang_vel_w").unflatten(1, (-1, 3))

    @property
    def anchor_pos_w(self) -> Tensor:
        return self.body_pos_w[:, self.anchor]

    @property
    def anchor_quat_w(self) -> Tensor:
        return self.body_quat_w[:, self.anchor]

    @property
    def robot_body_pos_w(self) -> Tensor:
        return self._cached("pos", lambda: self._entity.data.body_pos_w(self._asset))

    @property
    def robot_body_quat_w(self) -> Tensor:
        return self._cached("quat", lambda: self._entity.data.body_quat_w(self._asset))

    @property
    def robot_body_lin_vel_w(self) -> Tensor:
        return self._entity.data.body_lin_vel_w(self._asset)

    @property
    def robot_body_ang_vel_w(self) -> Tensor:
        return self._entity.data.body_ang_vel_w(self._asset)

    @property
    def robot_anchor_pos_w(self) -> Tensor:
        return self.robot_body_pos_w[:, self.anchor]

    @property
    def robot_anchor_quat_w(self) -> Tensor:
        return self.robot_body_quat_w[:, self.anchor]

    @property
    def body_pos_relative_w(self) -> Tensor:
        """The reference moved and turned about the vertical so that its anchor is under, or over,
        the robot's, at its own height."""
        return self._cached("pos_relative", self._moved)

    @property
    def body_quat_relative_w(self) -> Tensor:
        """Orientations of :attr:`body_pos_relative_w`."""
        turn = self._turn
        return self._cached(
            "quat_relative", lambda: rotations.multiply_each(turn, self.body_quat_w)
        )

    @property
    def body_pos_error(self) -> Tensor:
        """``[num_envs, bodies, 3]`` m, from the robot's bodies to :attr:`body_pos_relative_w`."""
        return self._cached("pos_error", lambda: self.body_pos_relative_w - self.robot_body_pos_w)

    @property
    def body_rot_error(self) -> Tensor:
        """``[num_envs, bodies]`` rad, angles between the robot's bodies and
        :attr:`body_quat_relative_w`."""
        return self._cached(
            "rot_error",
            lambda: rotations.angle_between(self.body_quat_relative_w, self.robot_body_quat_w),
        )

    def select(self, body_names: Patterns | None, value: Tensor) -> Tensor:
        """The bodies of ``value`` that patterns match; None: all."""
        if body_names is None:
            return value
        known = self._reference.selections
        key = body_names if isinstance(body_names, str) else tuple(body_names)
        if key not in known:
            found = find_names(body_names, self.body_names, "body of the motion command")
            with torch.inference_mode(False):
                known[key] = torch.tensor(found, device=value.device)
        return value.index_select(1, known[key])

    def metrics(self) -> dict[str, Tensor]:
        """``error_anchor_pos`` (m), ``error_anchor_rot`` (rad), means over the bodies relative to
        the anchor, ``error_joint_pos`` (rad, root of the sum of squares), and, of the adaptive
        starts, the entropy from 0 (one bin) to 1 (uniform)."""
        away = self.anchor_pos_w - self.robot_anchor_pos_w
        joints = self.joint_pos - self._entity.data.joint_pos
        found = {
            "error_anchor_pos": away.norm(dim=1),
            "error_anchor_rot": rotations.angle_between(
                self.anchor_quat_w, self.robot_anchor_quat_w
            ),
            "error_body_pos": self.body_pos_error.norm(dim=2).mean(1),
            "error_body_rot": self.body_rot_error.mean(1),
            "error_joint_pos": joints.norm(dim=1),
        }
        if self._cfg.sampling_mode == "adaptive":
            p = self.start_probabilities()
            entropy = -(p * p.log()).sum() / math.log(max(2, len(p)))
            found["sampling_entropy"] = entropy.expand(self._env.num_envs)
        return found

    def deployment_metadata(self) -> dict[str, Any]:
        """The motion's file, its anchor, and the joints of the command's columns."""
        return {
            "motion_file": Path(self._cfg.motion_file).name,
            "anchor_body_name": self._cfg.anchor_body_name,
            "joint_names": list(self._entity.joint_names),
        }

    def debug_draw(self, row: int) -> list[Marker]:
        """The reference as a transparent robot."""
        qpos = self._env.backend.get_state_views()["qpos"][row].clone()
        root = torch.cat((self._part("root_pos_w")[row], self._part("root_quat_w")[row]))
        qpos[self._entity.require_root().qpos] = root.to(qpos)
        first, last = self._entity.joints[0].qpos.start, self._entity.joints[-1].qpos.stop
        qpos[first:last] = self.joint_pos[row].to(qpos)
        return [Ghost(qpos.tolist())]

    def compute(self) -> None:
        failed = self._env.termination_manager.terminated.float()
        counts = torch.zeros_like(self.bin_failed_count)
        bins = self.frame[:, 0] * len(counts) // (self.last_frame + 1)
        counts.index_add_(0, bins, failed)
        self.bin_failed_count.lerp_(counts, self._cfg.adaptive_alpha)
        self.frame.add_(1).clamp_(max=self.last_frame)

    def start_probabilities(self) -> Tensor:
        """``[bins]``, of adaptive starts; bins are of equal length, about a second."""
        weights = self.bin_failed_count + self._cfg.adaptive_uniform_ratio / self.bin_count
        if len(self._kernel) > 1:  # a failure counts for the bins before it
            ahead = torch.cat((weights, weights[-1:].expand(len(self._kernel) - 1)))
            weights = ahead.unfold(0, len(self._kernel), 1) @ self._kernel
        return weights / weights.sum()

    def stage_reset(self, rows: Tensor) -> None:
        env, cfg, entity, n = self._env, self._cfg, self._entity, rows.shape[0]
        start = self._draw_starts(n)
        # The robot is in one frame, and is to reach the next.
        env.scene.write_tensor(self.frame, self._column, (start + 1).unsqueeze(1), "motion frame")
        reference, columns = self._reference.table.index_select(0, start), self._reference.columns
        at = {name: reference[:, span] for name, span in columns.items()}
        offset, push = draw_axes(env, n, cfg.pose_range), draw_axes(env, n, cfg.velocity_range)
        turn = rotations.from_euler(*offset[:, 3:].unbind(1))
        entity.write_root_pose(
            at["root_pos_w"] + offset[:, :3], rotations.multiply(turn, at["root_quat_w"])
        )
        entity.write_root_velocity(
            at["root_lin_vel_w"] + push[:, :3], at["root_ang_vel_b"] + push[:, 3:]
        )
        joints = at["joint_pos"]
        noise = draw_uniform(
            env, (n, joints.shape[1]), "joint_position_range", cfg.joint_position_range
        )
        limits = entity.data.joint_pos_limits.T
        entity.write_joint_state((joints + noise).clamp_(*limits), at["joint_vel"])

    def resample(self, rows: Tensor) -> None:
        """Does nothing: :meth:`stage_reset` draws the frames."""

    def training_state(self) -> dict[str, Tensor]:
        return {"bin_failed_count": self.bin_failed_count.clone()}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the failures of a training; on a motion of another length, with none."""
        failed = state["bin_failed_count"]
        if failed.shape == self.bin_failed_count.shape:
            self.bin_failed_count.copy_(failed)

    def _draw_starts(self, n: int) -> Tensor:
        """``[n]`` frames, all but the last."""
        env = self._env
        if self.sampling_mode == "start":
            return torch.zeros(n, dtype=torch.int64, device=env.device)
        begins = torch.rand(n, generator=env.generator, device=env.device)
        if self.sampling_mode == "adaptive":
            p = self.start_probabilities()
            bins = torch.multinomial(p, n, replacement=True, generator=env.generator)
            begins = (bins + begins) / len(p)
        return (begins * self.last_frame).long().clamp_(max=self.last_frame - 1)

    def _current(self) -> Tensor:
        rows = self.frame[:, 0]
        return self._cached("frame", lambda: self._reference.table.index_select(0, rows))

    def _part(self, name: str) -> Tensor:
        return self._current()[:, self._reference.columns[name]]

    @property
    def _turn(self) -> Tensor:
        """``[num_envs, 4]``, the robot's heading less that of the reference."""

        def turn() -> Tensor:
            back = rotations.inverse(self.anchor_quat_w)
            between = rotations.multiply(self.robot_anchor_quat_w, back)
            return rotations.of_yaw(rotations.heading(between))

        return self._cached("turn", turn)

    def _moved(self) -> Tensor:
        anchor, robot = self.anchor_pos_w, self.robot_anchor_pos_w
        middle = torch.cat((robot[:, :2], anchor[:, 2:]), 1).unsqueeze(1)
        arms = self.body_pos_w - anchor.unsqueeze(1)
        return middle + rotations.rotate_each(self._turn, arms)

    def _cached(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Compute a value once a phase: until the packet or the frames change."""
        scene = self._env.scene
        if scene.in_first_call:  # its reads must be seen
            return compute()
        versions = scene.packet._version, self.frame._version
        known = self._reference.cached.get(name)
        if known is None or known[0] != versions:
            known = self._reference.cached[name] = versions, compute()
        return known[1]


def _find(what: str, wanted: Sequence[str], known: Sequence[str]) -> list[int]:
    """Columns of the wanted names."""
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ConfigError(
            f"{what} must include {_short(missing)}{did_you_mean(missing[0], known)}: it is a "
            "motion of another robot, or incomplete"
        )
    return [list(known).index(name) for name in wanted]


def _short(names: Sequence[str]) -> str:
    rest = len(names) - 3
    return ", ".join(map(repr, names[:3])) + (f" and {rest} more" if rest > 0 else "")
