"""The checker of configurations: values against annotations, `build` and `replace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from math import inf, nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from unilab.checks import (
    Bound,
    Count,
    Positive,
    build,
    check_fields,
    check_fits,
    check_range,
    replace,
    to_device,
    to_num_envs,
    to_seed,
)
from unilab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Term:
    func: Callable[..., Any] = len
    weight: float
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Guard:
    folder: str
    steps: Count = 10


@dataclass(frozen=True, kw_only=True)
class Task:
    length_s: float = 10.0
    decimation: int = 2
    mode: Literal["a", "b"] = "a"
    scale: float | tuple[float, ...] | dict[str, float] = 1.0
    span: tuple[float, float] = (0.0, 1.0)
    terms: dict[str, Term] = field(default_factory=dict)
    guard: Guard | None = None
    free: Any = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_range("span", self.span)


UP = Term(weight=1.0, params={"std": 0.5, "range": (0.0, 1.0)})
TASK = Task(terms={"up": UP}, scale={".*hip.*": 1.0})

FITS = [
    (float, [1, 0.5, -3.4e38, np.float32(1), np.int64(2)]),
    (Bound, [1, inf, -inf]),
    (Positive, [1, 1e-9, np.float64(0.5)]),
    (int, [3, np.int64(3)]),
    (Count, [1, 3]),
    (bool, [True, False]),
    (str | Path, ["a", Path("a")]),
    (float | None, [1.0, None]),
    (Literal["a", "b"] | None, ["a", None]),
    (tuple[float, float], [(1, 2.0), [1.0, 2.0], np.ones(2), torch.ones(2)]),
    (tuple[float, ...], [(), (1.0,), torch.ones(4)]),
    (Sequence[str], [("a", "b"), ["a"]]),
    (dict[str, float], [{}, {"a": 1.0}]),
    (dict[str, Any], [{"a": len}]),
    (Task, [TASK]),
    (Any, [nan, None, "x", Term(weight=nan)]),
    (Callable[..., int], [len, 3]),
]


@pytest.mark.parametrize(("hint", "values"), FITS, ids=str)
def test_value_of_the_annotated_type_passes(hint, values):
    for value in values:
        check_fits("x", value, hint)


MISFITS = [
    (float, [nan, inf, 1e39, True, "1", None, 1j, torch.tensor(1.0), [1.0]]),
    (Bound, [nan, "1", None, True]),
    (Positive, [0, -1.0, inf, nan, "1"]),
    (tuple[Positive, ...], [(0.0,), 1.0]),
    (int, [1.0, 1.5, True, "1", None, nan]),
    (Count, [0, -1, 1.0, True]),
    (bool, [1, "no", None]),
    (str | None, [1, b"a"]),
    (Literal["a", "b"], ["c", None]),
    (tuple[float, float], [1.0, (1,), (1, 2, 3), "12", (1, "2"), (nan, 1)]),
    (tuple[float, ...], ["1", ("1",), ((1.0,),), np.ones((1, 2))]),
    (Sequence[dict[str, Any]], [{}, [1]]),
    (dict[str, tuple[float, float]], [[], 1, {"a": 1}, {1: (0.0, 1.0)}]),
    (Term, [3, None, {"weight": 1.0}, Term(weight="1"), Term]),
    (dict[str, Term], [{"a": None}, {"a": Term(weight=nan)}]),
]


@pytest.mark.parametrize(("hint", "values"), MISFITS, ids=str)
def test_value_of_another_type_is_refused_by_name(hint, values):
    for value in values:
        with pytest.raises(ConfigError, match="gain"):
            check_fits("gain", value, hint)


def test_threshold_may_be_infinite():
    check_fits("limit", inf, float, infinite=True)
    with pytest.raises(ConfigError, match="limit"):
        check_fits("limit", nan, float, infinite=True)


def test_fields_at_their_default_are_not_checked():
    limited = make_dataclass("Limited", [("most", float, inf)])
    check_fields(limited())
    with pytest.raises(ConfigError, match=r"cfg\.most"):
        check_fields(limited(nan), "cfg")


def test_annotations_that_cannot_be_resolved_are_ignored():
    check_fields(make_dataclass("Foreign", [("thing", "Unknown"), ("number", float)])(3, "one"))


@pytest.mark.parametrize(
    ("hint", "value", "converted"),
    [
        (float, 1, 1.0),
        (int, 1e6, 1_000_000),
        (int | None, 2.0, 2),
        (tuple[float, float], [0, 1], (0.0, 1.0)),
        (float | tuple[float, ...], [1, 2], (1.0, 2.0)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Guard | None, {"folder": "x", "steps": 2.0}, Guard(folder="x", steps=2)),
        (dict[str, Term], {"up": {"weight": 1}}, {"up": Term(weight=1.0)}),
        (Any, [1], [1]),
    ],
)
def test_yaml_value_is_converted_to_the_annotation(hint, value, converted):
    result = build(make_dataclass("Cfg", [("x", hint)]), {"x": value}).x
    assert (result, type(result)) == (converted, type(converted))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"guard": {"steps": 1}}, r"cfg\.guard\.folder"),
        ({"guard": {"folder": "x", "steps": 0}}, r"cfg\.guard\.steps"),
        ({"terms": {"up": {"wieght": 1.0}}}, r"cfg\.terms\.up\.wieght.*weight"),
        ({"span": [1.0, 0.0]}, "cfg.*span"),
        ([], "cfg"),
    ],
)
def test_build_refuses_a_bad_value_by_its_full_key(values, message):
    with pytest.raises(ConfigError, match=message):
        build(Task, values, "cfg")


@pytest.mark.parametrize(
    "overrides",
    [
        {"terms.up.weight": 2.5, "terms.up.params.std": 1, "length_s": 3},
        {"terms": {"up": {"weight": 2.5, "params": {"std": 1}}}, "length_s": 3.0},
        {"terms.up": {"weight": 2.5}, "terms": {"up.params.std": 1}, "length_s": 3},
    ],
)
def test_overrides_are_nested_or_dotted_and_leave_the_original_alone(overrides):
    changed = replace(TASK, overrides)
    assert changed.terms["up"] == Term(weight=2.5, params={"std": 1, "range": (0.0, 1.0)})
    assert changed.length_s == 3.0
    assert TASK.terms["up"].weight == 1.0


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"span": [0, 2]}, {"span": (0.0, 2.0)}),
        ({"scale": {".*hip.*": 2}}, {"scale": {".*hip.*": 2.0}}),  # a pattern, not a dotted key
        ({"terms.up": None}, {"terms": {}}),
        ({"guard.folder": "x"}, {"guard": Guard(folder="x")}),
        ({"guard": None}, {"guard": None}),
        ({"terms.up": Term(weight=2.0)}, {"terms": {"up": Term(weight=2.0)}}),
        (
            {"terms.up.params": {"range": [0, 2], "new": 1}},
            {"terms": {"up": Term(weight=1.0, params={"std": 0.5, "range": (0, 2), "new": 1})}},
        ),
    ],
)
def test_override_takes_the_type_of_its_field(overrides, expected):
    changed = replace(TASK, overrides)
    assert {key: getattr(changed, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"length": 3.0}, "'length'.*length_s"),
        ({"terms.pu.weight": 3.0}, r"terms\.pu.*up"),
        ({"terms": {"up": {"wieght": 3.0}}}, r"terms\.up\.wieght.*weight"),
        ({"terms.new": Term(weight=1.0)}, r"terms\.new"),
        ({"terms.up": 3.0}, r"terms\.up"),
        ({"terms": 3.0}, "terms"),
        ({"decimation.more": 3}, "decimation"),
        ({"decimation": None}, "decimation"),
        ({"terms.up.weight": nan}, r"terms\.up\.weight"),
        ({"span": [1.0, 0.0]}, "span"),
        ({"guard.file": "x"}, r"guard\.file"),
    ],
)
def test_override_that_does_not_fit_is_refused_by_its_full_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        replace(TASK, overrides)


@pytest.mark.parametrize(
    ("check", "name", "good", "bad"),
    [
        (to_num_envs, "num_envs", [1, np.int64(4)], [0, -1, 2.0, True, "4"]),
        (to_seed, "seed", [None, 0, 2**32 - 1], [-1, 2**32, 1.5, "x", True]),
        (to_device, "device", ["cpu", "cuda:1", torch.device("cpu")], ["gpu", "meta", None]),
    ],
)
def test_arguments_of_an_environment_are_checked(check, name, good, bad):
    for value in good:
        assert check(value) == (torch.device(value) if name == "device" else value)
    for value in bad:
        with pytest.raises(ConfigError, match=name):
            check(value)
