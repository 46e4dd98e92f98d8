"""The ported files run, and the tables of names agree with the code."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from docs.pages import DOCS, TINY, blocks, rows, run_python
from torchrl.envs import check_env_specs

import unilab
from unilab import registry
from unilab.envs import ManagerBasedRlEnv, mdp

pytestmark = pytest.mark.docs

PAGE = "guide/porting.md"
TEXT = (DOCS / PAGE).read_text()
WIDTHS = {"isaaclab": {"obs": 48}, "mjlab": {"obs": 48, "critic": 52}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the ported files."""
    shutil.copytree(DOCS / "guide" / "porting", tmp_path, dirs_exist_ok=True)
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


@pytest.mark.parametrize("library", WIDTHS)
def test_ported_task_runs(library: str, load) -> None:
    load(library)
    env = unilab.make(f"velocity_from_{library}", num_envs=8, seed=0)
    check_env_specs(env)
    data = env.rollout(50, break_when_any_done=False)

    assert env.obs_groups_spec == WIDTHS[library]
    nonzero = (env.reward_manager.episode_sums != 0.0).any(1).tolist()
    zero = {n for n, on in zip(env.reward_manager.term_names, nonzero, strict=True) if not on}
    assert zero <= {"dof_pos_limits"}  # 0 within the limits
    assert bool(data["next", "reward"].isfinite().all())
    env.close()


def test_ported_files_are_programs_that_train(folder: Path) -> None:
    (commands,) = blocks(PAGE, "bash")
    for line in commands.splitlines():
        settings = [*TINY, "training.collector=sync", "training.run_dir=run"]
        assert "Finished: 160 steps" in run_python(folder, *line.split()[1:], *settings)
        shutil.rmtree(folder / "run")


def test_derived_configuration_adds_replaces_and_removes_terms(load) -> None:
    names = vars(load("isaaclab"))
    before = list(names["velocity"]().rewards)
    (block,) = blocks(PAGE, "python")
    exec(compile(block, PAGE, "exec"), names)

    env = ManagerBasedRlEnv(names["cfg"], num_envs=2, seed=0)
    before.remove("flat_orientation_l2")
    assert env.reward_manager.term_names == [*before, "termination_penalty"]
    assert env.reward_manager.get_weight("dof_torques_l2") == pytest.approx(-1.0e-5)
    env.close()


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
"""The mdp names of the libraries' velocity tasks, those of their robots included."""


@pytest.mark.parametrize("library", USED)
def test_each_name_of_a_velocity_task_exists_or_is_on_the_page(library: str) -> None:
    on_page = set(re.findall(r"\w+", " ".join(cell for row in rows(PAGE) for cell in row)))
    assert [n for n in USED[library].split() if not hasattr(mdp, n) and n not in on_page] == []


def test_names_that_the_page_offers_exist_and_missing_ones_do_not() -> None:
    offered = [n for row in rows(PAGE) for n in re.findall(r"mdp\.(\w+)", row[-1])]
    assert [n for n in offered if not hasattr(mdp, n)] == []
    section = TEXT.split("### Not there")[1].split("###")[0]
    first = [line.split("|")[1] for line in section.splitlines() if "|" in line]
    missing = [n for cell in first for n in re.findall(r"mdp\.(\w+)", cell)]
    assert [n for n in missing if hasattr(mdp, n)] == []
