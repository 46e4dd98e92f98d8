"""The library's errors: kinds, their built-in bases, and the hint with the nearest names."""

import importlib
import pickle

import pytest
import torch
from mujoco.rendering.classic import gl_context

from unilab import errors

BUILT_IN = {"ConfigError": ValueError, "NonFiniteError": FloatingPointError}


@pytest.mark.parametrize("name", [name for name in vars(errors) if name.endswith("Error")])
def test_error_has_its_bases_and_survives_pickling(name):
    error = pickle.loads(pickle.dumps(getattr(errors, name)("given 1, expected 2")))
    assert type(error) is getattr(errors, name)
    assert isinstance(error, errors.UnilabError)
    assert isinstance(error, BUILT_IN.get(name, Exception))
    assert str(error) == "given 1, expected 2"


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("shoulde", ["elbow", "shoulder"], " (did you mean 'shoulder'?)"),
        (
            "calf_joint",
            ["FL_calf_joint", "calf_joints", "hip"],
            " (did you mean 'calf_joints' or 'FL_calf_joint'?)",
        ),
        (
            "Go2",
            ["gym/Ant-v5", "go2_velocity_flat", "go2_velocity_rough"],
            " (did you mean 'go2_velocity_flat' or 'go2_velocity_rough'?)",
        ),
        ("qqq", ["elbow", "wrist"], ""),
        ("", ["elbow", "wrist"], ""),
    ],
)
def test_nearest_names_are_suggested(name, options, hint):
    assert errors.did_you_mean(name, options) == hint


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_file_with_code_is_described_without_the_advice_to_run_it(tmp_path):
    torch.save(torch.nn.Linear(1, 1), tmp_path / "module.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(print))
    for name, refused in (("module.pt", "Linear"), ("bare.pt", "operand")):
        with pytest.raises(Exception, match="weights_only") as caught:
            torch.load(tmp_path / name, weights_only=True)
        described = errors.why_unreadable(caught.value)
        assert refused in described
        assert "\n" not in described
        assert "weights_only" not in described
    assert errors.why_unreadable(EOFError()) == "EOFError"


def test_opengl_library_that_mujoco_cannot_load_is_named(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "mesa")
    with pytest.raises(errors.CapabilityError, match=r"MUJOCO_GL.*'mesa'"), errors.mujoco_imports():
        importlib.reload(gl_context)
    with pytest.raises(RuntimeError, match="other"), errors.mujoco_imports():
        raise RuntimeError("other")
