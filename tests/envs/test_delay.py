"""Late and repeated observations, late actions, and episodes that begin at random points."""

from dataclasses import replace

import pytest
import torch
from envs.tables import act, assert_bitwise_equal, drive, go2, twins
from tensordict import TensorDict

from unilab.envs import ObservationGroupCfg, ObservationTermCfg, UniformNoiseCfg, mdp
from unilab.envs.managers.delay import DelayBuffer, Recall
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


def test_the_terminal_observation_has_the_history_of_its_own_episode(tmp_path):
    env = clocked(tmp_path, history_length=3)
    data = drive(env, 9)
    assert data["next", "obs"][0, 7, 0::2].tolist() == [6, 7, 8]
    assert data["obs"][0, 8, 0::2].tolist() == [0, 0, 0]


def test_a_group_gives_all_its_terms_one_history(tmp_path):
    env = clocked(tmp_path, group={"history_length": 2}, history_length=5)
    assert env.obs_groups_spec == {"obs": 4}
    assert env.observation_manager.term_widths == {"obs": {"clock": 4}}


def test_a_fixed_lag_shows_what_was(tmp_path):
    shown = seen(clocked(tmp_path, delay_min_lag=2, delay_max_lag=2), 6)[:, :, 0]
    assert shown[:, 0].tolist() == [0, 0, 0, 1, 2, 3]


def test_lags_are_drawn_for_each_environment_and_kept_for_its_episode(tmp_path):
    env = clocked(tmp_path, 64, delay_min_lag=1, delay_max_lag=3)
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


def test_noise_is_remembered_and_not_drawn_anew(tmp_path):
    noisy = {"noise": UniformNoiseCfg(n_min=-0.4, n_max=0.4)}
    env = clocked(tmp_path, group={"enable_corruption": True}, history_length=2, **noisy)
    shown = seen(env, 5)
    assert torch.equal(shown[1:, :, :2], shown[:-1, :, 2:])
    assert (shown != shown.round()).all()


def test_a_partial_reset_leaves_the_memory_of_the_others(tmp_path):
    env = clocked(tmp_path, history_length=3)
    root = env.reset()
    for _ in range(4):
        _, root = env.step_and_maybe_reset(act(env, root))
    mask = torch.tensor([0, 1, 0, 0]).bool()
    root = env.reset(root.set("_reset", mask.unsqueeze(1)))
    _, root = env.step_and_maybe_reset(act(env, root))
    assert root["obs"][:, 0::2].tolist() == [[3, 4, 5], [0, 0, 1], [3, 4, 5], [3, 4, 5]]


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


def test_action_lags_differ_between_environments_and_terms(tmp_path):
    actions = {
        "first": mdp.JointEffortActionCfg(actuator_names=("first.*",), delay_max_lag=3),
        "second": mdp.JointEffortActionCfg(actuator_names=("second.*",)),
    }
    env = twins(tmp_path, 64, actions=actions, terminations={})
    root, applied = env.reset(), []
    for value in range(1, 7):
        env.step(act(env, root, float(value) / 10))
        applied.append(env.backend.get_state_views()["ctrl"].clone())
    late = 6 - 10 * applied[-1]
    assert set(late[:, 0].round().tolist()) == {0.0, 1.0, 2.0, 3.0}
    torch.testing.assert_close(late[:, 1], torch.zeros(64).double(), rtol=0, atol=1e-6)


def test_the_same_seed_draws_the_same_lags():
    actions = {"joint_pos": mdp.JointPositionActionCfg(scale=0.6, delay_max_lag=2)}
    terms = {"pos": ObservationTermCfg(func=mdp.joint_pos_rel, delay_max_lag=3, history_length=2)}
    observations = {"obs": ObservationGroupCfg(terms=terms)}
    rollouts = [
        drive(go2(6, 3, actions=actions, observations=observations, episode_length_s=0.2), 15)
        for _ in range(2)
    ]
    assert_bitwise_equal(*rollouts)


def test_a_buffer_without_history_and_lag_shows_the_present():
    buffer = DelayBuffer([Recall(width=2)], 3, torch.Generator())
    value = torch.rand(3, 2)
    assert torch.equal(buffer.begin(torch.arange(3), value), value)
    assert torch.equal(buffer.push(value + 1.0), value + 1.0)


BAD_LAG = r"has delay_min_lag {} and delay_max_lag {}: expected 0 <= min <= max, in control steps"


@pytest.mark.parametrize(("low", "high"), [(2, 1), (-1, 1)])
def test_lags_of_no_sense_fail_at_construction(tmp_path, low, high):
    lags = {"delay_min_lag": low, "delay_max_lag": high}
    with pytest.raises(ConfigError, match=r"\(obs\) term 'clock' " + BAD_LAG.format(low, high)):
        clocked(tmp_path, **lags)
    with pytest.raises(ConfigError, match=r"action term 'e' " + BAD_LAG.format(low, high)):
        twins(tmp_path, actions={"e": mdp.JointEffortActionCfg(**lags)})


def test_a_negative_history_fails_at_construction(tmp_path):
    with pytest.raises(ConfigError, match=r"term 'clock' has history_length -1: give 0 or more"):
        clocked(tmp_path, history_length=-1)


# Random initial phase ----------------------------------------------------------------------------


def test_first_episodes_may_begin_at_random_points_of_their_time(tmp_path):
    env = twins(tmp_path, 64, episode_length_s=0.4, init_at_random_ep_len=True)  # 20 steps
    env.reset()
    assert set(env.episode_length.tolist()) > {0, 19}
    ends = drive_ends(env, 60)
    assert (ends[:20].sum(0) == 1).all()
    assert ends[:20].any(1).float().mean() > 0.8
    # Later episodes are whole ones.
    assert torch.equal(ends[20:40], ends[:20])
    assert torch.equal(ends[40:], ends[:20])


def drive_ends(env, steps):
    root, ends = act(env, TensorDict({}, [env.num_envs])), []
    for _ in range(steps):
        data, root = env.step_and_maybe_reset(act(env, root))
        ends.append(data["next", "truncated"][:, 0])
    return torch.stack(ends)


def test_only_the_first_reset_of_all_draws_a_phase(tmp_path):
    env = twins(tmp_path, 64, episode_length_s=0.4, init_at_random_ep_len=True)
    env.reset()
    env.reset()
    assert not env.episode_length.any()


def test_without_it_all_episodes_begin_at_their_beginning(tmp_path):
    env = twins(tmp_path)
    env.reset()
    assert not env.episode_length.any()
    assert not replace(env.cfg).init_at_random_ep_len
