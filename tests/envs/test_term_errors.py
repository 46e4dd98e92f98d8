"""Errors of terms at construction name the term; reads are held to what it declared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from envs.tables import ON_TWINS, TWINS, go2, twins

from unilab.envs import (
    CommandTerm,
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    ManagerTermBase,
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
from unilab.errors import CapabilityError, ConfigError


def observed(func, **params):
    terms = {"bad": ObservationTermCfg(func=func, params=params)}
    return {"observations": {"obs": ObservationGroupCfg(terms=terms)}}


def event(mode, func, **params):
    every = (1.0, 2.0) if mode == "interval" else None
    term = EventTermCfg(func=func, mode=mode, interval_range_s=every, params=params)
    return {"events": {"bad": term}}


KINDS = {
    "observation (obs)": observed,
    "reward": lambda func: {"rewards": {"bad": RewardTermCfg(func=func, weight=1.0)}},
    "metrics": lambda func: {"metrics": {"bad": MetricsTermCfg(func=func)}},
    "termination": lambda func: {"terminations": {"bad": TerminationTermCfg(func=func)}},
    "recorder": lambda func: {"recorders": {"bad": RecorderTermCfg(func=func, mode="post_step")}},
    "curriculum": lambda func: {"curriculum": {"bad": CurriculumTermCfg(func=func)}},
    "event": lambda func: event("startup", func),
    "event at a reset": lambda func: event("reset", func),
    "event from time to time": lambda func: event("interval", func),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_a_term_raises_when_first_evaluated_names_it(tmp_path, kind):
    def term(env, env_ids=None):
        env.scene["twin"]

    with pytest.raises(ConfigError) as caught:
        twins(tmp_path, **KINDS[kind](term))
    label = kind.split(" at ")[0].split(" from ")[0]
    assert str(caught.value) == (
        f"{label} term 'bad': the scene has no entity 'twin' (did you mean 'twins'?); "
        "it has ['twins']"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_in_a_terms_own_code_keeps_its_type_and_is_noted(tmp_path, kind):
    def term(env, env_ids=None):
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        twins(tmp_path, **KINDS[kind](term))
    label = kind.split(" at ")[0].split(" from ")[0]
    assert caught.value.__notes__ == [f"(while {label} term 'bad' was built or first evaluated)"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_term_sees_only_what_it_declared_itself(tmp_path, kind):
    """Although the observation of the same task declares the field."""

    def term(env, env_ids=None):
        return env.scene["twins"].data.joint_vel

    changes = KINDS[kind](term)
    other = ObservationTermCfg(func=mdp.joint_vel_rel, params=ON_TWINS)
    terms = {"declares": other}
    if "observations" in changes:
        terms |= changes["observations"]["obs"].terms
    changes["observations"] = {"obs": ObservationGroupCfg(terms=terms)}
    with pytest.raises(
        ConfigError, match=r"term 'bad': twins.data.joint_vel was read by .* that did not"
    ):
        twins(tmp_path, **changes)


def test_a_sensor_that_another_term_declared_is_not_seen(tmp_path):
    terms = {
        "declares": ObservationTermCfg(
            func=mdp.sensor_values, params={"sensor_names": ("tip_pos",)}
        ),
        "bad": ObservationTermCfg(func=lambda env: env.scene.sensor("tip_pos")),
    }
    with pytest.raises(ConfigError, match=r"term 'bad': sensor 'tip_pos' was read by a term"):
        twins(tmp_path, observations={"obs": ObservationGroupCfg(terms=terms)})


def test_after_construction_every_declared_field_is_there_again(tmp_path):
    env = twins(tmp_path)
    data = env.scene["twins"].data
    assert data.joint_pos.shape == data.joint_vel.shape == (4, 2)
    env.reset()


def test_a_term_with_a_memory_may_declare_for_itself(tmp_path):
    class Fast(ManagerTermBase):
        def __init__(self, cfg, env):
            super().__init__(cfg, env)
            env.scene.declare("twins", "joint_vel")

        def __call__(self, env):
            return env.scene["twins"].data.joint_vel.abs()

    env = twins(tmp_path, **observed(Fast))
    assert env.obs_groups_spec == {"obs": 2}


class Facing(CommandTerm):
    """A command that is computed from the state whenever it is asked for."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        env.scene.declare("twins", "joint_pos")

    @property
    def command(self):
        return -self._env.scene["twins"].data.joint_pos

    def resample(self, rows):
        pass


class FacingCfg(CommandTermCfg):
    def build(self, env):
        return Facing(self, env)


def test_what_a_command_reads_is_not_the_business_of_the_term_that_names_it(tmp_path):
    env = twins(
        tmp_path,
        commands={"facing": FacingCfg(resampling_time_range=(1.0, 1.0))},
        **observed(mdp.generated_commands, command_name="facing"),
    )
    assert env.obs_groups_spec == {"obs": 2}


class LostCfg(CommandTermCfg):
    def build(self, env):
        env.scene.declare("twins", "joint_poss")


class UndeclaredCfg(CommandTermCfg):
    def build(self, env):
        class Undeclared(Facing):
            def __init__(self, cfg, env):
                CommandTerm.__init__(self, cfg, env)

            def metrics(self):
                return {"error": self.command[:, 0]}

        return Undeclared(self, env)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (LostCfg, r"^command term 'facing': entities have no field 'joint_poss' \(did you mean"),
        (UndeclaredCfg, r"^command term 'facing': twins.data.joint_pos was read by a term that"),
    ],
)
def test_an_error_of_a_command_names_it(tmp_path, cfg, message):
    with pytest.raises(ConfigError, match=message):
        twins(tmp_path, commands={"facing": cfg(resampling_time_range=(1.0, 1.0))})


def test_a_derived_field_that_was_not_declared_is_called_by_its_own_name():
    for name in ("root_lin_vel_b", "projected_gravity_b"):

        def term(env, name=name):
            return getattr(env.scene["robot"].data, name)

        obs = ObservationGroupCfg(terms={"bad": ObservationTermCfg(func=term)})
        with pytest.raises(ConfigError) as caught:
            go2(observations={"obs": obs})
        assert str(caught.value) == (
            f"observation (obs) term 'bad': robot.data.{name} was read by a term that did not "
            f"declare it: decorate the term with @reads({name!r})"
        )


def test_a_field_that_does_not_exist_names_the_nearest(tmp_path):
    with pytest.raises(
        AttributeError, match=r"no field 'joint_acc' \(did you mean 'joint_"
    ) as caught:
        twins(tmp_path, **observed(lambda env: env.scene["twins"].data.joint_acc))
    assert "observation (obs) term 'bad'" in caught.value.__notes__[0]


@reads(sensors="names")
def misnamed(env, sensor_names):
    return env.scene.sensor(sensor_names[0])


@reads("joint_pos")
def annotated(env, asset_cfg=TWINS):
    return env.scene[asset_cfg.name].data.joint_pos


@reads("joint_pos")
def without_entity(env):
    return env.scene["twins"].data.joint_pos


NO_NAMES = {"asset_cfg": replace(TWINS, joint_names=())}
BAD = {
    "the default entity": (
        mdp.joint_pos_rel,
        {},
        r"the scene has no entity 'robot'; it has \['twins'\]: "
        r"give asset_cfg=SceneEntityCfg\('twins'\)$",
    ),
    "an entity's name": (
        annotated,
        {"asset_cfg": "twins"},
        r"asset_cfg",
    ),
    "an entity that is none": (
        annotated,
        {"asset_cfg": None},
        r"asset_cfg",
    ),
    "no entity": (
        without_entity,
        {},
        r"@reads names joint_pos of the entity that a SceneEntityCfg parameter names, but there is",
    ),
    "a parameter of sensors": (
        misnamed,
        {"sensor_names": ("tip_pos",)},
        r"@reads\(sensors='names'\) names no parameter \(did you mean 'sensor_names'\?\)",
    ),
    "sensors": (
        mdp.sensor_values,
        {"sensor_names": None},
        r"sensor_names",
    ),
    "a pattern": (
        mdp.joint_pos_rel,
        {"asset_cfg": replace(TWINS, joint_names=("frist",))},
        r"pattern 'frist' matches no joint of 'twins' \(did you mean 'first'",
    ),
    "no pattern": (
        mdp.joint_pos_rel,
        NO_NAMES,
        r"no names of a joint of 'twins' are given, but \(\)",
    ),
    "None as pattern": (
        mdp.joint_pos_rel,
        {"asset_cfg": replace(TWINS, joint_names=None)},
        r"no names of a joint of 'twins' are given, but None",
    ),
    "a number as pattern": (
        mdp.joint_pos_rel,
        {"asset_cfg": replace(TWINS, joint_names=(1,))},
        r"pattern 1 of a joint of 'twins' is no string",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_parameter_that_does_not_fit_names_the_term(tmp_path, what):
    func, params, message = BAD[what]
    with pytest.raises(ConfigError, match=r"^observation \(obs\) term 'bad': " + message):
        twins(tmp_path, **observed(func, **params))


@pytest.mark.parametrize("params", [None, [("asset_cfg", TWINS)], "asset_cfg"])
def test_params_that_are_no_dict_are_refused(tmp_path, params):
    term = ObservationTermCfg(func=mdp.joint_pos_rel, params=params)
    with pytest.raises(ConfigError, match=r"\.terms\['bad'\]\.params"):
        twins(tmp_path, observations={"obs": ObservationGroupCfg(terms={"bad": term})})


def test_what_the_model_lacks_names_the_term(tmp_path):
    with pytest.raises(CapabilityError, match=r"^observation \(obs\) term 'bad': .*'tip_po'"):
        twins(tmp_path, **observed(mdp.sensor_values, sensor_names=("tip_po",)))


OF_EVENTS = {
    "operation": (
        mdp.randomize_rigid_body_mass,
        {"mass_distribution_params": (0.5, 1.0), "operation": "multiply"},
        "operation",
    ),
    "axis": (
        mdp.randomize_rigid_body_com,
        {"com_range": {"w": (0.0, 1.0)}},
        "com_range has no axis",
    ),
    "range": (
        mdp.reset_joints_by_offset,
        {"position_range": (1.0, 0.0), "velocity_range": (0.0, 0.0)},
        r"range",
    ),
}


@pytest.mark.parametrize("mode", ["startup", "reset", "interval"])
@pytest.mark.parametrize("what", OF_EVENTS)
def test_a_value_that_does_not_fit_an_event_names_it(tmp_path, what, mode):
    func, params, message = OF_EVENTS[what]
    with pytest.raises(ConfigError, match=rf"^event term 'bad': {message}"):
        twins(tmp_path, **event(mode, func, **params, asset_cfg=SceneEntityCfg("twins")))
