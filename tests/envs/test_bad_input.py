"""What a task can get wrong, each with one clear error at construction.

Shapes and types of what terms return, event modes, observation groups and ranges have their tests
beside the managers; here is what they have in common.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from envs.tables import TWINS, TWINS_XML, go2, twins, twins_cfg

from unilab.envs import (
    EntityCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    MetricsTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
    reads,
)
from unilab.errors import CapabilityError, ConfigError, NonFiniteError

NAN = float("nan")


def observed(func, **kwargs):
    term = ObservationTermCfg(func=func, **kwargs)
    return {"observations": {"obs": ObservationGroupCfg(terms={"bad": term})}}


WAYS = {
    "observation (obs)": observed,
    "reward": lambda func: {"rewards": {"bad": RewardTermCfg(func=func, weight=1.0)}},
    "metrics": lambda func: {"metrics": {"bad": MetricsTermCfg(func=func)}},
    "termination": lambda func: {"terminations": {"bad": TerminationTermCfg(func=func)}},
    "recorder": lambda func: {"recorders": {"bad": RecorderTermCfg(func=func, mode="post_step")}},
}


@pytest.mark.parametrize("kind", WAYS)
def test_a_term_on_another_device_fails_at_construction(tmp_path, kind):
    shape = (4, 1) if "obs" in kind else (4,)
    dtype = torch.bool if kind == "termination" else torch.float32
    elsewhere = torch.zeros(shape, dtype=dtype, device="meta")
    with pytest.raises(ConfigError) as caught:
        twins(tmp_path, **WAYS[kind](lambda env: elsewhere))
    assert str(caught.value) == (
        f"{kind} term 'bad' returned a tensor on meta: expected cpu; make it with device=env.device"
    )


@pytest.mark.parametrize("kind", ["observation (obs)", "reward", "metrics"])
def test_a_term_that_is_not_finite_fails_at_construction(tmp_path, kind):
    value = torch.zeros((4, 1) if "obs" in kind else (4,))
    value[2] = NAN
    with pytest.raises(NonFiniteError) as caught:
        twins(tmp_path, **WAYS[kind](lambda env: value))
    assert str(caught.value) == (
        f"{kind} term 'bad' returned values that are not finite (first rows: [2])"
    )
    assert caught.value.rows == [2]


PATTERNS = {
    "joint": ({"joint_names": ("frist",)}, r"matches no joint of 'twins' \(did you mean 'first'"),
    "body": ({"body_names": ("secnd",)}, r"matches no body of 'twins' \(did you mean 'second'"),
    "geom": ({"geom_names": ("rod",)}, r"matches no geom of 'twins'; there are \['', '', ''\]"),
    "actuator": (
        {"actuator_names": ("first_moto",)},
        r"matches no actuator of 'twins' \(did you mean 'first_motor'",
    ),
    "no pattern": (
        {"joint_names": ("first(",)},
        r"pattern 'first\(' is no regular expression: missing \)",
    ),
}


@pytest.mark.parametrize("part", PATTERNS)
def test_a_pattern_that_matches_nothing_names_the_nearest(tmp_path, part):
    names, message = PATTERNS[part]
    params = {"asset_cfg": replace(TWINS, **names)}
    with pytest.raises(ConfigError, match=message):
        twins(tmp_path, **observed(mdp.joint_pos_rel, params=params))


def test_an_entity_without_joints_has_a_root_and_bodies(tmp_path):
    ball = '<body name="ball" pos="0 9 1"><freejoint/><geom size="0.1" mass="1"/></body>'
    path = tmp_path / "ball.xml"
    path.write_text(
        TWINS_XML.replace("</worldbody>", f"{ball}</worldbody>").replace(
            'qpos="0.3 0.2"', 'qpos="0.3 0.2 0 9 1 1 0 0 0"'
        )
    )
    on_ball = SceneEntityCfg("ball")
    events = {
        "thrown": EventTermCfg(
            func=mdp.reset_root_state_uniform,
            mode="reset",
            params={"pose_range": {"z": (1.0, 2.0)}, "velocity_range": {}, "asset_cfg": on_ball},
        ),
        "heavy": EventTermCfg(
            func=mdp.randomize_rigid_body_mass,
            mode="reset",
            params={
                "mass_distribution_params": (2.0, 3.0),
                "operation": "scale",
                "asset_cfg": replace(on_ball, body_names=("ball",)),
            },
        ),
    }
    scene = twins_cfg(tmp_path).scene
    entities = {**scene.entities, "ball": EntityCfg(root_body="ball")}
    env = twins(
        tmp_path,
        scene=replace(scene, model=str(path), entities=entities),
        events=events,
        **observed(root_height, params={"asset_cfg": on_ball}),
    )
    heights = env.reset()["obs"][:, 0]
    assert ((heights >= 2.0) & (heights <= 3.0)).all()
    assert (env.backend.expand("body_mass")[:, -1] >= 2.0).all()
    with pytest.raises(CapabilityError, match="entity 'ball' has no joints to read joint_pos"):
        twins(
            tmp_path,
            scene=replace(scene, model=str(path), entities=entities),
            **observed(mdp.joint_pos_rel, params={"asset_cfg": on_ball}),
        )
    with pytest.raises(ConfigError, match="pattern 'wheel' matches no joint of 'ball'"):
        twins(
            tmp_path,
            scene=replace(scene, model=str(path), entities=entities),
            **observed(root_height, params={"asset_cfg": replace(on_ball, joint_names="wheel")}),
        )


@reads("root_pos_w")
def root_height(env, asset_cfg):
    return env.scene[asset_cfg.name].data.root_pos_w[:, 2:]


def test_a_sensor_that_is_not_there_names_the_nearest(tmp_path):
    params = {"sensor_names": ("tip_po",)}
    with pytest.raises(CapabilityError, match=r"no sensor 'tip_po' \(did you mean 'tip_pos'"):
        twins(tmp_path, **observed(mdp.sensor_values, params=params))


def test_an_entity_that_is_not_there_names_the_nearest(tmp_path):
    params = {"asset_cfg": SceneEntityCfg("twin")}
    with pytest.raises(ConfigError, match=r"no entity 'twin' \(did you mean 'twins'"):
        twins(tmp_path, **observed(mdp.joint_pos_rel, params=params))


TABLES = {
    "of another manager": (
        {"terminations": {"fall": RewardTermCfg(func=mdp.action_l2, weight=1.0)}},
        r"terminations\['fall'\]",
    ),
    "the function alone": (
        {"rewards": {"effort": mdp.action_l2}},
        r"rewards\['effort'\]",
    ),
    "nothing": (
        {"events": {"push": None}},
        r"events\['push'\]",
    ),
    "a group of terms without the group": (
        {"observations": {"obs": {"pos": ObservationTermCfg(func=mdp.joint_pos_rel)}}},
        r"observations\['obs'\]",
    ),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_table_entry_of_another_kind_is_refused(tmp_path, what):
    changes, message = TABLES[what]
    with pytest.raises(ConfigError, match=message):
        twins_cfg(tmp_path, **changes)


def test_two_terms_of_one_name_are_refused(tmp_path):
    """A table cannot hold two; where tables meet, in what is logged, the name must be one's own."""
    base = go2(1).cfg
    clash = "base_velocity/error_vel_xy"
    metrics = {clash: MetricsTermCfg(func=mdp.joint_torques_l2)}
    with pytest.raises(ConfigError, match=f"two terms are logged as Metrics/{clash}: rename one"):
        ManagerBasedRlEnv(replace(base, metrics=metrics), num_envs=1)
