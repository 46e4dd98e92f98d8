"""What MujocoBackend says about a model or number that does not fit, and about failing physics."""

import pytest
import torch

from unilab.backends import MujocoBackend
from unilab.errors import CapabilityError, ConfigError, EnvFaultedError


@pytest.mark.parametrize("num_envs", [0, -3])
def test_fewer_than_one_environment_is_refused(rig_model, num_envs):
    with pytest.raises(ConfigError, match=rf"num_envs is {num_envs}: give at least 1"):
        MujocoBackend(rig_model, num_envs)


def test_more_environments_than_there_is_memory_for_are_one_clear_error(rig_model):
    with pytest.raises(ConfigError, match=r"no 2147483647 environments of this model .*: lower"):
        MujocoBackend(rig_model, 2**31 - 1)


def test_a_negative_number_of_threads_is_refused(rig_model):
    with pytest.raises(ConfigError, match=r"num_threads is -1: give 0 \(all cores\) or more"):
        MujocoBackend(rig_model, 1, num_threads=-1)


def test_a_missing_model_file_is_named(tmp_path):
    path = tmp_path / "nowhere.xml"
    with pytest.raises(ConfigError, match=rf"no model file at {path}: give the path"):
        MujocoBackend(path, 1)


def test_a_model_that_does_not_compile_is_named_with_mujocos_reason(tmp_path):
    path = tmp_path / "bad.xml"
    path.write_text("<mujoco><worldbody><body><joint/></body></worldbody></mujoco>")
    with pytest.raises(ConfigError, match=rf"MuJoCo cannot compile {path}: .*mass and inertia"):
        MujocoBackend(path, 1)


def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "notes.xml"
    path.write_text("remember the milk")
    with pytest.raises(ConfigError, match=rf"MuJoCo cannot compile {path}"):
        MujocoBackend(path, 1)


def test_a_keyframe_that_does_not_exist_names_the_nearest_and_all(rig_model):
    with pytest.raises(ConfigError, match=r"no keyframe 'hone' \(did you mean 'home'\?\)"):
        MujocoBackend(rig_model, 1, keyframe="hone")


def test_a_sensor_that_does_not_exist_names_the_nearest(backend):
    with pytest.raises(CapabilityError, match=r"no sensor 'tip_position'.*did you mean 'tip_pos'"):
        backend.get_sensor_view("tip_position")


def test_failing_physics_names_rows_and_mujocos_message(backend):
    backend.expand("eq_type")[[1, 4]] = 99  # a constraint type that MuJoCo does not know
    with pytest.raises(
        EnvFaultedError, match=r"raised in 2 of 5 environments \(rows 1, 4\): .*constraint"
    ):
        backend.step_tensor(torch.zeros(5, 2), 2)


def test_failing_physics_names_no_more_rows_than_can_be_read(rig_model):
    backend = MujocoBackend(rig_model, 20, keyframe="home")
    backend.expand("eq_type")[:] = 99
    with pytest.raises(EnvFaultedError, match=r"20 of 20 environments \(rows 0, .*, 7, \.\.\.\)"):
        backend.step_tensor(torch.zeros(20, 2), 2)


def test_physics_that_fails_while_a_state_is_written_names_its_rows(backend):
    backend.expand("eq_type")[2] = 99
    home = backend.default_qpos.repeat(2, 1)
    with pytest.raises(EnvFaultedError, match=r"raised in 1 of 5 environments \(rows 2\)"):
        backend.set_state_tensor(torch.tensor([1, 2]), home, torch.zeros(2, 9))


def test_physics_that_fails_in_a_step_of_some_rows_names_them(backend):
    backend.expand("eq_type")[2] = 99
    with pytest.raises(EnvFaultedError, match=r"raised in 1 of 5 environments \(rows 2\)"):
        backend.step_rows(torch.tensor([1, 2]), 1)


def test_a_diverged_environment_stays_visible(backend):
    """MuJoCo would put it back to the model's default pose in silence."""
    views = backend.get_state_views()
    views["qpos"][3, 0] = torch.nan
    backend.step_tensor(torch.zeros(5, 2), 4)
    finite = views["qpos"].isfinite().all(1)
    assert finite.tolist() == [True, True, True, False, True]


def test_mujocos_warnings_go_to_the_log_and_leave_no_file(rig_model, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    backend = MujocoBackend(rig_model, 2)
    backend.get_state_views()["qvel"][1] = 1e12
    backend.step_tensor(torch.zeros(2, len(backend.actuators)), 1)
    assert "unstable" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_field_that_mjdata_lacks_is_refused(rig_model):
    with pytest.raises(
        ConfigError, match=r"mjData has no field 'xposs' to publish \(did you mean 'xpos'"
    ):
        MujocoBackend(rig_model, 1, fields=("xposs",))
