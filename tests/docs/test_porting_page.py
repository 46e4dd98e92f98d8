"""The ports of the page run, and its differences are those between the files beside it."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from docs.pages import DOCS, blocks, rows
from docs.test_new_task_page import TINY, run
from torchrl.envs import check_env_specs

import unilab
from unilab import registry
from unilab.envs import (
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerBasedRlEnvCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    SceneEntityCfg,
    mdp,
)

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
    command, _ = blocks("guide/porting.md", "bash")
    command = command.replace("$(python ", f"$({sys.executable} ")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=120)
    (sensors,) = blocks("guide/porting.md", "xml")
    assert sensors == (tmp_path / "go2_contacts.xml").read_text()
    return tmp_path


@pytest.fixture
def load(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Imports a ported file."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    def imported(library: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(library, folder / f"{library}_after.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return imported


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_ported_task_runs(library: str, load) -> None:
    load(library)
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


def test_each_ported_file_is_a_program_that_trains_its_task(folder: Path) -> None:
    _, commands = blocks("guide/porting.md", "bash")
    assert [line.split()[1] for line in commands.splitlines()] == [
        f"{n}_after.py" for n in LIBRARIES
    ]
    for line in commands.splitlines():
        _, *arguments = line.split()
        settings = [
            "training.collector=sync",
            "training.run_dir=run",
            "algo.algo_params.compile=false",
        ]
        assert "Finished: 160 steps" in run(folder, *arguments, *TINY, *settings)
        shutil.rmtree(folder / "run")


def test_a_derived_configuration_keeps_adds_replaces_and_takes_out_terms(load) -> None:
    names = vars(load("isaaclab"))
    (block,) = blocks("guide/porting.md", "python")
    exec(compile(block, "docs/guide/porting.md", "exec"), names)

    kept = [name for name in TERMS["isaaclab"] if name != "flat_orientation_l2"]
    env = ManagerBasedRlEnv(names["cfg"], num_envs=2, seed=0)
    assert env.reward_manager.term_names == [*kept, "termination_penalty"]
    assert env.reward_manager.get_weight("dof_torques_l2") == pytest.approx(-1.0e-5)
    env.close()


def test_a_term_of_a_task_is_replaced_as_the_page_says(load) -> None:
    names: dict = {"dataclasses": dataclasses, "cfg": load("mjlab").velocity()}
    (line,) = re.findall(r"`(cfg\.rewards.*)`", (DOCS / "guide/porting.md").read_text())
    exec(line, names)
    assert "upright" not in ManagerBasedRlEnv(names["cfg"], num_envs=2).reward_manager.term_names


USED = {
    "isaaclab": (
        "UniformVelocityCommandCfg JointPositionActionCfg base_lin_vel base_ang_vel "
        "projected_gravity generated_commands joint_pos_rel joint_vel_rel last_action height_scan "
        "randomize_rigid_body_material randomize_rigid_body_mass randomize_rigid_body_com "
        "apply_external_force_torque reset_root_state_uniform reset_joints_by_scale "
        "push_by_setting_velocity track_lin_vel_xy_exp track_ang_vel_z_exp lin_vel_z_l2 "
        "ang_vel_xy_l2 joint_torques_l2 joint_acc_l2 action_rate_l2 feet_air_time "
        "undesired_contacts flat_orientation_l2 joint_pos_limits time_out illegal_contact "
        "terrain_levels_vel is_terminated track_lin_vel_xy_yaw_frame_exp "
        "track_ang_vel_z_world_exp feet_air_time_positive_biped feet_slide joint_deviation_l1 "
        "stand_still_joint_deviation_l1"
    ),
    "mjlab": (
        "UniformVelocityCommandCfg JointPositionActionCfg builtin_sensor "
        "projected_gravity_from_sensor joint_pos_rel joint_vel_rel last_action generated_commands "
        "height_scan foot_height foot_air_time foot_contact foot_contact_forces mean_action_acc "
        "reset_root_state_uniform reset_joints_by_offset push_by_setting_velocity geom_friction "
        "encoder_bias body_com_offset site_pos site_quat track_linear_velocity "
        "track_angular_velocity upright variable_posture body_angular_velocity_penalty "
        "angular_momentum_penalty joint_pos_limits action_rate_l2 feet_air_time feet_clearance "
        "feet_swing_height feet_slip soft_landing self_collision_cost time_out bad_orientation "
        "illegal_contact out_of_terrain_bounds terrain_levels_vel commands_vel"
    ),
}
"""What the velocity tasks of the libraries name, those of their robots included."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_velocity_task_names_is_there_or_on_the_page(library: str) -> None:
    cells = " ".join(cell for row in rows("guide/porting.md") for cell in row)
    on_page = set(re.findall(r"\w+", cells))
    assert [n for n in USED[library].split() if not hasattr(mdp, n) and n not in on_page] == []


def test_what_the_page_says_of_terms_is_true_of_them() -> None:
    for row in rows("guide/porting.md"):
        ours = re.findall(r"mdp\.(\w+)", row[-1])
        assert [name for name in ours if not hasattr(mdp, name)] == []
    _, missing = (DOCS / "guide/porting.md").read_text().split("### Not there")
    first = [line.split("|")[1] for line in missing.split("###")[0].splitlines() if "|" in line]
    gone = [name for cell in first for name in re.findall(r"mdp\.(\w+)", cell)]
    assert len(gone) > 20
    assert [name for name in gone if hasattr(mdp, name)] == []


OWNERS = {
    "`SceneEntityCfg`": (SceneEntityCfg,),
    "observation groups and terms": (ObservationGroupCfg, ObservationTermCfg),
    "observation terms": (ObservationTermCfg,),
    "actions": (mdp.JointPositionActionCfg, mdp.JointEffortActionCfg),
    "events": (EventTermCfg,),
    "task": (ManagerBasedRlEnvCfg,),
}


def test_fields_that_the_page_calls_missing_are_missing() -> None:
    section = (DOCS / "guide/porting.md").read_text().split("### Fields")[1].split("###")[0]
    lines = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert {owner for _, owner, _ in lines} == set(OWNERS)
    for names, owner, _ in lines:
        there = {field.name for kind in OWNERS[owner] for field in dataclasses.fields(kind)}
        assert there.isdisjoint(re.findall(r"\w+", names))
