"""Environments on another physics backend: carts in closed form (0011-C15, C18 to C20)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from envs.tables import assert_bitwise_equal, drive
from reference.accelerator import DEVICE
from reference.carts import MASSES, TIMESTEP, AllAtOnce, Carts, ResidentCarts

from unilab.envs import (
    EntityCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerBasedRlEnvCfg,
    NanGuardCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
    writes,
)
from unilab.envs.nan_guard import replay_dump
from unilab.errors import CapabilityError, ConfigError, NonFiniteError

ON_CARTS = {"asset_cfg": SceneEntityCfg("carts")}
SCENE = SceneCfg(model="", entities={"carts": EntityCfg(root_body="frame")})


@writes("body_mass")
def load(env, env_ids):
    """The left cart of row ``i`` weighs ``2 + i`` kg."""
    mass = env.scene.nominal("body_mass")[2] + env_ids.double().unsqueeze(1)
    env.scene.write_field("body_mass", (torch.tensor([2]),), mass)


SCATTER = {"position_range": (-0.3, 0.3), "velocity_range": (-0.2, 0.2), **ON_CARTS}
EVENTS = {
    "load": EventTermCfg(func=load, mode="startup"),
    "scatter": EventTermCfg(func=mdp.reset_joints_by_offset, mode="reset", params=SCATTER),
}


def cfg(**changes):
    terms = {
        "pos": ObservationTermCfg(func=mdp.joint_pos_rel, params=ON_CARTS),
        "vel": ObservationTermCfg(func=mdp.joint_vel_rel, params=ON_CARTS),
        "gap": ObservationTermCfg(func=mdp.sensor_values, params={"sensor_names": ("gap",)}),
    }
    default = ManagerBasedRlEnvCfg(
        scene=SCENE,
        decimation=2,
        episode_length_s=1.2,  # 12 steps
        actions={"push": mdp.JointEffortActionCfg(scale=3.0)},
        observations={"obs": ObservationGroupCfg(terms=terms)},
        rewards={"vel": RewardTermCfg(func=mdp.joint_vel_l2, weight=-1.0, params=ON_CARTS)},
        terminations={
            "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
            "derailed": TerminationTermCfg(
                func=mdp.joint_pos_out_of_limit, params={"limit": 1.5, **ON_CARTS}
            ),
        },
        events=EVENTS,
    )
    return replace(default, **changes)


def carts(num_envs=4, backend=Carts, seed=0, device="cpu", **changes):
    return ManagerBasedRlEnv(
        cfg(**changes), num_envs=num_envs, device=device, seed=seed, backend=backend(num_envs)
    )


def test_rollout_is_the_closed_form():
    env = carts()
    data = drive(env, 40)
    assert data["next", "terminated"].any()
    assert data["next", "truncated"].any()
    mass = torch.tensor([MASSES]).repeat(4, 1)
    mass[:, 0] += torch.arange(4)
    period = 2 * TIMESTEP
    acceleration = 3.0 * data["action"] / mass.unsqueeze(1)
    pos, vel = data["obs"][..., :2], data["obs"][..., 2:4]
    after = data["next", "obs"]
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(after[..., 2:4], vel + acceleration * period, **close)
    torch.testing.assert_close(
        after[..., :2], pos + vel * period + 0.5 * acceleration * period**2, **close
    )
    home = Carts.default_qpos.float()
    gap = after[..., 0] + home[0] - after[..., 1] - home[1]
    torch.testing.assert_close(after[..., 4], gap, **close)
    reward = -after[..., 2:4].square().sum(-1) * period
    torch.testing.assert_close(data["next", "reward"][..., 0], reward, **close)


def test_c18_a_read_phase_is_one_transfer_for_any_number_of_terms(accelerator):
    few = cfg().observations["obs"].terms
    many = {f"{name}_{i}": replace(term) for name, term in few.items() for i in range(10)}
    for terms in (few, many):
        env = carts(device=DEVICE, observations={"obs": ObservationGroupCfg(terms=terms)})
        plan, row = env.scene.plan, 5 * 4
        root = env.reset()
        transfers, sent = plan.transfers, plan.bytes
        for step in range(1, 41):
            root = env.rand_action(root)
            accelerator.clear()
            data, root = env.step_and_maybe_reset(root)
            copies = len(accelerator.up)
            done = int(data["next", "done"].sum())
            transfers, sent = transfers + 1 + (done > 0), sent + (4 + done) * row
            assert (plan.transfers, plan.bytes) == (transfers, sent), step
            assert copies == 1 + (done > 0)


def test_c19_terms_see_nothing_but_the_packet(accelerator):
    """With terms on a device that cannot read the physics the rollout is the same."""
    assert_bitwise_equal(drive(carts(device=DEVICE), 40).cpu(), drive(carts(), 40))


def test_c20_physics_without_row_resets_is_refused():
    with pytest.raises(CapabilityError, match="AllAtOnce"):
        carts(backend=AllAtOnce)


def test_physics_of_another_batch_size_is_refused():
    with pytest.raises(ConfigError, match="num_envs"):
        ManagerBasedRlEnv(cfg(), num_envs=4, backend=Carts(3))


def resident(**changes):
    return carts(backend=ResidentCarts, device=DEVICE, **changes)


def test_device_resident_physics_does_what_it_does_on_the_cpu_without_a_copy(accelerator):
    env, plain = resident(events=EVENTS), carts(events=EVENTS)
    root = env.reset()
    actions = [plain.rand_action()["action"] for _ in range(40)]
    done = 0
    for action in actions:
        root["action"] = action.to(DEVICE)
        accelerator.clear()
        data, root = env.step_and_maybe_reset(root)
        assert accelerator.up == accelerator.down == []
        done += int(data["next", "done"].sum())
    assert env.scene.plan.transfers == 0
    assert done > 4, "some steps with a reset of some rows"
    there, here = plain.reset(), None
    for action in actions:
        there["action"] = action
        here, there = plain.step_and_maybe_reset(there)
    assert_bitwise_equal(data.cpu(), here)


def test_c21_device_resident_physics_refuses_another_device(accelerator):
    with pytest.raises(CapabilityError, match="ResidentCarts"):
        carts(backend=ResidentCarts)


def test_device_resident_physics_refuses_what_the_cpus_refuses(accelerator):
    def far(env, env_ids):
        env.scene["carts"].write_joint_state(
            *torch.full((2, len(env_ids), 2), torch.inf).to(DEVICE)
        )

    with pytest.raises(NonFiniteError, match="qpos"):
        resident(events={"far": EventTermCfg(func=far, mode="reset")}).reset()


WEIGH = EventTermCfg(
    func=mdp.randomize_rigid_body_mass,
    mode="reset",
    params={"mass_distribution_params": (0.9, 1.1), "operation": "scale", **ON_CARTS},
)
GRIP = RewardTermCfg(func=mdp.sensor_values, weight=1.0, params={"sensor_names": ("gpa",)})
FLAT = RewardTermCfg(func=mdp.flat_orientation_l2, weight=1.0, params=ON_CARTS)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"events": {"mass": WEIGH}}, "body_inertia"),
        ({"rewards": {"grip": GRIP}}, r"'gpa'.*'gap'"),
        ({"rewards": {"flat": FLAT}}, "root_quat_w"),
    ],
)
def test_c20_missing_support_fails_at_construction(changes, name):
    with pytest.raises(CapabilityError, match=name):
        carts(**changes)


def test_a_dump_is_replayed_by_the_backend_that_wrote_it(tmp_path):
    env = carts(nan_guard=NanGuardCfg(output_dir=str(tmp_path)))
    root = env.reset()
    for _ in range(3):
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    env.backend.get_state_views()["qvel"][2] = torch.nan
    with pytest.raises(NonFiniteError, match=r"'carts.joint_vel': \[2\]"):
        env.step(env.rand_action(root))
    path = tmp_path / "nan_dump_3.pt"
    with pytest.raises(ConfigError, match="Carts"):
        replay_dump(path)
    report = replay_dump(path, Carts).report
    assert "row 2: physics is not finite after the last step, the same as then" in report
