"""Errors of MujocoBackend: bad models and numbers, failing physics."""

import mujoco
import pytest
import torch

from unilab.backends import MujocoBackend
from unilab.errors import ConfigError, EnvFaultedError


@pytest.mark.parametrize(
    ("num_envs", "kwargs", "name"),
    [
        (0, {}, "num_envs"),
        (2.5, {}, "num_envs"),
        (2**31 - 1, {}, "num_envs"),
        (1, {"num_threads": 1.5}, "num_threads"),
        (1, {"keyframe": "hone"}, "'hone'.*'home'"),
    ],
)
def test_bad_argument_is_named(rig_model, num_envs, kwargs, name):
    with pytest.raises(ConfigError, match=name):
        MujocoBackend(rig_model, num_envs, **kwargs)


@pytest.mark.parametrize(
    "text", [None, "remember the milk", "<mujoco><worldbody><body><joint/></body></worldbody>"]
)
def test_model_file_that_does_not_compile_is_named(tmp_path, text):
    path = tmp_path / "bad.xml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        MujocoBackend(path, 1)


def test_failing_physics_names_rows_and_mujocos_message(backend):
    backend.expand("eq_type")[[1, 4]] = 99  # a constraint type that MuJoCo does not know
    home = backend.default_qpos.repeat(2, 1)
    for call in (
        lambda: backend.step_tensor(torch.zeros(5, 2), 2),
        lambda: backend.step_rows(torch.tensor([1, 2, 4]), 1),
        lambda: backend.set_state_tensor(torch.tensor([1, 4]), home, torch.zeros(2, 9)),
    ):
        with pytest.raises(EnvFaultedError, match=r"rows 1, 4\): .*constraint"):
            call()


def test_constants_that_mujoco_cannot_compute_name_their_rows():
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint type='slide'/><geom size='.1' mass='1'/></body>"
        "</worldbody></mujoco>"
    )
    backend = MujocoBackend(model, 3)
    backend.expand("body_mass")[0, 1] = 0.0
    with pytest.raises(EnvFaultedError, match=r"rows 0\): .*mass"):
        backend.set_const(torch.tensor([0, 1]))


def test_mujocos_warnings_go_to_the_log_and_leave_no_file(rig_model, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    backend = MujocoBackend(rig_model, 2)
    backend.get_state_views()["qvel"][1] = 1e12
    backend.step_tensor(torch.zeros(2, len(backend.actuators)), 1)
    assert "unstable" in caplog.text
    assert list(tmp_path.iterdir()) == []
