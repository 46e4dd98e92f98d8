"""Delays and histories of observations and actions; random first episode lengths."""

import pytest
import torch
from envs.tables import act, drive, twins

from unilab.envs import ObservationGroupCfg, ObservationTermCfg, UniformNoiseCfg, mdp
from unilab.errors import ConfigError


def clock(env):
    """Steps of the episode, and the row's number."""
    rows = torch.arange(env.num_envs, dtype=torch.float32)
    return torch.stack((env.episode_length.float(), rows), dim=1)


def clocked(folder, num_envs=4, group=None, **term):
    cfg = ObservationGroupCfg(
        terms={"clock": ObservationTermCfg(func=clock, **term)}, **(group or {})
    )
    return twins(folder, num_envs, observations={"obs": cfg}, episode_length_s=0.16)  # 8 steps


def seen(env, steps, key="obs"):
    """The clock as shown at each step, first of each episode included, ``[steps, n, width]``."""
    root, shown = env.reset(), []
    for _ in range(steps):
        shown.append(root[key].clone())
        _, root = env.step_and_maybe_reset(act(env, root))
    return torch.stack(shown)


def test_history_shows_the_last_values_oldest_first(tmp_path):
    env = clocked(tmp_path, history_length=3)
    assert env.obs_groups_spec == {"obs": 6}
    shown = seen(env, 10)[:, 1]
    assert shown[:, 1::2].unique().tolist() == [1.0]  # the row's own values
    times = shown[:, 0::2].tolist()
    assert times[:4] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    # The ninth is the first of the next episode: nothing of the last one is in it.
    assert times[7:] == [[5, 6, 7], [0, 0, 0], [0, 0, 1]]


def test_lags_differ_between_environments_and_stay_for_the_episode(tmp_path):
    env = clocked(tmp_path, 64, delay_min_lag=1, delay_max_lag=3, delay_update_period=None)
    shown = seen(env, 16)[:, :, 0]
    lags = []
    for first in (0, 8):
        late = torch.arange(8).unsqueeze(1) - shown[first : first + 8]
        assert (late[3:] == late[3]).all()
        lags.append(late[3])
        assert set(late[3].tolist()) == {1.0, 2.0, 3.0}
    assert not torch.equal(*lags)


def test_history_and_lag_work_together_term_by_term(tmp_path):
    terms = {
        "late": ObservationTermCfg(
            func=clock, delay_min_lag=2, delay_max_lag=2, history_length=2, scale=10.0
        ),
        "now": ObservationTermCfg(func=clock),
    }
    env = twins(tmp_path, observations={"obs": ObservationGroupCfg(terms=terms)}, terminations={})
    shown = seen(env, 6)[5, 2]
    assert shown.tolist() == [20, 20, 30, 20, 5, 2]


def test_a_history_keeps_the_noise_of_its_frames(tmp_path):
    noisy = {"noise": UniformNoiseCfg(n_min=-0.4, n_max=0.4)}
    env = clocked(tmp_path, group={"enable_corruption": True}, history_length=2, **noisy)
    shown = seen(env, 5)
    assert torch.equal(shown[1:, :, :2], shown[:-1, :, 2:])
    assert (shown != shown.round()).all()


def test_a_late_action_takes_effect_when_its_lag_is_over(tmp_path):
    late = mdp.JointEffortActionCfg(delay_min_lag=2, delay_max_lag=2)
    env = twins(tmp_path, actions={"effort": late}, terminations={})
    root, applied = env.reset(), []
    for value in (0.1, 0.2, 0.3, 0.4):
        env.step(act(env, root, value))
        applied.append(float(env.backend.get_state_views()["ctrl"][0, 0]))
        assert env.action_manager.action[0, 0] == pytest.approx(value)
    assert applied == pytest.approx([0.0, 0.0, 0.1, 0.2])
    env.reset()
    env.step(act(env, root, 0.5))
    assert not env.backend.get_state_views()["ctrl"].any()


def lags(folder, steps=40, num_envs=64, **term):
    """The lag of the clock at each step, ``[steps, num_envs]``, in one long episode."""
    group = ObservationGroupCfg(terms={"clock": ObservationTermCfg(func=clock, **term)})
    env = twins(folder, num_envs, observations={"obs": group}, terminations={})
    shown = seen(env, steps + 3)[3:, :, 0]
    return torch.arange(3, steps + 3).unsqueeze(1) - shown


def test_lags_are_redrawn_after_the_period_at_random_phases(tmp_path):
    late = lags(tmp_path, delay_max_lag=3, delay_update_period=4)
    assert set(late.unique().tolist()) == {0.0, 1.0, 2.0, 3.0}
    changed, phases = late[1:] != late[:-1], set()
    assert 0.7 < 4 * changed.float().mean() < 0.8  # of four values one is the same again
    for row in changed.T:
        steps = row.nonzero().flatten()
        assert len((steps % 4).unique()) == 1
        phases.add(int(steps[0] % 4))
    assert phases == {0, 1, 2, 3}


def test_lags_are_redrawn_in_every_step_by_default(tmp_path):
    late = lags(tmp_path, delay_max_lag=3)
    changed = (late[1:] != late[:-1]).float().mean()
    assert 0.7 < changed < 0.8  # a draw gives the same lag again once in four times


@pytest.mark.parametrize(("hold", "low", "high"), [(0.6, 0.25, 0.35), (1.0, 0.0, 0.0)])
def test_hold_probability_keeps_the_lag(tmp_path, hold, low, high):
    late = lags(tmp_path, delay_max_lag=3, delay_update_period=1, delay_hold_prob=hold)
    assert low <= (late[1:] != late[:-1]).float().mean() <= high
    assert len(late[0].unique()) == 4


def test_a_history_repeats_what_was_shown(tmp_path):
    """Each frame with the lag of its own step."""
    term = ObservationTermCfg(func=clock, delay_max_lag=3, history_length=3)
    group = ObservationGroupCfg(terms={"clock": term})
    shown = seen(twins(tmp_path, 16, observations={"obs": group}, terminations={}), 20)
    assert torch.equal(shown[1:, :, :4], shown[:-1, :, 2:])
    assert (shown[1:, :, 4] < shown[:-1, :, 4]).any()  # an older value after a newer one


@pytest.mark.parametrize(
    ("term", "name"),
    [
        ({"delay_min_lag": 3}, "delay_min_lag"),
        ({"delay_min_lag": -1}, "delay_min_lag"),
        ({"delay_update_period": -1}, "delay_update_period"),
        ({"delay_update_period": 2, "delay_hold_prob": 1.5}, "delay_hold_prob"),
        ({"delay_hold_prob": 0.5, "delay_update_period": None}, "delay_hold_prob"),
    ],
)
def test_bad_delay_is_refused_at_construction(tmp_path, term, name):
    with pytest.raises(ConfigError, match=rf"'clock'.*{name}"):
        clocked(tmp_path, delay_max_lag=2, **term)
    with pytest.raises(ConfigError, match=rf"'e'.*{name}"):
        twins(tmp_path, actions={"e": mdp.JointEffortActionCfg(delay_max_lag=2, **term)})


def test_first_episodes_begin_at_random_lengths(tmp_path):
    env = twins(tmp_path, 64, episode_length_s=0.4, init_at_random_ep_len=True)  # 20 steps
    ends = drive(env, 60)["next", "truncated"][..., 0].T
    assert (ends[:20].sum(0) == 1).all()
    assert ends[:20].any(1).float().mean() > 0.8
    # Later episodes are whole ones.
    assert torch.equal(ends[20:40], ends[:20])
    assert torch.equal(ends[40:], ends[:20])
