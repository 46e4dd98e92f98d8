"""The critic ensemble."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import flashsac as ref
from reference.tiny import ACTION, CRITIC_OBS, arrays, tiny_critic

from unilab.errors import ConfigError
from unilab.modules import FlashSACCritic


def inputs(rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.randn(rows, CRITIC_OBS, dtype=torch.float64),
        torch.rand(rows, ACTION, dtype=torch.float64) * 2 - 1,
    )


@pytest.mark.parametrize("training", [True, False])
def test_log_probabilities_values_and_statistics_match_the_reference(training):
    critic, (obs, action) = tiny_critic().double(), inputs()
    before, stats = arrays(critic), {}
    log_p = critic(obs, action, training)
    want = ref.critic_log_p(before, obs.numpy(), action.numpy(), training, stats)
    np.testing.assert_allclose(log_p.detach(), want, rtol=1e-10)
    np.testing.assert_allclose(
        critic.value(log_p).detach(), ref.value(want, before["support"]), rtol=1e-10
    )
    after = arrays(critic)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], stats.get(name, value), rtol=1e-12)


@pytest.mark.parametrize("rows", [slice(3), slice(3, None)])
def test_rows_selects_after_the_batch_statistics(rows):
    critic, other, (obs, action) = tiny_critic().double(), tiny_critic().double(), inputs()
    whole = critic(obs, action, training=True)
    part = other(obs, action, training=True, rows=rows)
    torch.testing.assert_close(part, whole[:, rows])
    for name, value in critic.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("obs_dim", 0),
        ("action_dim", -1),
        ("num_members", 0),
        ("num_bins", 1),
        ("hidden_dim", 0),
        ("num_blocks", -1),
        ("v_min", 5.0),
    ],
)
def test_a_setting_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        FlashSACCritic(**{"obs_dim": 3, "action_dim": 2, name: value})
