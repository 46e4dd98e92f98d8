"""Reference motions: their ``.npz`` files, and motions from frames of ``qpos`` or from a CSV file.

A file has plain arrays of T frames, J joints and B bodies:

    fps                                     frames a second
    joint_names [J], body_names [B]         text
    joint_pos, joint_vel [T, J]             rad, rad/s
    body_pos_w [T, B, 3]                    m, of the bodies' frames, as all that follows
    body_quat_w [T, B, 4]                   w, x, y, z
    body_lin_vel_w, body_ang_vel_w [T, B, 3]    m/s, rad/s, world frame
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from unilab.errors import ConfigError, first_line

_ONE_AXIS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
_SHAPES = {
    "joint_pos": ("J",),
    "joint_vel": ("J",),
    "body_pos_w": ("B", 3),
    "body_quat_w": ("B", 4),
    "body_lin_vel_w": ("B", 3),
    "body_ang_vel_w": ("B", 3),
}
"""Shapes of a frame."""
_LARGEST = 1e4
"""Of any number, m, rad, m/s or rad/s: float32 has steps of 1 mm there."""
_OUTSIDE = 0.2
"""Joints of retargeted motions are outside their ranges by less, rad or m."""
_OFF_GROUND = 0.2
"""Retargeted robots are above or below the ground by less, m."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Motion:
    """A reference motion, float32; the module's docstring has shapes and units."""

    fps: float
    joint_names: tuple[str, ...]
    body_names: tuple[str, ...]
    joint_pos: np.ndarray
    joint_vel: np.ndarray
    body_pos_w: np.ndarray
    body_quat_w: np.ndarray
    body_lin_vel_w: np.ndarray
    body_ang_vel_w: np.ndarray

    def __post_init__(self) -> None:
        _check_fps("fps of a motion", self.fps)
        for name in ("joint_names", "body_names"):
            names = getattr(self, name)
            twice = sorted({each for each in names if names.count(each) > 1})
            if twice:
                raise ConfigError(f"{name} of a motion must be different, got {twice[:3]} twice")
        if not self.body_names:
            raise ConfigError("body_names of a motion must have at least 1 body, got none")
        frames = len(self.joint_pos)
        if frames < 2:
            raise ConfigError(f"joint_pos of a motion must have at least 2 frames, got {frames}")
        sizes = {"J": len(self.joint_names), "B": len(self.body_names)}
        for name, shape in _SHAPES.items():
            array, wanted = getattr(self, name), (frames, *(sizes.get(str(n), n) for n in shape))
            if array.shape != wanted:
                raise ConfigError(
                    f"{name} of a motion must have shape {wanted}, for its frames, joint_names and "
                    f"body_names, got {array.shape}"
                )
            bad = np.flatnonzero(~(np.abs(array) <= _LARGEST).reshape(frames, -1).all(1))
            if bad.size:
                raise ConfigError(
                    f"{name} of a motion must be finite and within {_LARGEST:g}, got others in "
                    f"frames {bad[:8]}"
                )
        _check_unit("body_quat_w of a motion", self.body_quat_w)

    def __len__(self) -> int:
        """Frames."""
        return len(self.joint_pos)

    @classmethod
    def load(cls, path: str | Path) -> Motion:
        """Read a ``.npz`` file; pickled arrays are refused."""
        path = Path(path).expanduser()
        try:
            if not zipfile.is_zipfile(path):
                raise ConfigError(f"it must be a .npz file, got {_kind(path)}")
            with zipfile.ZipFile(path) as archive:
                return cls._of({field.name: _read(archive, field.name) for field in fields(cls)})
        except ConfigError as error:
            raise ConfigError(f"motion {path}: {error}") from None
        except OSError as error:
            raise ConfigError(
                f"motion {path} must be a file that can be read: {first_line(error)}"
            ) from error
        except Exception as error:  # zipfile, zlib and NumPy raise many classes for damaged bytes
            raise ConfigError(f"motion {path} is damaged: {first_line(error)}") from error

    @classmethod
    def _of(cls, arrays: dict[str, np.ndarray]) -> Motion:
        for name, array in arrays.items():
            kinds, ndim = ("U", 1) if name.endswith("_names") else ("fiu", None)
            if array.dtype.kind not in kinds or ndim not in (None, array.ndim):
                what = "a list of text" if kinds == "U" else "numbers"
                raise ConfigError(f"{name} must be {what}, got {array.dtype} {array.shape}")
        if arrays["fps"].size != 1:
            raise ConfigError(f"fps must be one number, got {arrays['fps'].size}")
        return cls(
            fps=float(arrays["fps"].reshape(())),
            joint_names=tuple(arrays["joint_names"].tolist()),
            body_names=tuple(arrays["body_names"].tolist()),
            **{name: np.atleast_1d(arrays[name]).astype(np.float32) for name in _SHAPES},
        )

    def check_joint_ranges(self, ranges: Mapping[str, Sequence[float]]) -> None:
        """Refuse joint positions far outside the ranges of these joints, rad or m."""
        for name, (low, high) in ranges.items():
            values = self.joint_pos[:, self.joint_names.index(name)]
            outside = np.maximum(low - values, values - high)
            frame = int(outside.argmax())
            if outside[frame] > _OUTSIDE:
                raise ConfigError(
                    f"joint_pos of {name!r} must be within {_OUTSIDE} of its range "
                    f"[{low:.4g}, {high:.4g}], got {values[frame]:.4g} in frame {frame} "
                    f"({frame / self.fps:.2f} s): is it in degrees, or for another robot?"
                )

    def save(self, path: str | Path) -> None:
        """Write a ``.npz`` file."""
        arrays: dict[str, Any] = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}
        np.savez_compressed(path, **arrays)

    @classmethod
    def from_qpos(cls, model: mujoco.MjModel, qpos: np.ndarray, fps: float) -> Motion:
        """The motion of the first robot with a free root through frames ``[T, nq]``.

        Velocities are central differences of the frames; MuJoCo computes the bodies. Joints far
        outside their ranges are refused.
        """
        root, joints, bodies = _robot(model)
        _check_fps("fps", fps)
        try:
            qpos = np.asarray(qpos, np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"qpos must be numbers: {first_line(error)}") from error
        if qpos.shape[1:] != (model.nq,) or len(qpos) < 2:
            raise ConfigError(
                f"qpos must have shape [T, {model.nq}] and 2 frames or more, got {qpos.shape}"
            )
        at = int(model.jnt_qposadr[root]) + 3
        _check_unit(f"columns {at} to {at + 3} of qpos", qpos[:, at : at + 4])
        data, velocity = mujoco.MjData(model), np.zeros(6)
        dofs = model.jnt_dofadr[joints]
        frames: dict[str, list[np.ndarray]] = {name: [] for name in _SHAPES}
        for t in range(len(qpos)):
            before, after = max(t - 1, 0), min(t + 1, len(qpos) - 1)
            mujoco.mj_differentiatePos(
                model, data.qvel, (after - before) / fps, qpos[before], qpos[after]
            )
            data.qpos[:] = qpos[t]
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_comVel(model, data)
            rates = np.zeros((len(bodies), 6))
            for row, body in zip(rates, bodies, strict=True):
                mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
                row[:] = velocity
            frames["joint_pos"].append(data.qpos[model.jnt_qposadr[joints]].copy())
            frames["joint_vel"].append(data.qvel[dofs].copy())
            frames["body_pos_w"].append(data.xpos[bodies].copy())
            frames["body_quat_w"].append(data.xquat[bodies].copy())
            frames["body_lin_vel_w"].append(rates[:, 3:])
            frames["body_ang_vel_w"].append(rates[:, :3])
        motion = cls(
            fps=float(fps),
            joint_names=tuple(model.joint(j).name for j in joints),
            body_names=tuple(model.body(b).name for b in bodies),
            **{name: np.asarray(each, np.float32) for name, each in frames.items()},
        )
        limited = [model.joint(j) for j in joints if model.jnt_limited[j]]
        motion.check_joint_ranges({joint.name: joint.range for joint in limited})
        return motion

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        model: mujoco.MjModel,
        *,
        input_fps: float,
        output_fps: float | None = None,
    ) -> Motion:
        """A retargeted motion: a line a frame, without a header.

        Columns: root position (m), root quaternion (x, y, z, w), joint positions (rad) in the order
        of the model, as in the retargeted LAFAN1 data set. The ground is at height 0; a robot that
        is far from it in most frames is refused.

        Args:
            output_fps: frames a second of the result, interpolated; None: ``input_fps``.
        """
        output_fps = input_fps if output_fps is None else output_fps
        for name, fps in (("input_fps", input_fps), ("output_fps", output_fps)):
            _check_fps(name, fps)
        root, joints, _ = _robot(model)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an empty file, refused below
                table = np.loadtxt(Path(path).expanduser(), delimiter=",", ndmin=2)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} must be lines of numbers with commas between them, without a header: "
                f"{first_line(error)}"
            ) from error
        if len(table) < 2 or table.shape[1] != 7 + len(joints):
            raise ConfigError(
                f"{path} must have 2 lines or more of {7 + len(joints)} columns (root position, "
                f"quaternion and {len(joints)} joints), got {table.shape}"
            )
        bad = np.flatnonzero(~np.isfinite(table).all(1))
        if bad.size:
            raise ConfigError(f"{path} must have finite numbers, got others in lines {bad[:8] + 1}")
        quat = table[:, [6, 3, 4, 5]]
        _check_unit(f"columns 4 to 7 (x, y, z, w) of {path}", quat)
        # q and -q are the same rotation: neighbours of one sign can be interpolated.
        signs = np.where((quat[1:] * quat[:-1]).sum(1) < 0.0, -1.0, 1.0)
        quat[1:] *= np.cumprod(signs)[:, None]
        frames = np.tile(model.qpos0, (len(table), 1))
        at = int(model.jnt_qposadr[root])
        frames[:, at : at + 3] = table[:, :3]
        frames[:, at + 3 : at + 7] = quat / np.linalg.norm(quat, axis=1, keepdims=True)
        frames[:, model.jnt_qposadr[joints]] = table[:, 7:]
        frames = _resampled(frames, at + 3, input_fps, output_fps)
        if len(frames) < 2:
            raise ConfigError(
                f"output_fps must give 2 frames or more of {(len(table) - 1) / input_fps:.3g} s, "
                f"got {output_fps:g}"
            )
        try:
            motion = cls.from_qpos(model, frames, output_fps)
            _check_ground(model, frames)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        return motion


def _check_fps(name: str, fps: Any) -> None:
    if not (isinstance(fps, int | float | np.integer | np.floating) and 1.0 <= fps <= 1000.0):
        raise ConfigError(f"{name} must be a number from 1 to 1000, got {fps!r}")


def _check_unit(name: str, quat: np.ndarray) -> None:
    lengths = np.linalg.norm(quat, axis=-1)
    if not np.abs(lengths - 1.0).max() <= 1e-2:
        raise ConfigError(
            f"{name} must be unit quaternions, got lengths from {lengths.min():.3g} to "
            f"{lengths.max():.3g}"
        )


def _check_ground(model: mujoco.MjModel, frames: np.ndarray) -> None:
    """Refuse a robot that is away from height 0, or less so with quaternions in another order."""
    at = int(model.jnt_qposadr[_robot(model)[0]]) + 3
    reordered = frames.copy()
    reordered[:, at : at + 4] = frames[:, [at + 1, at + 2, at + 3, at]]
    height, other = _height(model, frames), _height(model, reordered)
    order = abs(height) > 0.05 and abs(other) < 0.5 * abs(height)
    if order or abs(height) > _OFF_GROUND:
        raise ConfigError(
            f"the robot must be on the ground, got its lowest point {abs(height):.2f} m "
            f"{'above' if height > 0.0 else 'below'} it in most frames: "
            + ("the root quaternion must be in the order x, y, z, w" if order else "move the root")
        )


def _height(model: mujoco.MjModel, frames: np.ndarray) -> float:
    """Of the robot's lowest point, m, median of the frames."""
    geoms = np.isin(model.geom_bodyid, _robot(model)[2])
    middle, half = model.geom_aabb[geoms, :3], model.geom_aabb[geoms, 3:]
    data, lowest = mujoco.MjData(model), []
    for frame in frames if geoms.any() else ():
        data.qpos[:] = frame
        mujoco.mj_kinematics(model, data)
        up = data.geom_xmat[geoms, 6:]
        heights = data.geom_xpos[geoms, 2] + (up * middle).sum(1) - (np.abs(up) * half).sum(1)
        lowest.append(heights.min())
    return float(np.median(lowest or [0.0]))


def _kind(path: Path) -> str:
    """What a file is that is not an archive, and what to do."""
    with path.open("rb") as file:
        head = file.read(256)
    if not head:
        return "an empty file"
    if head.startswith(b"PK"):
        return "a damaged one"
    if head.startswith(np.lib.format.MAGIC_PREFIX):
        return "a single array (.npy): Motion.save writes all arrays of a motion"
    if path.suffix == ".csv" or (b"," in head and head.isascii()):
        return "a CSV file: convert it with unilab csv-to-npz"
    return "another kind of file: unilab csv-to-npz writes .npz files"


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """A plain array of the archive, not larger than the archive has data for."""
    held = [each.removesuffix(".npy") for each in archive.namelist()]
    if name not in held:
        raise ConfigError(f"it must hold {name!r}, got {held}: unilab csv-to-npz writes such files")
    with archive.open(f"{name}.npy") as file:
        first = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise ConfigError(f"{name!r} must be a plain array, got a pickle")
        size = archive.getinfo(f"{name}.npy").file_size - file.tell()
        if size != math.prod(shape) * dtype.itemsize:
            raise ConfigError(f"{name!r} must have data for {dtype} {shape}, got {size} bytes")
        return np.ndarray(shape, dtype, file.read(), order="F" if fortran else "C")


def _resampled(frames: np.ndarray, quat: int, input_fps: float, output_fps: float) -> np.ndarray:
    """Frames at another rate, linear in between; quaternions are at the columns from ``quat``."""
    if input_fps == output_fps:
        return frames
    times = np.arange(len(frames)) / input_fps
    wanted = np.arange(int(times[-1] * output_fps + 1e-6) + 1) / output_fps
    out = np.stack([np.interp(wanted, times, column) for column in frames.T], 1)
    out[:, quat : quat + 4] /= np.linalg.norm(out[:, quat : quat + 4], axis=1, keepdims=True)
    return out


def _robot(model: mujoco.MjModel) -> tuple[int, Sequence[int], Sequence[int]]:
    """The first free joint, and the hinge and slide joints and the bodies of its tree."""
    free = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE))
    if not free.size:
        raise ConfigError("the model of a motion must have a free joint, got none")
    root = int(free[0])
    tree = model.body_rootid == model.jnt_bodyid[root]
    one_axis = np.isin(model.jnt_type, [int(kind) for kind in _ONE_AXIS])
    joints = np.flatnonzero(one_axis & tree[model.jnt_bodyid])
    return root, joints.tolist(), np.flatnonzero(tree).tolist()
