"""Terms of every kind: parameters, outputs, reads and state, checked at construction."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from envs.tables import ON_TWINS, TWINS, CommandOf, act, drive, go2, twins, twins_cfg

from unilab.envs import (
    CurriculumTermCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerTermBase,
    MetricsTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    UniformNoiseCfg,
    mdp,
    reads,
)
from unilab.errors import CapabilityError, ConfigError, EnvFaultedError, NonFiniteError
from unilab.tasks.velocity.go2 import go2_velocity_flat

NAN, INF = math.nan, math.inf


def observed(func, **cfg):
    term = ObservationTermCfg(func=func, **cfg)
    return {"observations": {"obs": ObservationGroupCfg(terms={"bad": term})}}


def event(mode, func, **params):
    every = (0.02, 0.02) if mode == "interval" else None
    term = EventTermCfg(func=func, mode=mode, interval_range_s=every, params=params)
    return {"events": {"bad": term}}


KINDS = {
    "observation": observed,
    "reward": lambda func: {"rewards": {"bad": RewardTermCfg(func=func, weight=1.0)}},
    "metrics": lambda func: {"metrics": {"bad": MetricsTermCfg(func=func)}},
    "termination": lambda func: {"terminations": {"bad": TerminationTermCfg(func=func)}},
    "recorder": lambda func: {"recorders": {"bad": RecorderTermCfg(func=func, mode="post_step")}},
    "command": lambda func: {"commands": {"bad": CommandOf(func=func)}},
    "command metric": lambda func: {"commands": {"bad": CommandOf(measured={"bad": func})}},
    "curriculum": lambda func: {"curriculum": {"bad": CurriculumTermCfg(func=func)}},
    "startup event": lambda func: event("startup", func),
    "reset event": lambda func: event("reset", func),
    "interval event": lambda func: event("interval", func),
}


@pytest.mark.parametrize("kind", KINDS)
def test_config_error_in_a_term_names_the_term(tmp_path, kind):
    def term(env, env_ids=None):
        env.scene["twin"]

    with pytest.raises(ConfigError, match=r"'bad'.*'twin'.*'twins'"):
        twins(tmp_path, **KINDS[kind](term))


@pytest.mark.parametrize("kind", KINDS)
def test_other_error_in_a_term_keeps_its_type_and_is_noted(tmp_path, kind):
    def term(env, env_ids=None):
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        twins(tmp_path, **KINDS[kind](term))
    assert "'bad'" in caught.value.__notes__[0]


SCALARS = ("reward", "metrics", "command metric")
COLUMNS = ("observation", "command")
WRONG = {
    "dtype": lambda shape: torch.zeros(shape).double(),
    "rows": lambda shape: torch.zeros(3, *shape[1:]),
    "dimensions": lambda shape: torch.zeros(*shape, 1, 1),
    "device": lambda shape: torch.zeros(shape, device="meta"),
    "type": lambda shape: 1.0,
}


@pytest.mark.parametrize("kind", [*SCALARS, *COLUMNS, "termination", "recorder"])
@pytest.mark.parametrize("what", WRONG)
def test_c23_wrong_output_of_a_term_is_refused(tmp_path, kind, what):
    """0011-C23."""
    if kind == "recorder" and what in ("dtype", "dimensions"):
        return  # takes any
    value = WRONG[what]((4, 1) if kind in COLUMNS else (4,))
    if kind == "termination" and what != "dtype" and isinstance(value, torch.Tensor):
        value = value.bool()
    with pytest.raises(ConfigError, match="bad"):
        twins(tmp_path, **KINDS[kind](lambda env: value))


@pytest.mark.parametrize("kind", [*SCALARS, *COLUMNS])
def test_nonfinite_output_of_a_term_names_term_and_rows(tmp_path, kind):
    value = torch.zeros((4, 1) if kind in COLUMNS else (4,))
    value[2] = NAN
    with pytest.raises(NonFiniteError, match="bad") as caught:
        twins(tmp_path, **KINDS[kind](lambda env: value))
    assert caught.value.rows == [2]


@pytest.mark.parametrize("kind", [*SCALARS, "observation"])
def test_nonfinite_value_in_a_step_names_term_and_rows(tmp_path, kind):
    rows: list[int] = []

    def term(env):
        value = torch.zeros((4, 1) if kind in COLUMNS else (4,))
        value[rows] = NAN
        return value

    env = twins(tmp_path, **KINDS[kind](term))
    root = act(env, env.reset())
    rows += [1, 3]
    with pytest.raises(NonFiniteError, match=r"bad'.*\[1, 3\]"):
        env.step(root)


def test_observation_without_columns_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="bad"):
        twins(tmp_path, **observed(lambda env: torch.zeros(env.num_envs, 0)))


def constant(env, value: float):
    return torch.full((env.num_envs, 1), value)


class NoTerm:
    """A class that is not a ManagerTermBase."""


def on(**names):
    return {"asset_cfg": replace(TWINS, **names)}


BAD_TERMS = {
    "unknown parameter": (mdp.joint_pos_rel, {"asset_cgf": TWINS}, "asset_cgf.*asset_cfg"),
    "missing parameter": (mdp.generated_commands, {}, "command_name"),
    "parameter of another type": (constant, {"value": "much"}, "value.*much"),
    "no function": ("joint_pos", {}, "joint_pos"),
    "another class": (NoTerm, {}, "NoTerm"),
    "unknown entity": (mdp.joint_pos_rel, {"asset_cfg": SceneEntityCfg("twin")}, "twin.*twins"),
    "unknown joint": (mdp.joint_pos_rel, on(joint_names=("frist",)), "frist.*first"),
    "unknown body": (mdp.joint_pos_rel, on(body_names=("secnd",)), "secnd.*second"),
    "unknown geom": (mdp.joint_pos_rel, on(geom_names=("rod",)), "rod"),
    "unknown actuator": (mdp.joint_pos_rel, on(actuator_names="first_moto"), "first_motor"),
    "not a pattern": (mdp.joint_pos_rel, on(joint_names=("first(",)), "first"),
    "no pattern": (mdp.joint_pos_rel, on(joint_names=()), "joint"),
    "unknown command": (mdp.generated_commands, {"command_name": "go"}, "go"),
    "unknown sensor": (mdp.sensor_values, {"sensor_names": ("tip_po",)}, "tip_po.*tip_pos"),
    "component": (mdp.sensor_values, {"sensor_names": ("tip_pos",), "component": 3}, "component"),
    "joint of another entity": (mdp.joint_pos_rel, on(joint_ids=[2]), "joint_ids.*2"),
    "the world": (mdp.joint_pos_rel, on(body_ids=[0]), "body_ids.*0"),
    "negative geom": (mdp.joint_pos_rel, on(geom_ids=[-1]), "geom_ids.*-1"),
    "no such actuator": (mdp.joint_pos_rel, on(actuator_ids=slice(5, 6)), "actuator_ids.*5"),
    "ids against names": (
        mdp.joint_pos_rel,
        on(joint_names=("first",), joint_ids=[1]),
        r"joint_ids.*\[0\].*\[1\]",
    ),
    "no root": (mdp.projected_gravity, ON_TWINS, "twins.*root_quat_w"),
}


@pytest.mark.parametrize("what", BAD_TERMS)
def test_term_that_does_not_fit_is_refused(tmp_path, what):
    func, params, named = BAD_TERMS[what]
    with pytest.raises((ConfigError, CapabilityError), match=f"'bad'.*{named}"):
        twins(tmp_path, **observed(func, params=params))


@pytest.mark.parametrize("ids", [[3.0], None, "base", [False, False, False, True], 1.0])
def test_ids_that_are_not_integers_are_refused(tmp_path, ids):
    cfg = SceneEntityCfg("twins", body_ids=ids)
    with pytest.raises(ConfigError, match=r"'bad'.*body_ids.*distinct ids"):
        twins(tmp_path, **observed(mdp.joint_pos_rel, params={"asset_cfg": cfg}))


@pytest.mark.parametrize("ids", [[1], torch.tensor([1]), slice(1, None), (1,)])
def test_ids_select_as_names_do(tmp_path, ids):
    given = SceneEntityCfg("twins", joint_ids=ids, body_ids=[3])
    named = SceneEntityCfg("twins", joint_names=("second",), body_names=("second",))
    terms = {
        name: ObservationTermCfg(func=mdp.joint_pos_rel, params={"asset_cfg": cfg})
        for name, cfg in (("given", given), ("named", named))
    }
    env = twins(tmp_path, observations={"obs": ObservationGroupCfg(terms=terms)})
    given, named = (env.observation_manager.get_term("obs", n).params["asset_cfg"] for n in terms)
    for part in ("joint_ids", "body_ids", "geom_ids", "actuator_ids"):
        assert torch.equal(getattr(given, part), getattr(named, part)), part
    data = drive(env, 3)["obs"]
    assert torch.equal(data[..., 0], data[..., 1])


def test_entities_within_a_parameter_are_resolved(tmp_path):
    def first_of(env, cfgs):
        entity = cfgs["of"][0]
        return entity.joints_of(env.scene[entity.name].data.joint_pos)

    entity = SceneEntityCfg("twins", joint_names=("first",))
    env = twins(tmp_path, **observed(first_of, params={"cfgs": {"of": (entity,)}}))
    assert env.obs_groups_spec == {"obs": 1}


BAD_TABLES = {
    "weight": {"rewards": {"bad": RewardTermCfg(func=mdp.action_l2, weight=NAN)}},
    "scale": observed(mdp.joint_pos_rel, scale=(1.0, INF)),
    "clip": observed(mdp.joint_pos_rel, clip=(NAN, 1.0)),
    "terminations": {"terminations": {"bad": RewardTermCfg(func=mdp.action_l2, weight=1.0)}},
    "events": {"events": {"bad": None}},
    "decimation": {"decimation": 0},
    "episode_length_s": {"episode_length_s": 0.0},
    "entities": {"scene": SceneCfg(model="x.xml", entities={"twins": "base"})},
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_value_of_a_task_that_does_not_fit_is_refused_by_name(tmp_path, name):
    with pytest.raises(ConfigError, match=name):
        twins_cfg(tmp_path, **BAD_TABLES[name])


def velocity(**changes):
    ranges = mdp.UniformVelocityCommandCfg.Ranges(
        lin_vel_x=(0.0, 1.0), lin_vel_y=(0.0, 1.0), **{"ang_vel_z": (0.0, 1.0), **changes}
    )
    return mdp.UniformVelocityCommandCfg(resampling_time_range=(1.0, 1.0), ranges=ranges)


BAD_CFGS = {
    "interval_range_s": lambda: EventTermCfg(func=len, mode="interval", interval_range_s=(0, 1)),
    "interval_range_s must": lambda: EventTermCfg(func=len, mode="interval"),
    "mode": lambda: EventTermCfg(func=len, mode="resets"),
    "ang_vel_z": lambda: velocity(ang_vel_z=(1.0, -1.0)),
    "heading": lambda: velocity(heading=(0.0, 1.0)),
    "rel_standing_envs": lambda: replace(velocity(), rel_standing_envs=1.5),
    "resampling_time_range": lambda: replace(velocity(), resampling_time_range=(2.0, 1.0)),
    "n_m": lambda: UniformNoiseCfg(n_min=1.0, n_max=-1.0),
}


@pytest.mark.parametrize("name", BAD_CFGS)
def test_value_of_a_config_that_does_not_fit_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=name):
        BAD_CFGS[name]()


@pytest.mark.parametrize(("name", "value"), [("num_envs", 0), ("seed", -1), ("device", "meta")])
def test_argument_of_an_environment_that_does_not_fit_is_refused(tmp_path, name, value):
    with pytest.raises(ConfigError, match=name):
        ManagerBasedRlEnv(twins_cfg(tmp_path), **{"num_envs": 1, name: value})


@pytest.mark.parametrize("cfg", [go2_velocity_flat, "go2_velocity_flat", None])
def test_something_else_in_the_place_of_a_config_is_refused(cfg):
    with pytest.raises(ConfigError, match=r"cfg .*go2_velocity_flat|cfg .*None"):
        ManagerBasedRlEnv(cfg, num_envs=1)


def test_an_environment_can_be_printed_while_it_is_built(tmp_path):
    printed = []

    def show(env):
        printed.append(repr(env))
        return torch.zeros(env.num_envs)

    env = twins(tmp_path, rewards={"show": RewardTermCfg(func=show, weight=1.0)})
    assert printed == ["ManagerBasedRlEnv(num_envs=4, device=cpu)"]
    assert repr(env) == "ManagerBasedRlEnv(num_envs=4, obs=4, action=2, device=cpu)"


def torque(env, env_ids=None):
    return env.scene["twins"].data.joint_torque.sum(1)


@pytest.mark.parametrize("kind", KINDS)
def test_c19_reads_of_a_first_call_join_the_packet(tmp_path, kind):
    """0011-C19: of every kind of term, without a declaration."""

    def term(env, env_ids=None):
        value = torque(env)
        if kind == "termination":
            return value > 100.0
        if kind == "curriculum":
            return None
        return value[:, None] if kind in COLUMNS else value

    env = twins(tmp_path, **KINDS[kind](term))
    drive(env, 3)
    views = env.backend.get_state_views()
    assert torch.equal(env.scene["twins"].data.joint_torque, views["qfrc_actuator"].float())


def later(env):
    """Reads the torque from the second step on."""
    if env.common_step_counter > 1:
        return torque(env)
    return torch.zeros(env.num_envs)


def test_c19_read_that_no_first_call_made_faults_the_environment(tmp_path):
    """0011-C19: nothing stale is read."""
    env = twins(tmp_path, **KINDS["reward"](later))
    root = act(env, env.reset())
    env.step(root)
    with pytest.raises(ConfigError, match=r"twins\.data\.joint_torque.*@reads"):
        env.step(root)
    with pytest.raises(EnvFaultedError):
        env.step(root)


@reads("joint_torque", sensors="sensor")
def declared(env, sensor, asset_cfg=TWINS):
    return later(env) + (env.scene.sensor(sensor)[:, 0] if env.common_step_counter > 1 else 0.0)


@pytest.mark.parametrize(
    ("kind", "first", "later"),
    [
        ("observation", torch.zeros(4, 1), torch.zeros(4, 2)),
        ("observation", torch.zeros(4, 1), torch.zeros(4, 1, dtype=torch.float64)),
        ("reward", torch.zeros(4), torch.zeros(1)),
        ("reward", torch.zeros(4), 0.0),
        ("metrics", torch.zeros(4), torch.zeros(1)),
        ("termination", torch.zeros(4, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)),
    ],
)
def test_output_of_another_kind_later_names_the_term(tmp_path, kind, first, later):
    """Columns would shift, or one value be taken for every row, without an error."""
    value = first
    env = twins(tmp_path, **KINDS[kind](lambda env: value))
    root = env.reset()
    value = later
    with pytest.raises(ConfigError, match=f"{kind}.* term 'bad'"):
        env.step(act(env, root))


def test_declared_read_may_come_later(tmp_path):
    term = RewardTermCfg(func=declared, weight=1.0, params={"sensor": "tip_pos"})
    drive(twins(tmp_path, rewards={"r": term}), 3)


def doubled(env, env_ids=None):
    return env.scene["twins"].data.joint_pos.mul_(2.0).sum(1)


def zeroed(env, env_ids=None):
    env.scene["twins"].data.joint_vel[env_ids] = 0.0


def moved(env, env_ids=None):
    return env.scene.sensor("tip_pos").add_(1.0).sum(1)


def squashed(env, env_ids=None):
    return env.action_manager.action.clamp_(-0.5, 0.5).sum(1)


WRITES = {
    "reward": (doubled, r"twins\.data\.joint_pos"),
    "metrics": (moved, "tip_pos"),
    "command metric": (doubled, r"twins\.data\.joint_pos"),
    "recorder": (squashed, "the action"),
    "reset event": (zeroed, r"twins\.data\.joint_vel"),
    "interval event": (zeroed, r"twins\.data\.joint_vel"),
}


@pytest.mark.parametrize("kind", WRITES)
def test_term_that_writes_to_what_it_reads_is_refused(tmp_path, kind):
    """Terms after it would read something else."""
    func, named = WRITES[kind]
    with pytest.raises(ConfigError, match=f"'bad'.*{named}"):
        twins(tmp_path, **KINDS[kind](func))


@pytest.mark.parametrize("field", ["root_lin_vel_b", "projected_gravity_b"])
def test_term_that_writes_to_a_computed_field_is_refused(field):
    def term(env):
        return getattr(env.scene["robot"].data, field).mul_(2.0).sum(1)

    with pytest.raises(ConfigError, match=rf"'bad'.*robot\.data\.{field}"):
        go2(rewards={"bad": RewardTermCfg(func=term, weight=1.0)})


def test_term_that_writes_later_faults_the_environment(tmp_path):
    def term(env):
        velocity = env.scene["twins"].data.joint_vel
        return (velocity.mul_(2.0) if env.common_step_counter > 1 else velocity).sum(1)

    env = twins(tmp_path, **KINDS["reward"](term))
    root = act(env, env.reset())
    env.step(root)
    with pytest.raises(ConfigError, match="reward term 'bad'"):
        env.step(root)


@pytest.mark.parametrize(
    "name", ["data.default_joint_pos", "data.joint_pos_limits", "default_root_pose"]
)
def test_term_that_writes_to_the_home_pose_later_faults_the_environment(name):
    def term(env):
        if env.common_step_counter > 1:
            attrgetter(name)(env.scene["robot"]).mul_(2.0)
        return torch.zeros(env.num_envs)

    env = go2(rewards={"bad": RewardTermCfg(func=term, weight=1.0)})
    root = act(env, env.reset())
    env.step(root)
    env.step(root)
    with pytest.raises(ConfigError, match=rf"robot\.{name}"):
        env.step(root)


class Early(ManagerTermBase):
    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.start = env.scene["twins"].data.joint_pos

    def __call__(self, env):
        return self.start


def test_read_in_the_constructor_of_a_term_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'bad'.*twins\.data\.joint_pos"):
        twins(tmp_path, **observed(Early))


def test_tensor_kept_from_a_first_call_is_never_read_stale(tmp_path):
    kept: list[torch.Tensor] = []

    def keeps(env):
        kept.append(env.scene["twins"].data.joint_pos)
        return kept[0]

    env = twins(tmp_path, **observed(keeps))
    with pytest.raises(NonFiniteError, match="bad"):
        env.reset()


def test_unknown_field_names_the_nearest(tmp_path):
    with pytest.raises(AttributeError, match=r"joint_acc.*joint_") as caught:
        twins(tmp_path, **observed(lambda env: env.scene["twins"].data.joint_acc))
    assert "'bad'" in caught.value.__notes__[0]


def test_task_whose_terms_read_nothing_runs(tmp_path):
    env = twins(
        tmp_path,
        **observed(mdp.last_action),
        rewards={"one": RewardTermCfg(func=lambda env: torch.ones(env.num_envs), weight=1.0)},
        terminations={"lost": TerminationTermCfg(func=mdp.nan_detection)},
    )
    assert not drive(env, 3)["next", "done"].any()


class Saved(ManagerTermBase):
    def __call__(self, env, env_ids):
        return None

    def state_dict(self):
        return {}


def test_curriculum_that_saves_and_cannot_load_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'bad'.*load_state_dict"):
        twins(tmp_path, curriculum={"bad": CurriculumTermCfg(func=Saved)})
