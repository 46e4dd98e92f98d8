"""The library's errors: kinds, their built-in bases, and the hint with the nearest names."""

import pickle

import pytest

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
    assert set(errors.__all__) == {"UnilabError", "did_you_mean", *KINDS}


def test_the_nearest_name_is_offered():
    assert errors.did_you_mean("shoulde", ["elbow", "shoulder"]) == " (did you mean 'shoulder'?)"


def test_several_near_names_are_offered_nearest_first():
    hint = errors.did_you_mean("calf_joint", ["FL_calf_joint", "calf_joints", "hip"])
    assert hint == " (did you mean 'calf_joints' or 'FL_calf_joint'?)"


@pytest.mark.parametrize("options", [[], ["elbow", "wrist"]])
def test_nothing_is_offered_when_nothing_is_near(options):
    assert errors.did_you_mean("qqq", options) == ""
