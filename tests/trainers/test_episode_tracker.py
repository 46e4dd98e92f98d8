"""Returns and lengths of finished episodes."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict

from unilab.trainers.runner import EpisodeTracker


def data(rewards: list[list[float]], dones: list[list[bool]]) -> TensorDict:
    reward = torch.tensor(rewards).unsqueeze(-1)
    return TensorDict(
        {"next": {"reward": reward, "done": torch.tensor(dones).unsqueeze(-1)}},
        batch_size=reward.shape[:2],
    )


def test_only_finished_episodes_are_reported():
    tracker = EpisodeTracker()
    tracker.update(data([[1.0, 2.0], [10.0, 20.0]], [[False, True], [False, False]]))
    assert tracker.drain() == (3.0, 2.0, 1)
    tracker.update(data([[5.0], [30.0]], [[False], [True]])[:, 0])  # without a time dimension
    assert tracker.drain() == (60.0, 3.0, 1)


def test_an_episode_starts_at_zero_after_the_one_before():
    tracker = EpisodeTracker()
    tracker.update(data([[1.0, 1.0, 4.0]], [[False, True, True]]))
    assert tracker.drain() == ((2.0 + 4.0) / 2, (2 + 1) / 2, 2)


def test_without_a_finished_episode_the_means_are_nan():
    tracker = EpisodeTracker()
    for _ in range(2):
        total, length, count = tracker.drain()
        assert math.isnan(total)
        assert math.isnan(length)
        assert count == 0
        tracker.update(data([[1.0]], [[False]]))
