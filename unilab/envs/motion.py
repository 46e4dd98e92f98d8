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

import zipfile
from collections.abc import Sequence
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
        if not (np.isfinite(self.fps) and self.fps > 0.0):
            raise ConfigError(f"fps of a motion must be finite and above 0, got {self.fps}")
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
            bad = np.flatnonzero(~np.isfinite(array).reshape(frames, -1).all(1))
            if bad.size:
                raise ConfigError(f"{name} of a motion must be finite, got NaN or Inf at {bad[:8]}")
        lengths = np.linalg.norm(self.body_quat_w, axis=-1)
        if np.abs(lengths - 1.0).max() > 1e-2:
            raise ConfigError(
                f"body_quat_w of a motion must be unit quaternions, got lengths from "
                f"{lengths.min():.3g} to {lengths.max():.3g}"
            )

    def __len__(self) -> int:
        """Frames."""
        return len(self.joint_pos)

    @classmethod
    def load(cls, path: str | Path) -> Motion:
        """Read a ``.npz`` file; pickled arrays are refused."""
        path, arrays = Path(path).expanduser(), {}
        names = [field.name for field in fields(cls)]
        try:
            with np.load(path, allow_pickle=False) as file:
                held = list(getattr(file, "files", ()))
                for name in names:
                    if name not in held:
                        raise ConfigError(
                            f"motion {path} must hold {name!r}, got {held}: unilab csv-to-npz "
                            "writes such files"
                        )
                    try:
                        arrays[name] = np.asarray(file[name])
                    except ValueError as error:
                        raise ConfigError(
                            f"{name!r} of motion {path} must be a plain array, got a pickle "
                            f"({first_line(error)})"
                        ) from error
        except ConfigError:
            raise
        except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"motion {path} must be a .npz file of plain arrays: {first_line(error)}"
            ) from error
        try:
            return cls._of(arrays)
        except ConfigError as error:
            raise ConfigError(f"motion {path}: {error}") from None

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

    def save(self, path: str | Path) -> None:
        """Write a ``.npz`` file."""
        arrays: dict[str, Any] = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}
        np.savez_compressed(path, **arrays)

    @classmethod
    def from_qpos(cls, model: mujoco.MjModel, qpos: np.ndarray, fps: float) -> Motion:
        """The motion of the first robot with a free root through frames ``[T, nq]``.

        Velocities are central differences of the frames; MuJoCo computes the bodies.
        """
        _, joints, bodies = _robot(model)
        if len(qpos) < 2 or not fps > 0.0:
            raise ConfigError(f"qpos must have 2 frames or more, and fps be above 0, got {fps}")
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
        return cls(
            fps=float(fps),
            joint_names=tuple(model.joint(j).name for j in joints),
            body_names=tuple(model.body(b).name for b in bodies),
            **{name: np.asarray(each, np.float32) for name, each in frames.items()},
        )

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
        of the model, as in the retargeted LAFAN1 data set.

        Args:
            output_fps: frames a second of the result, interpolated; None: ``input_fps``.
        """
        output_fps = input_fps if output_fps is None else output_fps
        for name, fps in (("input_fps", input_fps), ("output_fps", output_fps)):
            if not (np.isfinite(fps) and fps > 0.0):
                raise ConfigError(f"{name} must be finite and above 0, got {fps}")
        root, joints, _ = _robot(model)
        try:
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
        length = np.linalg.norm(quat, axis=1, keepdims=True)
        if np.abs(length - 1.0).max() > 1e-2:
            raise ConfigError(
                f"columns 4 to 7 of {path} must be unit quaternions (x, y, z, w), got lengths from "
                f"{length.min():.3g} to {length.max():.3g}"
            )
        # q and -q are the same rotation: neighbours of one sign can be interpolated.
        signs = np.where((quat[1:] * quat[:-1]).sum(1) < 0.0, -1.0, 1.0)
        quat[1:] *= np.cumprod(signs)[:, None]
        frames = np.tile(model.qpos0, (len(table), 1))
        at = int(model.jnt_qposadr[root])
        frames[:, at : at + 3], frames[:, at + 3 : at + 7] = table[:, :3], quat / length
        frames[:, model.jnt_qposadr[joints]] = table[:, 7:]
        return cls.from_qpos(model, _resampled(frames, at + 3, input_fps, output_fps), output_fps)


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
