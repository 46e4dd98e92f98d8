"""A value fits its annotation or is refused in one sentence; what says nothing is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from envs.tables import ON_TWINS, twins

from unilab.checks import Bound, Positive, check_fields, check_fits
from unilab.envs import RewardTermCfg, TerminationTermCfg, mdp
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.nowhere import Unknown

FITS = [
    (float, [1, 0.5, -3.4e38, np.float32(1), np.int64(2)]),
    (Bound, [1, inf, -inf]),
    (Positive, [1, 1e-9, np.float64(0.5)]),
    (int, [3, np.int64(3)]),
    (bool, [True, False]),
    (str | Path, ["a", Path("a")]),
    (float | None, [1.0, None]),
    (tuple[float, float], [(1, 2.0), [1.0, 2.0], np.ones(2), torch.ones(2)]),
    (tuple[float, ...], [(), (1.0,), [1.0, 2.0, 3.0], torch.ones(4)]),
    (Sequence[str], [("a", "b"), ["a"]]),
    (dict[str, float], [{}, {"a": 1.0}]),
    (dict[str, Any], [{"a": len}]),
    (Any, [nan, None, "x"]),
    (Callable[..., int], [len, 3]),  # left to who calls it
    (Literal["a"], ["b"]),  # left to its owner, who knows the nearest
]


@pytest.mark.parametrize(("hint", "values"), FITS, ids=str)
def test_what_fits_passes(hint, values):
    for value in values:
        check_fits("x", value, hint)


MISFITS = [
    (float, [nan, inf, 1e39, True, "1", None, 1j, torch.tensor(1.0), [1.0]], "a finite number"),
    (Bound, [nan, "1", None, True], "a number"),
    (Positive, [0, 0.0, -1.0, inf, nan, "1", None], "a finite number above 0"),
    (tuple[Positive, ...], [(0.0,), 1.0], "a tuple of finite numbers above 0"),
    (int, [1.0, 1.5, True, "1", None, nan], "an integer"),
    (bool, [1, "no", None], "True or False"),
    (str | None, [1, b"a"], "a string or None"),
    (str | Path, [1, None], "a string or a path"),
    (tuple[float, float], [1.0, (1,), (1, 2, 3), "12", (1, "2"), (nan, 1)], "2 finite numbers"),
    (
        tuple[float, ...],
        [1.0, "1", ("1",), ((1.0,),), np.ones((1, 2))],
        "a tuple of finite numbers",
    ),
    (tuple[str, ...], ["a", (1,)], "a tuple of strings"),
    (tuple[tuple[float, float], tuple[float, float]], [(1, 2), 1], "2 tuples of 2 finite numbers"),
    (Sequence[dict[str, Any]], [{}, [1]], "a tuple of dicts"),
    (dict[str, tuple[float, float]], [[], 1], "a dict of tuples of 2 finite numbers by name"),
    (RewardTermCfg, [3, None], "RewardTermCfg"),
]


@pytest.mark.parametrize(("hint", "values", "expected"), MISFITS, ids=str)
def test_what_does_not_fit_is_refused(hint, values, expected):
    for value in values:
        with pytest.raises(ConfigError) as caught:
            check_fits("x", value, hint)
        assert str(caught.value) == f"x is {value!r}: expected {expected}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (len, "a builtin_function_or_method"),
        (RewardTermCfg, "the class RewardTermCfg"),
        (RewardTermCfg(func=len, weight=1.0), "a RewardTermCfg"),
        (list(range(99)), "a list"),
    ],
)
def test_what_would_not_fit_into_a_line_is_shown_by_its_type(value, shown):
    with pytest.raises(ConfigError, match=f"^x is {shown}: expected an integer$"):
        check_fits("x", value, int)


@dataclass(frozen=True, kw_only=True)
class Inner:
    gain: float
    most: float = inf


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=lambda: Inner(gain=1.0))
    table: dict[str, Inner] = field(default_factory=dict)
    free: Any = None


@dataclass(frozen=True, kw_only=True)
class Further(Inner):
    share: float = 0.5


def test_a_misfit_is_found_however_deep_and_in_a_subclass():
    with pytest.raises(ConfigError, match=r"^inner\.gain is nan: expected a finite number$"):
        check_fields(Outer(inner=Inner(gain=nan)))
    with pytest.raises(ConfigError, match=r"^cfg\.table\['b'\]\.share is '1': expected a finite"):
        check_fields(Outer(table={"a": Inner(gain=1.0), "b": Further(gain=1.0, share="1")}), "cfg")
    with pytest.raises(ConfigError, match=r"^table\['a'\] is None: expected Inner, or leave"):
        check_fields(Outer(table={"a": None}))


def test_a_field_at_its_default_is_not_looked_at():
    check_fields(Inner(gain=1.0, most=inf))
    with pytest.raises(ConfigError, match="most is inf"):
        check_fields(Inner(gain=1.0, most=float("inf")))


def test_a_field_that_says_nothing_is_left_alone():
    check_fields(Outer(free=Inner(gain=nan)))


@dataclass(frozen=True)
class Foreign:
    thing: Unknown
    number: float = 0.0


def foreign(env, thing: Unknown, number: float = 0.0):
    return torch.ones(env.num_envs)


def test_annotations_for_type_checkers_alone_are_not_in_the_way(tmp_path):
    check_fields(Foreign(thing=3, number="one"))
    params = {"thing": 3, "number": 1.0}
    twins(tmp_path, rewards={"f": RewardTermCfg(func=foreign, weight=1.0, params=params)})


def noisy(env, amount: float, quiet: bool = False):
    return torch.full((env.num_envs,), float(amount))


class Loud(mdp.joint_acc_l2):
    def __call__(self, env, amount: float, asset_cfg=mdp.joint_acc_l2.__call__.__defaults__[0]):
        return super().__call__(env, asset_cfg)


@pytest.mark.parametrize(
    ("func", "params", "message"),
    [
        (noisy, {"amount": "1"}, "amount is '1': expected a finite number"),
        (noisy, {"amount": nan}, "amount is nan: expected a finite number"),
        (noisy, {"amount": 1.0, "quiet": "no"}, "quiet is 'no': expected True or False"),
        (Loud, {"amount": None, **ON_TWINS}, "amount is None: expected a finite number"),
    ],
)
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_parameter_is_what_its_annotation_says(tmp_path, func, params, message, weight):
    bad = RewardTermCfg(func=func, weight=weight, params=params)
    with pytest.raises(ConfigError, match=f"^reward term 'bad': {message}"):
        twins(tmp_path, rewards={"bad": bad})


def test_a_threshold_may_be_infinite(tmp_path):
    never = TerminationTermCfg(func=mdp.joint_pos_out_of_limit, params={"limit": inf, **ON_TWINS})
    twins(tmp_path, terminations={"never": never})
