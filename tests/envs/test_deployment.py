"""Deployment metadata agrees with the environment."""

from __future__ import annotations

import json

import pytest
import torch
from envs import tables

import unilab
from unilab.envs import (
    ObservationGroupCfg,
    ObservationTermCfg,
    mdp,
)
from unilab.envs.rotations import gravity_direction
from unilab.tasks import TASKS

NOMINAL = {"num_threads": 1, "randomize": False}


@pytest.fixture
def go2():
    env = unilab.make("go2_velocity_flat", num_envs=3, seed=0, overrides=NOMINAL)
    yield env
    env.close()


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_describes_itself_in_json(task):
    env = unilab.make(task, num_envs=1, seed=0, overrides={"num_threads": 1})
    data = env.deployment_metadata()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert sum(term["width"] for term in data["observation_terms"]) == env.obs_groups_spec["obs"]
    actions = env.action_spec.shape[-1]
    per_action = {key for key in data if key.startswith("action_")}
    per_action |= {"control_limits", "effort_limits", "stiffness", "damping"}
    assert {key: len(data[key]) for key in per_action} == dict.fromkeys(per_action, actions)
    assert data["control_period"] == env.step_dt
    env.close()


def test_observation_layout_gives_the_policys_observation():
    """Computed from the metadata and the robot's sensors only."""
    env = unilab.make("go2_velocity_flat", num_envs=3, seed=0, overrides=NOMINAL)
    data = env.deployment_metadata()
    step = env.rollout(4)[:, -1]
    state = env.backend.get_state_views()
    joint = {j.name: j for j in env.backend.joints}
    home = dict(zip(data["joint_names"], data["default_joint_pos"], strict=True))
    sensed = {
        "base_ang_vel": lambda p: state["qvel"][:, 3:6],
        "projected_gravity": lambda p: gravity_direction(state["qpos"][:, 3:7]),
        "generated_commands": lambda p: env.command_manager.get_command(p["command_name"]),
        "joint_pos_rel": lambda p: torch.stack(
            [
                state["qpos"][:, joint[name].qpos.start] - home[name]
                for name in p["asset_cfg"]["joint_names"]
            ],
            1,
        ),
        "joint_vel_rel": lambda p: torch.stack(
            [state["qvel"][:, joint[n].qvel.start] for n in p["asset_cfg"]["joint_names"]], 1
        ),
        "last_action": lambda p: step["action"],
    }
    columns = [
        sensed[term["function"]](term["params"]).float() * torch.tensor(term["scale"])
        for term in data["observation_terms"]
    ]
    torch.testing.assert_close(torch.cat(columns, 1), step["next", "obs"])
    env.close()


def test_action_mapping_gives_the_control(go2):
    data = go2.deployment_metadata()
    state = go2.rand_step(go2.reset())
    offset, scale = (torch.tensor(data[key]) for key in ("action_offset", "action_scale"))
    names = [a.name for a in go2.backend.actuators]
    columns = [names.index(name) for name in data["action_names"]]
    ctrl = go2.backend.get_state_views()["ctrl"][:, columns].float()
    torch.testing.assert_close(ctrl, offset + scale * state["action"])
    assert data["action_kinds"] == ["position"] * 12


def test_gains_and_limits_come_from_the_model(go2):
    data = go2.deployment_metadata()
    assert data["action_scale"] == [0.6] * 12  # not printed as float32
    assert data["observation_terms"][4]["scale"] == [0.05] * 12
    model = go2.backend.mj_model
    ids = [model.actuator(name).id for name in data["action_names"]]
    assert data["stiffness"] == [model.actuator_gainprm[i, 0] for i in ids]
    assert data["damping"] == [-model.actuator_biasprm[i, 2] for i in ids]
    assert data["control_limits"] == model.actuator_ctrlrange[ids].tolist()
    assert data["effort_limits"] == model.actuator_forcerange[ids].tolist()
    driven = [model.joint(model.actuator_trnid[i, 0]).name for i in ids]
    assert data["action_joint_names"] == driven


def test_a_motor_has_no_gains_and_no_limit_is_none():
    env = unilab.make("pendulum_swingup", num_envs=1, seed=0, overrides={"num_threads": 1})
    data = env.deployment_metadata()
    env.close()
    assert data["action_kinds"] == ["effort"]
    assert (data["stiffness"], data["damping"]) == ([0.0], [0.0])
    assert data["effort_limits"] == [[None, None]]
    assert data["default_joint_pos"] == [pytest.approx(3.14159265)]


def test_history_clip_and_scale_of_each_term(tmp_path):
    pos = ObservationTermCfg(
        func=mdp.joint_pos_rel,
        params=tables.ON_TWINS,
        clip=(-1.0, float("inf")),
        scale=(2.0, 0.5),
        history_length=3,
    )
    env = tables.twins(tmp_path, observations={"obs": ObservationGroupCfg(terms={"pos": pos})})
    (term,) = env.deployment_metadata()["observation_terms"]
    assert (term["width"], term["history"]) == (6, 3)
    assert term["scale"] == [2.0, 0.5]
    assert term["clip"] == [-1.0, None]
    env.close()
