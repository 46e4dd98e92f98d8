"""Values that are not what a field, a parameter or an argument asks for: one error each."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from envs.tables import ON_TWINS, go2, twins, twins_cfg

from unilab.envs import (
    EventTermCfg,
    ManagerBasedRlEnv,
    NanGuardCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RecordingCfg,
    RewardTermCfg,
    SceneCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
)
from unilab.errors import ConfigError

NAN, INF = math.nan, math.inf


def observed(func, **kwargs):
    term = ObservationTermCfg(func=func, **kwargs)
    return {"observations": {"obs": ObservationGroupCfg(terms={"bad": term})}}


def reset_event(func, **params):
    return {"events": {"bad": EventTermCfg(func=func, mode="reset", params=params)}}


VALUES = {
    "weight": (
        {"rewards": {"bad": RewardTermCfg(func=mdp.action_l2, weight=NAN)}},
        r"rewards\['bad'\]\.weight",
    ),
    "weight beyond float32": (
        {"rewards": {"bad": RewardTermCfg(func=mdp.action_l2, weight=1e39)}},
        r"rewards\['bad'\]\.weight",
    ),
    "time_out": (
        {"terminations": {"bad": TerminationTermCfg(func=mdp.time_out, time_out="no")}},
        r"terminations\['bad'\]\.time_out",
    ),
    "scale": (
        observed(mdp.joint_pos_rel, scale=(1.0, INF)),
        r"observations\['obs'\]\.terms\['bad'\]\.scale",
    ),
    "scale in rows and columns": (
        observed(mdp.joint_pos_rel, scale=torch.ones(1, 2)),
        r"\.scale",
    ),
    "clip of nan": (
        observed(mdp.joint_pos_rel, clip=(NAN, 1.0)),
        r"\.clip",
    ),
    "clip of three": (
        observed(mdp.joint_pos_rel, clip=(0.0, 1.0, 2.0)),
        r"\.clip",
    ),
    "noise": (
        observed(mdp.joint_pos_rel, noise=(-0.1, 0.1)),
        r"\.noise",
    ),
    "history": (
        observed(mdp.joint_pos_rel, history_length=2.0),
        r"\.history_length",
    ),
    "delay": (
        observed(mdp.joint_pos_rel, delay_max_lag=True),
        r"\.delay_max_lag",
    ),
    "a table": ({"rewards": []}, r"rewards"),
    "no table": ({"events": None}, "events"),
    "a name": ({"events": {3: None}}, "key of events"),
    "a term of a group": (
        {"observations": {"obs": ObservationGroupCfg(terms={"bad": None})}},
        r"observations\['obs'\]\.terms\['bad'\]",
    ),
    "decimation": ({"decimation": 2.0}, "decimation"),
    "no decimation": ({"decimation": None}, "decimation"),
    "length": ({"episode_length_s": INF}, "episode_length_s"),
    "threads": ({"num_threads": 1.5}, "num_threads"),
    "recording": ({"recording": {}}, r"recording"),
    "entities": (
        {"scene": SceneCfg(model="x.xml", entities={"twins": "base"})},
        r"scene\.entities\['twins'\]",
    ),
}


@pytest.mark.parametrize("what", VALUES)
def test_a_value_that_is_not_what_its_field_says_is_refused_by_its_place(tmp_path, what):
    changes, message = VALUES[what]
    with pytest.raises(ConfigError, match=message):
        twins_cfg(tmp_path, **changes)


ALONE = {
    "event": (lambda span: EventTermCfg(func=len, mode="interval", interval_range_s=span)),
    "command": lambda span: mdp.UniformVelocityCommandCfg(resampling_time_range=span, ranges=NONE),
    "ranges": lambda span: mdp.UniformVelocityCommandCfg.Ranges(
        lin_vel_x=span, lin_vel_y=(0.0, 0.0), ang_vel_z=(0.0, 0.0)
    ),
}
NONE = ALONE["ranges"]((0.0, 0.0))


@pytest.mark.parametrize("span", [(1.0, INF), (NAN, 1.0), 1.0, (1.0, 2.0, 3.0), "12", (1.0, None)])
@pytest.mark.parametrize("config", ALONE)
def test_a_range_that_is_none_is_refused_where_it_is_written(config, span):
    with pytest.raises(ConfigError, match=rf"^{config}\.\w+"):
        ALONE[config](span)


@pytest.mark.parametrize("bounds", [(NAN, 1.0), (0.0, INF), ("0", "1"), (None, 1.0)])
def test_a_noise_of_no_finite_bounds_is_refused(bounds):
    with pytest.raises(ConfigError, match=r"^noise\.n_m"):
        UniformNoiseCfg(n_min=bounds[0], n_max=bounds[1])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            lambda: RecordingCfg(max_episodes=None),
            "recording.max_episodes",
        ),
        (lambda: NanGuardCfg(output_dir="x", buffer_size=9.5), "nan_guard.buffer_size"),
        (lambda: RecorderTermCfg(func=len, mode="pre_step", params=3), "recorder.params"),
    ],
)
def test_a_config_of_its_own_is_checked_where_it_is_written(config, message):
    with pytest.raises(ConfigError, match=message):
        config()


NO_MOVE = {"velocity_range": (0.0, 0.0), **ON_TWINS}
PARAMETERS = {
    "not finite": ({"position_range": (0.0, INF)}, r"range"),
    "no number": (
        {"position_range": (NAN, 0.1)},
        r"position_range",
    ),
    "a scalar": ({"position_range": 0.1}, "position_range"),
    "three": ({"position_range": (0, 1, 2)}, r"position_range"),
    "text": ({"position_range": "ab"}, "position_range"),
}


@pytest.mark.parametrize("what", PARAMETERS)
def test_a_range_of_an_event_that_is_none_names_the_event(tmp_path, what):
    params, message = PARAMETERS[what]
    with pytest.raises(ConfigError, match=rf"^event term 'bad': {message}"):
        twins(tmp_path, **reset_event(mdp.reset_joints_by_offset, **params, **NO_MOVE))


def test_a_spread_that_is_negative_names_the_event(tmp_path):
    params = {"damping_distribution_params": (1.0, -1.0), "distribution": "gaussian"}
    with pytest.raises(
        ConfigError, match=r"event term 'bad': mean and deviation are \(1.0, -1.0\)"
    ):
        twins(tmp_path, **reset_event(mdp.randomize_joint_parameters, **params, **ON_TWINS))


@pytest.mark.parametrize("span", [(0.0, NAN), 1.0, None])
def test_a_range_of_an_axis_that_is_none_is_refused_by_its_place(span):
    params = {"pose_range": {"x": span}, "velocity_range": {}}
    place = EventTermCfg(func=mdp.reset_root_state_uniform, mode="reset", params=params)
    with pytest.raises(ConfigError, match=r"'place': pose_range\['x'\]"):
        go2(events={"place": place})


@pytest.mark.parametrize(("argument", "value"), [("num_envs", 0), ("seed", -1), ("device", "foo")])
def test_argument_that_does_not_fit_is_refused(tmp_path, argument, value):
    with pytest.raises(ConfigError, match=argument):
        ManagerBasedRlEnv(twins_cfg(tmp_path), **{"num_envs": 1, argument: value})


def test_numbers_of_numpy_are_numbers(tmp_path):
    cfg = twins_cfg(tmp_path, decimation=np.int64(2), episode_length_s=np.float32(0.1))
    env = ManagerBasedRlEnv(cfg, num_envs=np.int64(2), seed=np.uint32(7))
    assert (env.num_envs, env.generator.initial_seed()) == (2, 7)


def test_a_seed_that_is_set_later_is_checked_like_the_first(tmp_path):
    env = twins(tmp_path)
    with pytest.raises(ConfigError, match="seed"):
        env.set_seed(-1)


@pytest.mark.parametrize("params", [{"sensor_names": ()}, {"sensor_names": []}])
def test_no_sensors_are_refused(tmp_path, params):
    with pytest.raises(ConfigError, match=r"term 'bad': sensor_names"):
        twins(tmp_path, **observed(mdp.sensor_values, params=params))


def test_a_component_that_a_sensor_lacks_is_refused(tmp_path):
    params = {"sensor_names": ("tip_pos",), "component": 3}
    with pytest.raises(ConfigError, match="component is 3, but sensor 'tip_pos' has 3 columns"):
        twins(tmp_path, **observed(mdp.sensor_values, params=params))


def test_an_observation_of_no_columns_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\(obs\) term 'bad' returned no column: expected"):
        twins(tmp_path, **observed(lambda env: torch.zeros(env.num_envs, 0)))
