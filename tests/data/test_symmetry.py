"""Mirrored batches: what is mirrored, what stays, and data that does not fit."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from unilab.data import SymmetryTransform, make_replay_buffer, mirrored
from unilab.errors import ConfigError

SWAP = (torch.tensor([1, 0, 2]), torch.tensor([1.0, 1.0, -1.0]))
MIRROR = {"obs": SWAP, "action": (torch.tensor([0]), torch.tensor([-1.0]))}


def transitions(n: int) -> TensorDict:
    """Left, right and lateral columns; the reward is the row's number."""
    row = torch.arange(1.0, n + 1.0).unsqueeze(1)
    obs = torch.cat((row, row + 0.5, row), 1)
    following = {"obs": obs + 1000.0, "reward": row, "terminated": row > n // 2}
    return TensorDict({"obs": obs, "action": row, "next": following}, [n])


def image(data: TensorDict) -> TensorDict:
    """What the mirror must give, written out."""
    out = data.clone()
    for key in ("obs", ("next", "obs")):
        left, right, lateral = data[key].unbind(1)
        out[key] = torch.stack((right, left, -lateral), 1)
    out["action"] = -data["action"]
    return out


def sampled(share: float | None, seed: int = 0) -> TensorDict:
    buffer = make_replay_buffer(100, batch_size=8, seed=seed)
    buffer.extend(transitions(100))
    if share is not None:
        buffer.append_transform(SymmetryTransform(MIRROR, share))
    batch = buffer.sample()
    torch.testing.assert_close(buffer.storage[:]["obs"], transitions(100)["obs"])
    return batch.select("obs", "action", "next")


@pytest.mark.parametrize(("share", "rows"), [(0.5, 4), (1.0, 8)])
def test_a_share_of_each_batch_is_mirrored_and_rewards_and_flags_stay(
    share: float, rows: int
) -> None:
    plain = sampled(None)

    expected = torch.cat((image(plain[:rows]), plain[rows:]))
    torch.testing.assert_close(sampled(share), expected, rtol=0, atol=0)


def test_augmentation_is_a_mirrored_copy() -> None:
    data = transitions(6)
    copy = mirrored(data, MIRROR)

    torch.testing.assert_close(copy, image(data), rtol=0, atol=0)
    torch.testing.assert_close(data, transitions(6), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("mirror", "share", "name"),
    [
        (None, 0.5, "mirror"),
        ({}, 0.5, "mirror"),
        (MIRROR, 0.0, "share"),
        ({**MIRROR, "critic": SWAP}, 0.5, "'critic'"),
        ({**MIRROR, "action": SWAP}, 0.5, "'action'.*3"),
    ],
)
def test_mirror_that_does_not_fit_is_refused(mirror, share: float, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        SymmetryTransform(mirror, share)(transitions(4))
