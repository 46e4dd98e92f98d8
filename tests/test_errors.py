"""The library's errors: kinds, their built-in bases, and the hint with the nearest names."""

import pickle

import pytest
import torch

from unilab import errors

KINDS = {
    "ConfigError": ValueError,
    "CapabilityError": Exception,
    "PlacementError": Exception,
    "ActorContractError": Exception,
    "CheckpointError": Exception,
    "NonFiniteError": FloatingPointError,
    "EnvFaultedError": RuntimeError,
    "CollectorError": RuntimeError,
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_caught_as_a_unilab_error_and_as_its_built_in_kind(name):
    kind = getattr(errors, name)
    for base in (errors.UnilabError, KINDS[name]):
        with pytest.raises(base, match="what to do"):
            raise kind("what to do")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_survives_the_way_from_another_process(name):
    error = pickle.loads(pickle.dumps(getattr(errors, name)("given 1, expected 2")))
    assert type(error).__name__ == name
    assert str(error) == "given 1, expected 2"


def test_everything_public_is_listed():
    assert set(errors.__all__) == {"UnilabError", "did_you_mean", "why_unreadable", *KINDS}


def test_the_nearest_name_is_offered():
    assert errors.did_you_mean("shoulde", ["elbow", "shoulder"]) == " (did you mean 'shoulder'?)"


def test_several_near_names_are_offered_nearest_first():
    hint = errors.did_you_mean("calf_joint", ["FL_calf_joint", "calf_joints", "hip"])
    assert hint == " (did you mean 'calf_joints' or 'FL_calf_joint'?)"


@pytest.mark.parametrize("options", [[], ["elbow", "wrist"]])
def test_nothing_is_offered_when_nothing_is_near(options):
    assert errors.did_you_mean("qqq", options) == ""


def unreadable(path):
    with pytest.raises(Exception) as caught:
        torch.load(path, weights_only=True)
    return caught.value


def test_a_file_with_code_is_described_without_the_advice_to_run_it(tmp_path):
    torch.save(torch.nn.Linear(1, 1), tmp_path / "module.pt")
    assert errors.why_unreadable(unreadable(tmp_path / "module.pt")) == (
        "it holds more than tensors and plain values: "
        "Unsupported global: GLOBAL torch.nn.modules.linear.Linear"
    )


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_bare_pickle_is_described_without_the_advice_to_run_it(tmp_path):
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(print))
    described = errors.why_unreadable(unreadable(tmp_path / "bare.pt"))
    assert described.startswith("it holds more than tensors and plain values: Unsupported operand")
    assert "\n" not in described
    assert "weights_only" not in described


def test_an_unreadable_file_without_a_reason_is_described_by_the_errors_kind(tmp_path):
    (tmp_path / "empty.pt").touch()
    assert errors.why_unreadable(unreadable(tmp_path / "empty.pt")) == "EOFError"
    assert errors.why_unreadable(OSError("no space")) == "no space"
