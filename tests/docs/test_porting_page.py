"""The ports of the page run, and its differences are those between the files beside it."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from docs.pages import DOCS, blocks
from torchrl.envs import check_env_specs

import unilab
from unilab import registry

FILES = DOCS / "guide" / "porting"
LIBRARIES = ("isaaclab", "mjlab")
TERMS = {
    "isaaclab": [
        "track_lin_vel_xy_exp", "track_ang_vel_z_exp", "lin_vel_z_l2", "ang_vel_xy_l2",
        "dof_torques_l2", "dof_acc_l2", "action_rate_l2", "flat_orientation_l2", "feet_air_time",
    ],
    "mjlab": [
        "track_linear_velocity", "track_angular_velocity", "upright", "dof_pos_limits",
        "action_rate_l2", "foot_slip",
    ],
}  # fmt: skip


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_difference_shown_is_that_of_the_files(library: str) -> None:
    before, after = (
        (FILES / f"{library}_{which}.py").read_text().splitlines() for which in ("before", "after")
    )
    shown = dict(zip(LIBRARIES, blocks("guide/porting.md", "diff"), strict=True))[library]
    difference = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]

    assert shown.splitlines() == difference


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_port_needs_nothing_of_the_library_that_it_comes_from(library: str) -> None:
    for which, expected in (("before", library), ("after", "unilab")):
        tree = ast.parse((FILES / f"{library}_{which}.py").read_text())
        modules = {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        others = {m for m in modules if m and m.startswith(("isaaclab", "mjlab", "unilab"))}
        assert {m.partition("_")[0] for m in others} == {expected}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The ported files, and the robot's fetched as the page says."""
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    (command,) = blocks("guide/porting.md", "bash")
    command = command.replace("$(python ", f"$({sys.executable} ")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=120)
    (sensors,) = blocks("guide/porting.md", "xml")
    assert sensors == (tmp_path / "go2_contacts.xml").read_text()
    return tmp_path


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_ported_task_runs(library: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    spec = importlib.util.spec_from_file_location(library, folder / f"{library}_after.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    env = unilab.make(f"velocity_from_{library}", num_envs=8, seed=0)
    check_env_specs(env)
    data = env.rollout(50, break_when_any_done=False)

    widths = {"isaaclab": {"obs": 48}, "mjlab": {"obs": 48, "critic": 60}}[library]
    assert env.obs_groups_spec == widths
    assert env.reward_manager.term_names == TERMS[library]
    paid = (env.reward_manager.episode_sums != 0.0).any(1)
    silent = {n for n, on in zip(TERMS[library], paid.tolist(), strict=True) if not on}
    assert silent <= {"dof_pos_limits"}  # is 0 within the limits
    assert bool(data["next", "reward"].isfinite().all())
    assert env.max_episode_length == 1000
    command = env.command_manager.get_command(next(iter(env.cfg.commands)))
    assert torch.equal(command[:, 2], command[:, 2].clamp(-1.0, 1.0))
    env.close()
