"""Waiting times in whole control steps."""

from itertools import pairwise

import pytest
import torch
from envs.tables import twins

from unilab.envs.managers.countdown import Countdown


def due_at(countdown, steps):
    """The steps at which each environment is due; each is restarted at once."""
    hits: dict[int, list[int]] = {}
    for step in range(1, steps + 1):
        rows = countdown.advance()
        if rows is not None:
            for row in rows.tolist():
                hits.setdefault(row, []).append(step)
            countdown.restart(rows)
    return hits


@pytest.mark.parametrize(("seconds", "steps"), [(0.02, 1), (0.06, 3), (0.07, 4), (0.14, 7)])
def test_countdown_is_due_in_the_first_step_that_reaches_it(tmp_path, seconds, steps):
    env = twins(tmp_path)
    assert env.step_dt == 0.02
    countdown = Countdown((seconds, seconds), env)
    countdown.restart(torch.arange(4))
    expected = list(range(steps, 41, steps))
    assert due_at(countdown, 40) == dict.fromkeys(range(4), expected)


def test_restart_draws_within_the_bounds(tmp_path):
    countdown = Countdown((0.05, 0.2), twins(tmp_path))
    countdown.restart(torch.arange(4))
    for steps in due_at(countdown, 400).values():
        gaps = {b - a for a, b in pairwise([0, *steps])}
        assert gaps == set(range(3, 11))


def test_a_restart_of_the_earliest_leaves_the_others_due(tmp_path):
    countdown = Countdown((0.06, 0.06), twins(tmp_path))
    countdown.restart(torch.arange(2))
    assert countdown.advance() is None
    countdown.restart(torch.tensor([0]))
    assert due_at(countdown, 3) == {1: [2], 0: [3]}


def test_nothing_is_due_before_the_first_start(tmp_path):
    countdown = Countdown((0.02, 0.02), twins(tmp_path))
    assert [countdown.advance() for _ in range(3)] == [None] * 3
