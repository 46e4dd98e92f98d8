"""Observation groups: what is in them, noise, clip, scale, and what is refused (0005, 0011)."""

from dataclasses import replace

import pytest
import torch
from envs.tables import ON_TWINS, act, drive, go2, twins

import unilab
from unilab.envs import (
    GaussianNoiseCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    SceneEntityCfg,
    UniformNoiseCfg,
    mdp,
)
from unilab.errors import ConfigError, NonFiniteError

POS = ObservationTermCfg(func=mdp.joint_pos_rel, params=ON_TWINS)


def group(**terms) -> ObservationGroupCfg:
    return ObservationGroupCfg(terms=terms)


def constant(env, value, width=1):
    return torch.full((env.num_envs, width), value)


BAD_GROUPS = {
    "obs.*privileged": {"obs": group(pos=POS), "privileged": group(pos=POS)},
    "obs.*'critic'": {"critic": group(pos=POS)},
    "terms": {"obs": group()},
    "scale.*pos": {"obs": group(pos=replace(POS, scale=(1.0, 2.0, 3.0)))},
    "clip.*pos": {"obs": group(pos=replace(POS, clip=(1.0, -1.0)))},
    "clip": {"obs": group(pos=replace(POS, clip=(torch.inf, torch.inf)))},
}


@pytest.mark.parametrize("named", BAD_GROUPS)
def test_groups_that_do_not_fit_are_refused(tmp_path, named):
    """0005: obs is required, critic optional, nothing else exists."""
    with pytest.raises(ConfigError, match=named):
        twins(tmp_path, observations=BAD_GROUPS[named])


def test_observation_columns_follow_the_order_of_terms(tmp_path):
    env = twins(tmp_path, events={})
    data = drive(env, 3)["next", "obs"][:, -1]
    views = env.backend.get_state_views()
    pos = views["qpos"].float() - torch.tensor([0.3, 0.2])
    torch.testing.assert_close(data, torch.cat((pos, views["qvel"].float()), 1))
    assert env.observation_manager.term_widths == {"obs": {"pos": 2, "vel": 2}}


def test_some_joints_can_be_picked_by_pattern(tmp_path):
    second = {"asset_cfg": SceneEntityCfg("twins", joint_names=("sec.*",))}
    both = group(
        pos=ObservationTermCfg(func=mdp.joint_pos_rel, params=second),
        angle=ObservationTermCfg(func=mdp.joint_pos_sincos, params=second),
    )
    env = twins(tmp_path, observations={"obs": both})
    obs = env.reset()["obs"]
    pos = env.backend.get_state_views()["qpos"][:, 1:].float()
    torch.testing.assert_close(obs, torch.cat((pos - 0.2, pos.sin(), pos.cos()), 1))


def test_sensors_are_as_recent_as_the_state(tmp_path):
    term = ObservationTermCfg(func=mdp.sensor_values, params={"sensor_names": ("tip_pos",)})
    height = replace(term, params={"sensor_names": ("tip_pos",), "component": 2})
    env = twins(tmp_path, observations={"obs": group(pos=POS, tip=term, height=height)})
    data = drive(env, 4)["next", "obs"]
    angle = data[..., 0] + 0.3 + data[..., 1] + 0.2  # a chain: the second hangs on the first
    torch.testing.assert_close(data[..., 2], -0.4 * angle.sin(), atol=1e-5, rtol=0)
    torch.testing.assert_close(data[..., 4], -0.4 * angle.cos(), atol=1e-5, rtol=0)
    assert torch.equal(data[..., 5], data[..., 4])


def test_noise_is_in_obs_and_not_in_critic():
    env = go2(64)
    data = drive(env, 3)["next"]
    noise = data["obs"] - data["critic"][..., :45]
    spans = [0.2 * 0.25] * 3 + [0.05] * 3 + [0.0] * 3 + [0.01] * 12 + [1.5 * 0.05] * 12 + [0.0] * 12
    limit = torch.tensor(spans)
    assert (noise.abs() <= limit + 1e-5).all()
    largest = noise.abs().amax((0, 1))
    assert (largest[limit > 0] > 0.9 * limit[limit > 0]).all()
    assert torch.equal(noise[..., limit == 0], torch.zeros_like(noise[..., limit == 0]))
    assert (noise.mean((0, 1)).abs() <= 0.25 * limit).all()


def test_noise_is_added_only_where_corruption_is_enabled(tmp_path):
    term = replace(POS, noise=UniformNoiseCfg(n_min=5.0, n_max=6.0))
    env = twins(tmp_path, observations={"obs": group(pos=term)})
    assert (env.reset()["obs"].abs() < 1.0).all()


def still(env):
    """Ten zeros, so that the observation is its errors."""
    return torch.zeros(env.num_envs, 10)


ERRORS = {
    "normal": {"noise": GaussianNoiseCfg(mean=0.5, std=0.2)},
    "uniform_bias": {"bias": UniformNoiseCfg(n_min=1.0, n_max=3.0)},
    "both": {"noise": UniformNoiseCfg(n_min=-0.1, n_max=0.1), "bias": GaussianNoiseCfg(std=1.0)},
}


def test_noise_is_drawn_in_every_step_and_bias_in_every_episode(tmp_path):
    terms = {name: ObservationTermCfg(func=still, **cfg) for name, cfg in ERRORS.items()}
    groups = {
        "obs": ObservationGroupCfg(terms=terms, enable_corruption=True),
        "critic": group(**terms),
    }
    env = twins(tmp_path, num_envs=300, observations=groups, episode_length_s=0.2)
    data = drive(env, 20)["next"]  # episodes of 10 steps
    normal, biased, both = data["obs"].unflatten(1, (2, 10)).unflatten(-1, (3, 10)).unbind(-2)

    assert not data["critic"].any()
    assert normal.mean() == pytest.approx(0.5, abs=0.01)
    assert normal.std() == pytest.approx(0.2, abs=0.01)
    assert (normal[:, :, 1:] != normal[:, :, :-1]).all()
    assert (biased == biased[:, :, :1]).all()
    assert (biased[:, 0] != biased[:, 1]).all()
    assert (biased.min(), biased.max()) == pytest.approx((1.0, 3.0), abs=0.01)
    assert biased.mean() == pytest.approx(2.0, abs=0.02)
    middle = both.mean(2, keepdim=True)
    assert (both - middle).abs().max() < 0.21
    assert middle.std() == pytest.approx(1.0, abs=0.03)


def test_a_partial_reset_draws_the_bias_of_its_rows_only(tmp_path):
    term = ObservationTermCfg(func=still, bias=GaussianNoiseCfg(std=1.0))
    seen = ObservationGroupCfg(terms={"error": term}, enable_corruption=True)
    env = twins(tmp_path, observations={"obs": seen}, episode_length_s=5.0)
    before = env.reset()["obs"]
    env.reset(env_ids=torch.tensor([1, 3]))
    after = env.step(act(env, env.fake_tensordict()))["next", "obs"]
    assert (after == before).all(1).tolist() == [True, False, True, False]


@pytest.mark.parametrize("std", [-1.0, float("nan")])
def test_a_deviation_below_zero_is_refused(std):
    with pytest.raises(ConfigError, match="std"):
        GaussianNoiseCfg(std=std)


def test_noise_comes_before_the_clip_and_the_clip_before_the_scale(tmp_path):
    term = ObservationTermCfg(
        func=constant,
        params={"value": 1.0},
        noise=UniformNoiseCfg(n_min=3.0, n_max=3.0),
        clip=(-2.0, 2.0),
        scale=10.0,
    )
    noisy = ObservationGroupCfg(terms={"one": term, "pos": POS}, enable_corruption=True)
    obs = twins(tmp_path, observations={"obs": noisy}).reset()["obs"]
    assert obs[:, 0].tolist() == [20.0] * 4
    assert (obs[:, 1:].abs() < 1.0).all()


def test_clip_does_not_hide_a_nonfinite_value(tmp_path):
    value = torch.ones(4, 1)
    term = ObservationTermCfg(func=lambda env: value.clone(), clip=(-2.0, 2.0))
    env = twins(tmp_path, observations={"obs": group(one=term)})
    root = env.reset()
    value[3] = torch.inf
    with pytest.raises(NonFiniteError, match=r"'obs'.*'one'"):
        env.step(act(env, root))


def counted(env, calls):
    calls.append(1)
    return torch.ones(env.num_envs, 1)


def test_term_shared_by_both_groups_is_computed_once(tmp_path):
    calls: list[int] = []
    term = ObservationTermCfg(func=counted, params={"calls": calls})
    env = twins(tmp_path, observations={"obs": group(a=term), "critic": group(pos=POS, b=term)})
    root = act(env, env.reset())
    calls.clear()
    data = env.step(root)["next"]
    assert len(calls) == 1
    assert data["obs"][:, 0].tolist() == data["critic"][:, 2].tolist() == [1.0] * 4


def test_c18_all_terms_share_one_packet():
    """0011-C18: every field once, whoever and however many read it."""
    env = unilab.make("go2_velocity_flat", num_envs=2, seed=0, overrides={"num_threads": 1})
    # Positions and velocities lie side by side in memory; torques and the feet's sensors do not.
    assert env.scene.plan.packet.shape == (2, 19 + 18 + 12 + 4 * (1 + 3))


def test_looking_at_observations_advances_nothing(tmp_path):
    noise = UniformNoiseCfg(n_min=-1.0, n_max=1.0)
    pos = replace(POS, noise=noise, delay_max_lag=2, history_length=3)
    obs = ObservationGroupCfg(terms={"pos": pos}, enable_corruption=True)
    env, other = (twins(tmp_path, observations={"obs": obs}) for _ in range(2))
    for each in (env, other):
        root = each.reset()
        for _ in range(7):
            if each is env:
                seen = env.observation_manager.compute()["obs"]
                assert torch.equal(seen, root["obs"])
                seen.zero_()
            _, root = each.step_and_maybe_reset(act(each, root, 0.3))
    assert torch.equal(env.obs_buf["obs"], other.obs_buf["obs"])
