"""The metric schema is closed."""

from __future__ import annotations

import pytest

from unilab.errors import ConfigError
from unilab.record.schema import FAMILIES, METRICS, metric


def test_a_known_tag_has_unit_aggregation_and_owner():
    entry = metric("Perf/steps_per_second")
    assert (entry.unit, entry.aggregation, entry.owner) == (
        "frame/s",
        "rate",
        "unilab.trainers.runner",
    )


@pytest.mark.parametrize(
    ("tag", "family"),
    [
        ("Episode_Reward/track_lin_vel", "Episode_Reward/"),
        ("Eval/Episode_Reward/track_lin_vel", "Eval/Episode_Reward/"),
        ("Episode_Termination/fell", "Episode_Termination/"),
        ("Eval/Episode_Termination/fell", "Eval/Episode_Termination/"),
        ("Loss/aux_decoder", "Loss/aux_"),
        ("Metrics/slip", "Metrics/"),
    ],
)
def test_terms_belong_to_an_open_family(tag, family):
    assert metric(tag).tag == family


def test_an_unknown_tag_names_the_nearest_and_the_way_out():
    with pytest.raises(ConfigError, match=r"'Loss/actr' is not in .*'Loss/actor'.*record.schema"):
        metric("Loss/actr")


@pytest.mark.parametrize("prefix", sorted(FAMILIES))
def test_a_family_needs_a_name_in_it(prefix):
    with pytest.raises(ConfigError, match="is not in the schema"):
        metric(prefix)


def test_no_tag_is_known_twice():
    assert not [tag for tag in METRICS for prefix in FAMILIES if tag.startswith(prefix)]
