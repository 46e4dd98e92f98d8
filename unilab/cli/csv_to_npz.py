"""``unilab csv-to-npz``: a retargeted motion as a reference motion for tracking."""

from __future__ import annotations

from pathlib import Path

import mujoco

from unilab.envs.motion import Motion
from unilab.errors import ConfigError, first_line
from unilab.tasks.robots import model_path


def csv_to_npz(
    csv: str | Path,
    *,
    input_fps: float,
    output_fps: float = 50.0,
    robot: str = "g1",
    out: str | Path | None = None,
) -> Path:
    """Convert a motion, and print its file.

    Args:
        csv: see :meth:`~unilab.envs.motion.Motion.from_csv`.
        output_fps: frames a second of the result: the task's control steps a second.
        robot: a packaged robot, or an MJCF file.
        out: the ``.npz`` file; None: ``csv`` with another ending.
    """
    csv = Path(csv).expanduser()
    if csv.is_dir() or not csv.exists():
        raise ConfigError(f"csv must be a file, got {str(csv)!r}")
    path = csv.with_suffix(".npz") if out is None else Path(out).expanduser()
    if path.suffix != ".npz" or path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"out must be an .npz file in a folder that exists, got {path}")
    packaged = model_path(robot)
    try:
        model = mujoco.MjModel.from_xml_path(str(packaged if packaged.exists() else robot))
    except ValueError as error:
        raise ConfigError(
            f"robot must be a packaged robot or an MJCF file, got {robot!r}: {first_line(error)}"
        ) from error
    motion = Motion.from_csv(csv, model, input_fps=input_fps, output_fps=output_fps)
    motion.save(path)
    seconds = (len(motion) - 1) / motion.fps
    print(f"{path}: {len(motion)} frames, {seconds:.2f} s, {len(motion.joint_names)} joints")
    return path
