"""Reference motions: their files, and how they are made and converted."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import mujoco
import numpy as np
import pytest

from unilab import cli
from unilab.envs.motion import Motion
from unilab.errors import ConfigError
from unilab.tasks.robots import model_path
from unilab.tasks.tracking.make_g1_steps import PATH, make_motion


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(model_path("g1")))


@pytest.fixture(scope="module")
def steps() -> Motion:
    return Motion.load(PATH)


def csv_of(motion: Motion, path: Path, every: int = 1, **changes: np.ndarray) -> Path:
    """The motion as a retargeted CSV file, quaternions last number last."""
    quat = motion.body_quat_w[:, 0][:, [1, 2, 3, 0]]
    parts = {"pos": motion.body_pos_w[:, 0], "quat": quat, "joints": motion.joint_pos} | changes
    np.savetxt(path, np.concatenate(list(parts.values()), 1)[::every], delimiter=",")
    return path


def test_packaged_motion_is_the_one_that_its_script_makes(steps: Motion) -> None:
    made = make_motion()
    assert (made.fps, made.joint_names, made.body_names) == (
        50.0,
        steps.joint_names,
        steps.body_names,
    )
    for name in ("joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w"):
        np.testing.assert_allclose(getattr(made, name), getattr(steps, name), atol=1e-4)


def test_packaged_motion_keeps_its_feet_where_they_are_and_joints_in_their_limits(steps, model):
    feet = [steps.body_names.index(f"{side}_ankle_roll_link") for side in ("left", "right")]
    pos = steps.body_pos_w[:, feet]
    low, high = model.jnt_range[1:].T
    assert np.ptp(pos[..., :2], axis=0).max() < 1e-6
    assert pos[..., 2].min() > 0.034
    assert (pos[..., 2].max(0) > 0.1).all()
    assert ((low < steps.joint_pos) & (steps.joint_pos < high)).all()


def test_velocities_are_those_of_the_positions(steps: Motion) -> None:
    moved = (steps.body_pos_w[2:] - steps.body_pos_w[:-2]) * (0.5 * steps.fps)
    np.testing.assert_allclose(steps.body_lin_vel_w[1:-1], moved, atol=2e-3)
    turn, rate = np.zeros(3), np.zeros((len(steps) - 2, 3))
    elbow = steps.body_names.index("left_elbow_link")
    for t in range(1, len(steps) - 1):
        before, after = (steps.body_quat_w[i, elbow].astype(float) for i in (t - 1, t + 1))
        mujoco.mju_subQuat(turn, after, before)
        mujoco.mju_rotVecQuat(rate[t - 1], turn * 0.5 * steps.fps, before)
    np.testing.assert_allclose(steps.body_ang_vel_w[1:-1, elbow], rate, atol=2e-2)


def test_csv_becomes_the_same_motion_at_another_rate(steps, tmp_path, capsys) -> None:
    csv = csv_of(steps, tmp_path / "steps.csv", every=2)
    assert cli.main(["csv-to-npz", str(csv), "--input-fps", "25"]) == 0
    assert "471 frames, 9.40 s, 29 joints" in capsys.readouterr().out
    motion = Motion.load(tmp_path / "steps.npz")
    assert motion.fps == 50.0
    np.testing.assert_allclose(motion.body_pos_w, steps.body_pos_w, atol=3e-3)
    np.testing.assert_allclose(motion.joint_pos, steps.joint_pos, atol=6e-3)


def test_quaternions_of_either_sign_are_one_motion(steps, model, tmp_path) -> None:
    quat = steps.body_quat_w[:, 0][:, [1, 2, 3, 0]].copy()
    quat[1::2] *= -1.0
    csv = csv_of(steps, tmp_path / "m.csv", quat=quat)
    motion = Motion.from_csv(csv, model, input_fps=50.0, output_fps=100.0)
    np.testing.assert_allclose(motion.body_pos_w[::2], steps.body_pos_w, atol=1e-4)


def test_file_is_read_as_it_was_saved(steps, tmp_path) -> None:
    steps.save(tmp_path / "m.npz")
    again = Motion.load(tmp_path / "m.npz")
    assert again.body_names == steps.body_names
    assert np.array_equal(again.body_quat_w, steps.body_quat_w)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"fps": np.array(0.0)}, "fps"),
        ({"fps": np.array(np.nan)}, "fps"),
        ({"fps": np.array([50.0, 30.0])}, "fps"),
        ({"joint_pos": np.zeros((0, 29))}, "joint_pos.*frames"),
        ({"joint_vel": np.zeros((3, 29))}, "joint_vel.*shape"),
        ({"body_pos_w": None}, "'body_pos_w'"),
        ({"body_lin_vel_w": "nan"}, r"body_lin_vel_w.*finite.*\[7\]"),
        ({"body_quat_w": "scaled"}, "body_quat_w.*unit"),
        ({"joint_pos": np.array([{}], dtype=object)}, "'joint_pos'.*pickle"),
        ({"joint_names": np.arange(29)}, "joint_names.*text"),
        ({"joint_names": np.array(["hip"] * 29)}, "joint_names.*'hip'.*twice"),
        ({"body_names": np.array(["x"])[:0]}, "body_names.*none"),
        ({"body_ang_vel_w": "absurd"}, "body_ang_vel_w.*within"),
        ({"body_names": np.array(["pelvis"])}, "body_pos_w.*body_names"),
    ],
)
def test_file_with_unusable_arrays_is_refused_by_name(steps, tmp_path, changed, name) -> None:
    arrays = {key: np.asarray(value) for key, value in vars(steps).items()} | changed
    for key, value in changed.items():
        if isinstance(value, str):
            arrays[key] = getattr(steps, key) * {"scaled": 2.0, "absurd": 1e30}.get(value, 1.0)
            if value == "nan":
                arrays[key][7, 3, 1] = np.nan
    path = tmp_path / "m.npz"
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(ConfigError, match=name) as error:
        Motion.load(path)
    assert str(path) in str(error.value)


def npy(text: bytes) -> bytes:
    """A member of an archive, with this header."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("file", "content", "name"),
    [
        ("m.npz", None, "No such file"),
        ("m.npz", b"", "empty"),
        ("m.npz", b"no archive", "another kind"),
        ("m.npz", b"PK\x03\x04 broken", "damaged"),
        ("m.npz", b"0.1,0.2\n", "csv-to-npz"),
        ("m.csv", b"0.1\n", "csv-to-npz"),
        ("m.npy", npy(b"{}"), r"\.npy"),
    ],
)
def test_file_that_is_no_npz_is_refused(tmp_path, file, content, name) -> None:
    path = tmp_path / file
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{file}.*{name}") as error:
        Motion.load(path)
    assert "pickle" not in str(error.value)


@pytest.mark.parametrize(
    ("fps", "name"),
    [
        (b"raw", "damaged"),
        (
            npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000, 29), }"),
            "bytes",
        ),
        (
            npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1), }") + bytes(4),
            "damaged",
        ),
        (npy(b"{'descr': '<f4', 'fortran_order': (((("), "damaged"),
        (npy(b"(" * 5000), "damaged"),
        (None, "damaged"),
    ],
)
def test_damaged_archive_is_refused(steps, tmp_path, fps, name) -> None:
    path, held = tmp_path / "m.npz", io.BytesIO()
    steps.save(held)
    with zipfile.ZipFile(held) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for each in old.namelist():
            new.writestr(each, fps if fps and each == "fps.npy" else old.read(each))
    if fps is None:
        content = bytearray(path.read_bytes())
        content[2000:2100] = bytes(100)
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"m\.npz.*{name}"):
        Motion.load(path)


@pytest.mark.parametrize(
    ("text", "fps", "name"),
    [
        ("a,b\n1,2\n", 30.0, "header"),
        ("1,2,3\n4,5,6\n", 30.0, "36 columns"),
        ("0," * 35 + "0\n" + "0," * 35 + "0\n", 30.0, "quaternions"),
        ("0," * 35 + "nan\n" + "0," * 35 + "0\n", 30.0, "finite"),
        ("0," * 35 + "0\n", 30.0, "2 lines"),
        (None, 30.0, r"m\.csv"),
        ("", -1.0, "input_fps"),
        ("", 30.0, "2 lines"),
    ],
)
def test_unusable_csv_is_refused_by_name(model, tmp_path, text, fps, name) -> None:
    path = tmp_path / "m.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=name):
        Motion.from_csv(path, model, input_fps=fps)


@pytest.mark.parametrize("csv", [".", "nowhere.csv"])
def test_conversion_of_no_file_is_refused(capsys, csv) -> None:
    assert cli.main(["csv-to-npz", csv, "--input-fps", "30"]) == 2
    assert f"csv must be a file, got '{csv}'" in capsys.readouterr().err


@pytest.mark.parametrize(("robot", "name"), [("g2", "'g2'"), ("pendulum", "free joint")])
def test_csv_for_an_unknown_or_fixed_robot_is_refused(tmp_path, capsys, robot, name) -> None:
    (tmp_path / "m.csv").write_text("0\n0\n")
    code = cli.main(["csv-to-npz", str(tmp_path / "m.csv"), "--input-fps", "30", "--robot", robot])
    assert code == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"joints": np.rad2deg}, r"m\.csv.*'\w+_joint'.*range.*degrees"),
        ({"quat": lambda xyzw: xyzw[:, [3, 0, 1, 2]]}, "order x, y, z, w"),
        ({"pos": lambda pos: pos - [0.0, 0.0, -1.0]}, "ground.*1.00 m above"),
        ({"pos": lambda pos: pos - [0.0, 0.0, 0.5]}, "ground.*0.50 m below"),
    ],
)
def test_csv_in_other_units_or_order_is_refused(steps, model, tmp_path, change, name) -> None:
    parts = {
        "pos": steps.body_pos_w[:, 0],
        "quat": steps.body_quat_w[:, 0][:, [1, 2, 3, 0]],
        "joints": steps.joint_pos,
    }
    changed = {key: make(parts[key]) for key, make in change.items()}
    with pytest.raises(ConfigError, match=name):
        Motion.from_csv(csv_of(steps, tmp_path / "m.csv", **changed), model, input_fps=50.0)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--out", "nowhere/m.npz"], "out must be.*nowhere"),
        (["--out", "m.txt"], "out must be"),
        (["--output-fps", "1e12"], "output_fps"),
        (["--output-fps", "1"], r"output_fps.*0\.18 s"),
    ],
)
def test_unusable_option_of_the_conversion_is_refused(steps, tmp_path, capsys, options, name):
    csv = csv_of(steps, tmp_path / "m.csv", every=50)
    assert cli.main(["csv-to-npz", str(csv), "--input-fps", "50", *options]) == 2
    message = capsys.readouterr().err
    assert re.search(name, message), message
    assert not (tmp_path / "m.npz").exists()


@pytest.mark.parametrize(
    ("qpos", "fps", "name"),
    [
        (lambda home: np.tile(home[:-1], (3, 1)), 50.0, "qpos.*36"),
        (lambda home: home, 50.0, "qpos.*36"),
        (lambda home: [["a"]], 50.0, "qpos must be numbers"),
        (lambda home: np.tile(home, (3, 1)), "50", "fps"),
        (lambda home: np.zeros((3, 36)), 50.0, "columns 3 to 6 of qpos.*unit"),
        (lambda home: np.tile(home, (3, 1)) * ([1.0] * 35 + [90.0]), 50.0, "wrist.*degrees"),
    ],
)
def test_unusable_frames_of_qpos_are_refused(model, qpos, fps, name) -> None:
    home = model.key("home").qpos.copy()
    home[-1] = 1.0
    with pytest.raises(ConfigError, match=name):
        Motion.from_qpos(model, qpos(home), fps)
