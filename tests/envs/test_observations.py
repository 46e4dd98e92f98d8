"""Observation groups: what is in them, noise, clip, scale, and what is refused (0005, 0011)."""

from dataclasses import replace

import pytest
import torch
from envs.tables import ON_TWINS, act, drive, go2, twins

import unilab
from unilab.envs import (
    ObservationGroupCfg,
    ObservationTermCfg,
    SceneEntityCfg,
    UniformNoiseCfg,
    mdp,
    reads,
)
from unilab.errors import CapabilityError, ConfigError, NonFiniteError

POS = ObservationTermCfg(func=mdp.joint_pos_rel, params=ON_TWINS)


def group(**terms) -> ObservationGroupCfg:
    return ObservationGroupCfg(terms=terms)


def constant(env, value, width=1):
    return torch.full((env.num_envs, width), value)


def test_groups_are_published_and_agree_with_specs_and_tensors():
    env = go2()
    assert env.obs_groups_spec == {"obs": 45, "critic": 49}
    assert {k: s.shape[-1] for k, s in env.observation_spec.items()} == env.obs_groups_spec
    data = env.step(act(env, env.reset()))
    for key, width in env.obs_groups_spec.items():
        assert data[key].shape == data["next", key].shape == (4, width)


def test_a_task_without_critic_has_no_critic_key(tmp_path):
    env = twins(tmp_path)
    assert env.obs_groups_spec == {"obs": 4}
    assert "critic" not in env.step(act(env, env.reset())).keys(True, True)
    assert list(env.observation_spec) == ["obs"]


@pytest.mark.parametrize(
    ("name", "hint"), [("privileged", ""), ("critics", r" \(did you mean 'critic'\?\)")]
)
def test_another_group_is_refused(tmp_path, name, hint):
    groups = {"obs": group(pos=POS), name: group(pos=POS)}
    with pytest.raises(
        ConfigError,
        match=rf"group '{name}' does not exist{hint}: groups are 'obs' \(actor\) and.*'critic'",
    ):
        twins(tmp_path, observations=groups)


def test_obs_is_required(tmp_path):
    with pytest.raises(ConfigError, match=r"groups are \['critic'\]: 'obs' is required"):
        twins(tmp_path, observations={"critic": group(pos=POS)})


def test_a_group_without_terms_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="observation group 'obs' has no terms"):
        twins(tmp_path, observations={"obs": group()})


def test_terms_stand_side_by_side_in_the_order_of_the_table(tmp_path):
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


def test_sensors_are_read_current_with_the_state(tmp_path):
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


def test_noise_need_not_be_symmetric(tmp_path):
    term = ObservationTermCfg(
        func=constant, params={"value": 1.0}, noise=UniformNoiseCfg(n_min=0.5, n_max=0.75)
    )
    noisy = ObservationGroupCfg(terms={"one": term}, enable_corruption=True)
    obs = twins(tmp_path, 500, observations={"obs": noisy}).reset()["obs"]
    assert 1.5 <= obs.min() < 1.51
    assert 1.74 < obs.max() <= 1.75


def test_noise_is_added_only_where_corruption_is_enabled(tmp_path):
    term = replace(POS, noise=UniformNoiseCfg(n_min=5.0, n_max=6.0))
    env = twins(tmp_path, observations={"obs": group(pos=term)})
    assert (env.reset()["obs"].abs() < 1.0).all()


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


def test_a_clip_does_not_hide_what_is_not_finite(tmp_path):
    value = torch.ones(4, 1)
    term = ObservationTermCfg(func=lambda env: value.clone(), clip=(-2.0, 2.0))
    env = twins(tmp_path, observations={"obs": group(one=term)})
    root = env.reset()
    value[3] = torch.inf
    with pytest.raises(NonFiniteError, match=r"observation 'obs' is not finite.*one"):
        env.step(act(env, root))


def counted(env, calls):
    calls.append(1)
    return torch.ones(env.num_envs, 1)


def test_a_term_that_both_groups_hold_is_computed_once(tmp_path):
    calls: list[int] = []
    term = ObservationTermCfg(func=counted, params={"calls": calls})
    env = twins(tmp_path, observations={"obs": group(a=term), "critic": group(pos=POS, b=term)})
    root = act(env, env.reset())
    calls.clear()
    data = env.step(root)["next"]
    assert len(calls) == 1
    assert data["obs"][:, 0].tolist() == data["critic"][:, 2].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("func", "given"),
    [
        (lambda env: torch.zeros(env.num_envs), r"torch.float32 of shape \(4,\)"),
        (lambda env: torch.zeros(4, 1).double(), r"torch.float64 of shape \(4, 1\)"),
        (lambda env: torch.zeros(3, 1), r"torch.float32 of shape \(3, 1\)"),
        (lambda env: [0.0], r"\[0.0\]"),
    ],
)
def test_a_term_of_the_wrong_shape_or_type_fails_at_construction(tmp_path, func, given):
    bad = {"obs": group(bad=ObservationTermCfg(func=func))}
    with pytest.raises(ConfigError, match=rf"term 'bad' returned {given}: expected .*width\]"):
        twins(tmp_path, observations=bad)


def test_scales_must_be_as_many_as_columns(tmp_path):
    bad = {"obs": group(pos=replace(POS, scale=(1.0, 2.0, 3.0)))}
    with pytest.raises(ConfigError, match=r"\(obs\) term 'pos' has 3 scales for 2 columns"):
        twins(tmp_path, observations=bad)


@pytest.mark.parametrize("clip", [(1.0, -1.0), (torch.inf, torch.inf), (-torch.inf, -torch.inf)])
def test_a_clip_that_nothing_passes_is_refused(tmp_path, clip):
    bad = {"obs": group(pos=replace(POS, clip=clip))}
    with pytest.raises(ConfigError, match=r"term 'pos' has the clip \(.*\): expected \(low"):
        twins(tmp_path, observations=bad)


def test_a_reversed_noise_range_is_refused():
    with pytest.raises(ConfigError, match=r"of the noise"):
        UniformNoiseCfg(n_min=1.0, n_max=-1.0)


def spoilt(env, rows):
    value = torch.ones(env.num_envs, 1)
    value[rows] = torch.inf
    return value


def test_an_observation_that_is_not_finite_names_terms_and_rows(tmp_path):
    rows: list[int] = []
    bad = ObservationTermCfg(func=spoilt, params={"rows": rows})
    env = twins(tmp_path, observations={"obs": group(pos=POS, spoilt=bad)})
    root = act(env, env.reset())
    rows += [0, 2]
    with pytest.raises(NonFiniteError, match=r"observation 'obs' .*: \{'spoilt': \[0, 2\]\}"):
        env.step(root)


def undeclared(env, asset_cfg):
    return env.scene[asset_cfg.name].data.joint_torque


def test_a_read_that_nobody_declared_fails_at_construction(tmp_path):
    bad = {"obs": group(t=ObservationTermCfg(func=undeclared, params=ON_TWINS))}
    with pytest.raises(
        ConfigError,
        match=r"twins.data.joint_torque .*decorate the term with @reads\('joint_torque'\)",
    ):
        twins(tmp_path, observations=bad)


def undeclared_sensor(env):
    return env.scene.sensor("tip_pos")


def test_a_sensor_that_nobody_declared_fails_at_construction(tmp_path):
    with pytest.raises(ConfigError, match=r"sensor 'tip_pos' .*decorate the term with @reads\("):
        twins(tmp_path, observations={"obs": group(t=ObservationTermCfg(func=undeclared_sensor))})


@reads("joint_velocity")
def misspelt(env, asset_cfg):
    return torch.zeros(env.num_envs, 1)


BAD_PARAMS = {
    "unknown sensor": (
        ObservationTermCfg(func=mdp.sensor_values, params={"sensor_names": ("tip_po",)}),
        CapabilityError,
        r"no sensor 'tip_po' \(did you mean 'tip_pos'\?\); add it to the model",
    ),
    "unknown entity": (
        ObservationTermCfg(func=mdp.joint_pos_rel, params={"asset_cfg": SceneEntityCfg("twin")}),
        ConfigError,
        r"no entity 'twin' \(did you mean 'twins'\?\); it has \['twins'\]",
    ),
    "unknown joint": (
        ObservationTermCfg(
            func=mdp.joint_pos_rel,
            params={"asset_cfg": SceneEntityCfg("twins", joint_names=("frist",))},
        ),
        ConfigError,
        r"'frist' matches no joint of 'twins' \(did you mean 'first'\?\); there are \['first'",
    ),
    "unknown field": (
        ObservationTermCfg(func=misspelt, params=ON_TWINS),
        ConfigError,
        r"no field 'joint_velocity' \(did you mean",
    ),
    "no root": (
        ObservationTermCfg(func=mdp.projected_gravity, params=ON_TWINS),
        CapabilityError,
        r"entity 'twins' has no free root joint to read root_quat_w",
    ),
    "unknown parameter": (
        ObservationTermCfg(func=mdp.joint_pos_rel, params={"asset_cgf": 1}),
        ConfigError,
        r"joint_pos_rel has no parameter 'asset_cgf' \(did you mean 'asset_cfg'\?\)",
    ),
    "missing parameter": (
        ObservationTermCfg(func=mdp.generated_commands),
        ConfigError,
        r"generated_commands needs the parameter 'command_name'",
    ),
    "unknown command": (
        ObservationTermCfg(func=mdp.generated_commands, params={"command_name": "go"}),
        ConfigError,
        r"the task has no command 'go'; it has \[\]",
    ),
    "no function": (
        ObservationTermCfg(func="joint_pos"),  # type: ignore[arg-type]
        ConfigError,
        r"func is 'joint_pos', expected a function of the environment",
    ),
}


@pytest.mark.parametrize("kind", BAD_PARAMS)
def test_a_term_that_does_not_fit_the_task_fails_at_construction(tmp_path, kind):
    term, error, message = BAD_PARAMS[kind]
    with pytest.raises(error, match=message):
        twins(tmp_path, observations={"obs": group(bad=term)})


def test_however_many_terms_a_phase_is_one_packet():
    """0011-C18: every field once, whoever and however many read it."""
    env = unilab.make("go2_velocity_flat", num_envs=2, seed=0, overrides={"num_threads": 1})
    # Position 19 and velocity 18 lie side by side in memory; actuator forces 12 and the sensors of
    # the feet, 4 contacts and 4 velocities, elsewhere.
    assert env.scene.plan.packet.shape == (2, 19 + 18 + 12 + 4 + 12)
    assert len(env.scene.plan._views) == 3
