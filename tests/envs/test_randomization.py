"""Domain randomisation against models that MuJoCo compiled with the other values."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch
from envs.tables import ON_TWINS, TWINS_XML, act, go2, twins, twins_cfg

from unilab.envs import EventTermCfg, ManagerBasedRlEnv, ObservationTermCfg, SceneEntityCfg, mdp
from unilab.envs.mdp.randomization import Draw
from unilab.errors import CapabilityError, ConfigError

SECOND = SceneEntityCfg("twins", joint_names=("second",), body_names=("second",))


def event(func, mode="reset", **params) -> EventTermCfg:
    return EventTermCfg(func=func, mode=mode, params=params)


def randomised(folder, *events, num_envs=8, mode="reset", **changes) -> ManagerBasedRlEnv:
    cfg = twins_cfg(folder, **changes)
    table = {**cfg.events, **{f"e{i}": replace(e, mode=mode) for i, e in enumerate(events)}}
    return ManagerBasedRlEnv(replace(cfg, events=table), num_envs=num_envs, seed=0)


CASES = {
    "mass": (
        event(mdp.randomize_rigid_body_mass, mass_distribution_params=(0.5, 2.0),
              operation="scale", asset_cfg=SECOND, recompute_inertia=False),
        "body_mass",
    ),
    "mass and inertia": (
        event(mdp.randomize_rigid_body_mass, mass_distribution_params=(0.5, 2.0),
              operation="scale", asset_cfg=SECOND),
        "body_inertia",
    ),
    "centre of mass": (
        event(mdp.randomize_rigid_body_com, com_range={"x": (-0.1, 0.1), "z": (-0.1, 0.1)},
              asset_cfg=SECOND),
        "body_ipos",
    ),
    "joints": (
        event(mdp.randomize_joint_parameters, friction_distribution_params=(0.0, 0.1),
              armature_distribution_params=(0.0, 0.1), damping_distribution_params=(0.0, 0.4),
              operation="add", asset_cfg=SECOND),
        "dof_armature",
    ),
    "gravity": (
        event(mdp.randomize_physics_scene_gravity,
              gravity_distribution_params=((-1.0, 0.0, -2.0), (1.0, 0.0, 2.0))),
        "opt.gravity",
    ),
}  # fmt: skip


def recompiled(env, row) -> mujoco.MjModel:
    """The model that MuJoCo compiles from a row's parameters."""
    spec = mujoco.MjSpec.from_string(TWINS_XML)
    view = {name: env.backend.expand(name)[row].numpy() for name in (
        "body_mass", "body_inertia", "body_ipos", "dof_frictionloss", "dof_armature",
        "dof_damping", "opt.gravity")}  # fmt: skip
    base = mujoco.MjModel.from_xml_string(TWINS_XML)
    for i in range(1, base.nbody):
        body = spec.body(base.body(i).name)
        body.explicitinertial = True
        body.mass, body.inertia = view["body_mass"][i], view["body_inertia"][i]
        body.ipos, body.iquat = view["body_ipos"][i], base.body_iquat[i]
    for i, name in enumerate(("first", "second")):
        joint = spec.joint(name)
        joint.frictionloss = view["dof_frictionloss"][i]
        joint.armature, joint.damping = view["dof_armature"][i], [view["dof_damping"][i], 0, 0]
    spec.option.gravity = view["opt.gravity"]
    return spec.compile()


@pytest.mark.parametrize("mode", ["startup", "reset"])
@pytest.mark.parametrize("case", CASES)
def test_a_randomised_row_moves_like_a_model_compiled_with_its_values(tmp_path, case, mode):
    term, field = CASES[case]
    env = randomised(tmp_path, term, mode=mode)
    root = env.reset()
    values = env.backend.expand(field).reshape(8, -1)
    assert len(values.unique(dim=0)) == 8
    views = env.backend.get_state_views()
    start = {name: views[name].clone() for name in ("qpos", "qvel")}
    for _ in range(4):
        env.step(act(env, root, 0.3))
    for row in (0, 5):
        model = recompiled(env, row)
        data = mujoco.MjData(model)
        data.qpos, data.qvel = start["qpos"][row], start["qvel"][row]
        data.ctrl = env.backend.default_ctrl
        mujoco.mj_forward(model, data)
        data.ctrl = views["ctrl"][row]
        for _ in range(4 * env.cfg.decimation):
            mujoco.mj_step(model, data)
        np.testing.assert_allclose(views["qpos"][row], data.qpos, rtol=0, atol=1e-9)
        np.testing.assert_allclose(views["qvel"][row], data.qvel, rtol=0, atol=1e-8)


def test_draws_do_not_accumulate_over_resets(tmp_path):
    env = randomised(tmp_path, CASES["mass"][0], num_envs=64)
    for _ in range(5):
        env.reset()
        mass = env.backend.expand("body_mass")
        assert (mass[:, :-1] == mass[0, :-1]).all()
        ratio = mass[:, -1] / 0.3
        assert ((ratio >= 0.5) & (ratio <= 2.0)).all()
        assert ratio.min() < 0.6
        assert ratio.max() > 1.8


def test_reset_redraws_only_its_rows(tmp_path):
    env = randomised(tmp_path, CASES["joints"][0])
    root = env.reset()
    before = env.backend.expand("dof_armature").clone()
    mask = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0]).bool().unsqueeze(1)
    env.reset(root.set("_reset", mask))
    changed = (env.backend.expand("dof_armature") != before).any(1)
    assert torch.equal(changed, mask[:, 0])


def test_a_mass_scales_the_inertia_unless_told_not_to(tmp_path):
    for recompute in (True, False):
        term = CASES["mass and inertia"][0]
        params = {**term.params, "recompute_inertia": recompute}
        env = randomised(tmp_path, replace(term, params=params))
        nominal = torch.from_numpy(env.backend.mj_model.body_inertia[-1].copy())
        ratio = env.backend.expand("body_inertia")[:, -1] / nominal
        mass = env.backend.expand("body_mass")[:, -1:] / 0.3
        torch.testing.assert_close(ratio, mass.expand(-1, 3) if recompute else ratio * 0 + 1)


def test_gains_of_position_actuators_change_together():
    gains = event(
        mdp.randomize_actuator_gains,
        stiffness_distribution_params=(0.8, 1.2),
        damping_distribution_params=(0.5, 0.9),
        asset_cfg=SceneEntityCfg("robot", joint_names=(".*_calf_joint",)),
    )
    env = go2(16, events={"gains": gains})
    env.reset()
    gain, bias = (env.backend.expand(f"actuator_{name}prm") for name in ("gain", "bias"))
    model = env.backend.mj_model
    assert torch.equal(gain[..., 0], -bias[..., 1])
    calves = torch.tensor(["calf" in a.name for a in env.backend.actuators])
    stiffness = gain[..., 0] / torch.from_numpy(model.actuator_gainprm[:, 0].copy())
    damping = bias[..., 2] / torch.from_numpy(model.actuator_biasprm[:, 2].copy())
    for ratio, low, high in ((stiffness, 0.8, 1.2), (damping, 0.5, 0.9)):
        assert (ratio[:, ~calves] == 1.0).all()
        assert ((ratio[:, calves] >= low) & (ratio[:, calves] <= high)).all()
        assert len(ratio[:, calves].unique()) == 16 * 4


def test_friction_is_one_draw_a_robot():
    feet = SceneEntityCfg("robot", geom_names=("F[LR]",))
    slippery = event(
        mdp.randomize_geom_friction, friction_distribution_params=(0.3, 0.9), asset_cfg=feet
    )
    env = go2(16, events={"friction": slippery})
    env.reset()
    friction = env.backend.expand("geom_friction")[..., 0]
    model = env.backend.mj_model
    chosen = [i for i in range(model.ngeom) if model.geom(i).name in ("FL", "FR")]
    assert len(chosen) == 2
    assert torch.equal(friction[:, chosen[0]], friction[:, chosen[1]])
    assert len(friction[:, chosen[0]].unique()) == 16
    others = [i for i in range(model.ngeom) if i not in chosen]
    assert (friction[:, others] == torch.from_numpy(model.geom_friction[others, 0])).all()


def test_encoder_bias_is_added_only_with_biased(tmp_path):
    bias = event(mdp.randomize_encoder_bias, bias_range=(0.01, 0.05), asset_cfg=SECOND)
    observations = twins_cfg(tmp_path).observations
    read = ObservationTermCfg(func=mdp.joint_pos_rel, params={"biased": True, **ON_TWINS})
    group = replace(observations["obs"], terms={**observations["obs"].terms, "read": read})
    env = randomised(tmp_path, bias, observations={"obs": group})
    root = env.reset()
    data = env.step(act(env, root))
    for obs in (root["obs"], data["next", "obs"]):
        error = obs[:, 4:6] - obs[:, 0:2]
        assert (error[:, 0] == 0.0).all()
        assert ((error[:, 1] > 0.0099) & (error[:, 1] < 0.0501)).all()
        torch.testing.assert_close(error, env.scene["twins"].data.encoder_bias)


@pytest.mark.parametrize(
    ("operation", "distribution", "params", "low", "high"),
    [
        ("abs", "uniform", (0.5, 0.6), 0.5, 0.6),
        ("add", "uniform", (0.5, 0.6), 0.8, 0.9),
        ("scale", "log_uniform", (0.1, 10.0), 0.03, 3.0),
        ("scale", "gaussian", (1.0, 0.01), 0.28, 0.32),
    ],
)
def test_a_draw_is_set_added_or_multiplied(tmp_path, operation, distribution, params, low, high):
    term = event(
        mdp.randomize_rigid_body_mass,
        mass_distribution_params=params,
        operation=operation,
        distribution=distribution,
        asset_cfg=SECOND,
    )
    env = randomised(tmp_path, term, num_envs=200)
    env.reset()
    mass = env.backend.expand("body_mass")[:, -1]
    assert low <= mass.min() <= mass.max() <= high
    if distribution == "log_uniform":
        assert 0.4 < (mass < 0.3).float().mean() < 0.6


def undeclared(env, env_ids):
    env.scene.write_field("dof_damping", (torch.arange(2),), torch.ones(env_ids.shape[0], 2))


def test_parameter_without_writes_is_refused(tmp_path):
    message = r"'dof_damping'.*@writes"
    with pytest.raises(ConfigError, match=message):
        randomised(tmp_path, event(undeclared))


MASS = {"mass_distribution_params": (0.5, 2.0), "operation": "scale", "asset_cfg": SECOND}
GAUSSIAN = {"distribution": "gaussian"}
BAD = {
    "range": {"mass_distribution_params": (2.0, 0.5)},
    "log_uniform": {"distribution": "log_uniform", "mass_distribution_params": (0.0, 1.0)},
    "mean": {**GAUSSIAN, "mass_distribution_params": (1.0, -1.0)},
    r"second.*-0\.75": {"operation": "add", "mass_distribution_params": (-1.05, 5.0)},
    "second.*-3e-10": {"mass_distribution_params": (-1e-9, 2.0)},
    r"second.*-0\.06": {**GAUSSIAN, "mass_distribution_params": (1.0, 0.3)},
}


@pytest.mark.parametrize("named", BAD)
def test_mass_that_does_not_fit_is_refused(tmp_path, named):
    term = event(mdp.randomize_rigid_body_mass, **{**MASS, **BAD[named]})
    with pytest.raises(ConfigError, match=f"'e0'.*{named}"):
        randomised(tmp_path, term)


@pytest.mark.parametrize(
    ("term", "named"),
    [
        (event(mdp.randomize_geom_friction, friction_distribution_params=(-2.0, -1.0),
               **ON_TWINS), "friction.*-2"),
        (event(mdp.randomize_rigid_body_com, com_range={"xy": (0.0, 0.1)}, **ON_TWINS), "xy"),
        (event(mdp.randomize_actuator_gains, **ON_TWINS), "first_motor.*second_motor"),
    ],
)  # fmt: skip
def test_randomization_that_does_not_fit_is_refused(tmp_path, term, named):
    with pytest.raises((ConfigError, CapabilityError), match=f"'e0'.*{named}"):
        randomised(tmp_path, term)


@pytest.mark.parametrize(
    ("term", "ids"),
    [
        (CASES["mass"][0], {"geom_ids": [1]}),
        (CASES["centre of mass"][0], {"joint_ids": [1]}),
        (CASES["joints"][0], {"body_ids": [2]}),
        (event(mdp.randomize_encoder_bias, bias_range=(0.1, 0.2)), {"actuator_ids": (1,)}),
    ],
)
def test_ids_of_another_kind_than_the_event_uses_are_refused(tmp_path, term, ids):
    asset_cfg = SceneEntityCfg("twins", **ids)
    wrong = replace(term, params={**term.params, "asset_cfg": asset_cfg})
    with pytest.raises(ConfigError, match=f"'e0'.*{next(iter(ids))}"):
        randomised(tmp_path, wrong)


def test_gaussian_is_clamped_at_four_deviations(tmp_path):
    env = randomised(tmp_path)
    rows, nominal = torch.zeros(200_000, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    drawn = Draw((1.0, 0.2), "scale", "gaussian").around(env, rows, nominal)
    assert float(drawn.min()) == pytest.approx(0.2)
    assert float(drawn.max()) == pytest.approx(1.8)
    assert float(drawn.std()) == pytest.approx(0.2, rel=0.01)


FEET = ("FL_foot", "FR_foot", "RL_foot", "RR_foot")


def weighed(span, operation, **params):
    """Go2s, whose feet are bodies without mass."""
    params = {"mass_distribution_params": span, "operation": operation, **params}
    term = event(mdp.randomize_rigid_body_mass, "startup", **params)
    return go2(events={"bad": term})


def test_mass_factor_for_all_bodies_skips_bodies_without_mass():
    env = weighed((0.5, 0.9), "scale")
    feet = [env.backend.bodies.index(foot) for foot in FEET]
    drawn, nominal = env.backend.expand("body_mass"), env.scene.nominal("body_mass")
    own = [i for i in range(1, len(nominal)) if i not in feet]
    assert not drawn[:, feet].any()
    assert (drawn[:, own] < 0.95 * nominal[own]).all()
    assert drawn.isfinite().all()


def test_mass_that_would_not_be_positive_names_the_bodies():
    named = {"asset_cfg": SceneEntityCfg("robot", body_names=("base", *FEET[:2]))}
    with pytest.raises(ConfigError, match=r"'bad'.*mass of FL_foot, FR_foot"):
        weighed((-1e-9, -1e-10), "add", **named)
    with pytest.raises(ConfigError, match=r"'bad'.*mass of base"):
        weighed((0.0, 0.0), "scale", **named)
    feet = {"asset_cfg": SceneEntityCfg("robot", body_names=".*_foot")}
    with pytest.raises(ConfigError, match=f"mass of {', '.join(FEET)}"):
        weighed((0.5, 0.9), "scale", **feet)


def test_parts_of_an_entity_are_found_by_patterns():
    env = go2()
    front = SceneEntityCfg("robot", joint_names=("F[LR]_.*",), body_names=("F[LR]_calf",))
    cfg = env.scene.resolve(front)
    assert [env.backend.bodies[i] for i in cfg.body_ids] == ["FL_calf", "FR_calf"]
    assert {env.backend.geoms[i].body for i in cfg.geom_ids} == {"FL_calf", "FR_calf"}
    driven = {env.backend.actuators[i].joint for i in cfg.actuator_ids}
    assert driven == {f"F{s}_{j}_joint" for s in "LR" for j in ("hip", "thigh", "calf")}


def hard_wired(env, env_ids):
    mdp.randomize_rigid_body_mass(env, env_ids, (0.5, 2.0), "scale")


hard_wired.writes_fields = ("body_mass", "body_inertia")


def test_entity_in_the_code_of_a_term_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="asset_cfg"):
        randomised(tmp_path, event(hard_wired))


def test_gains_that_differ_from_the_stiffness_cannot_be_varied(tmp_path):
    motor = '<motor name="first_motor" joint="first"/>'
    uneven = motor.replace("motor ", "general ", 1).replace(
        "/>", ' biastype="affine" gainprm="9" biasprm="0 -4 -1"/>'
    )
    model = tmp_path / "uneven.xml"
    model.write_text(TWINS_XML.replace(motor, uneven))
    first = SceneEntityCfg("twins", actuator_names=("first_motor",))
    vary = event(mdp.randomize_actuator_gains, asset_cfg=first)
    with pytest.raises(CapabilityError, match=r"'bad'.*first_motor"):
        twins(tmp_path, scene=replace(twins_cfg(tmp_path).scene, model=model), events={"bad": vary})


def test_gains_are_drawn_at_the_joint(tmp_path):
    """With a gear, an absolute stiffness is the joint's."""
    xml = TWINS_XML.replace('<motor name="first_motor"', '<position gear="2" name="first_motor"')
    (tmp_path / "geared.xml").write_text(xml)
    cfg = twins_cfg(tmp_path)
    first = SceneEntityCfg("twins", actuator_names=("first_motor",))
    gains = event(
        mdp.randomize_actuator_gains,
        stiffness_distribution_params=(8.0, 8.0),
        operation="abs",
        asset_cfg=first,
    )
    scene = replace(cfg.scene, model=str(tmp_path / "geared.xml"))
    env = ManagerBasedRlEnv(replace(cfg, scene=scene, events={"gains": gains}), num_envs=2, seed=0)
    env.reset()
    assert env.backend.expand("actuator_gainprm")[:, 0, 0].tolist() == [2.0, 2.0]  # 8 / gear^2
