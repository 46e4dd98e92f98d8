"""The left-right mirror of a task: its columns, its check, and mirrors that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from envs.tables import CommandOf, go2, twins
from tensordict import TensorDict

import unilab
from unilab.data import SymmetryTransform
from unilab.envs import (
    GaussianNoiseCfg,
    ManagerBasedRlEnv,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    UniformNoiseCfg,
    checked_mirror,
    mdp,
)
from unilab.errors import ConfigError
from unilab.tasks.robots import model_path
from unilab.tasks.velocity.go2 import go2_velocity_flat

LEGS = ("FL", "FR", "RL", "RR")
HEIGHTS = {"sensor_names": tuple(f"{leg}_foot_pos" for leg in LEGS), "component": 2}
FEET = {"asset_cfg": SceneEntityCfg("robot", body_names=".*_foot")}
LEFT_HIP = SceneEntityCfg("robot", joint_names=("FL_hip_joint",))


def observing(**terms: ObservationTermCfg | dict[str, Any]) -> dict[str, Any]:
    """Go2's observations with further terms in ``obs``, or changes to those that it has."""
    groups = go2_velocity_flat().observations
    known = groups["obs"].terms
    changed = {n: replace(known[n], **t) if isinstance(t, dict) else t for n, t in terms.items()}
    return {**groups, "obs": replace(groups["obs"], terms={**known, **changed})}


def commanding(**changes: Any) -> dict[str, Any]:
    """Go2's command, changed."""
    command = go2_velocity_flat().commands["base_velocity"]
    return {"base_velocity": replace(command, **changes)}


def model(folder: Path, *edits: tuple[str, str]) -> SceneCfg:
    """Go2's scene with parts of its file replaced."""
    text = model_path("go2").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / "go2.xml"
    path.write_text(text)
    return replace(go2_velocity_flat().scene, model=str(path))


def gait(env: ManagerBasedRlEnv) -> torch.Tensor:
    """A user's term: height of the left and the right front foot, and forward speed."""
    feet = [env.scene.sensor(f"{leg}_foot_pos")[:, 2] for leg in ("FL", "FR")]
    return torch.stack((*feet, env.scene["robot"].data.root_lin_vel_b[:, 0]), 1)


def left_speed(env: ManagerBasedRlEnv) -> torch.Tensor:
    """A reward that likes to drift to the left."""
    return env.scene["robot"].data.root_lin_vel_b[:, 1]


@pytest.mark.parametrize(
    "task", [f"{robot}_velocity_{on}" for robot in ("go2", "g1") for on in ("flat", "rough")]
)
def test_packaged_tasks_fit_their_physics_and_mirroring_twice_changes_nothing(task: str) -> None:
    env = unilab.make(task, num_envs=2, seed=0)
    mirror = checked_mirror(env)
    data = env.rollout(2, break_when_any_done=False)

    assert set(mirror) == {"obs", "critic", "action"}
    for key, (index, sign) in mirror.items():
        image = data[key][..., index] * sign
        assert not torch.equal(image, data[key])
        assert torch.equal(image[..., index] * sign, data[key])


def test_columns_follow_names_and_joint_axes() -> None:
    index, sign = go2().mirror["action"]

    assert index.tolist() == [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]
    assert sign.tolist() == [-1.0, 1.0, 1.0] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"observations": observing(joint_pos={"func": mdp.joint_pos_sincos, "params": {}})},
        {
            "observations": observing(
                gait=ObservationTermCfg(func=gait, mirror=("FL_z", "FR_z", "vx")),
                foot_contact=ObservationTermCfg(
                    func=mdp.foot_contact, params={"sensor_name": "feet"}
                ),
                foot_air_time=ObservationTermCfg(
                    func=mdp.foot_air_time, params={"sensor_name": "feet"}
                ),
                foot_height=ObservationTermCfg(func=mdp.foot_height, params=FEET),
                heights=ObservationTermCfg(
                    func=mdp.sensor_values, params=HEIGHTS, mirror=HEIGHTS["sensor_names"]
                ),
            )
        },
        {"actions": {"effort": mdp.JointEffortActionCfg(scale=8.0)}},
    ],
    ids=["sines", "terms of one's own", "effort"],
)
def test_terms_of_every_kind_are_mirrored(changes: dict[str, Any]) -> None:
    checked_mirror(go2(**changes))


def test_sign_of_a_joint_follows_its_axis(tmp_path: Path) -> None:
    turned = '<joint name="FL_hip_joint" class="hip" axis="-1 0 0"/>'
    env = go2(scene=model(tmp_path, ('<joint name="FL_hip_joint" class="hip"/>', turned)))

    assert checked_mirror(env)["action"][1][[0, 3, 6]].tolist() == [1.0, 1.0, -1.0]


def _scale(**changed: float) -> dict[str, Any]:
    others = f"(?!{'|'.join(changed)}).*"
    return {"joint_pos": mdp.JointPositionActionCfg(scale={others: 0.6, **changed})}


def _clip(clip: dict[str, tuple[float, float]]) -> dict[str, Any]:
    return {"joint_pos": mdp.JointPositionActionCfg(scale=0.6, clip=clip)}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mirror": {"FL": "FR", "RL": "R"}}, "'RL_hip_joint'.*'R_hip_joint'"),
        ({"mirror": {"FL": "FR", "RL": "FR"}}, "mirror.*'RL': 'FR'"),
        ({"actions": _scale(FL_calf=0.5)}, "'FL_calf'"),
        ({"actions": _clip({"F._hip": (-0.2, 0.3)})}, "clip.*'FL_hip'"),
        ({"observations": observing(gait=ObservationTermCfg(func=gait))}, r"\(obs\) term 'gait'"),
        (
            {"observations": observing(x=ObservationTermCfg(func=gait, mirror=("a", "b")))},
            r"term 'x' must be 3.*\['a', 'b'\]",
        ),
        (
            {
                "observations": observing(
                    x=ObservationTermCfg(func=gait, mirror=("FL_z", "FR_y", "vx"))
                )
            },
            "term 'x'.*'FL_z'.*'FR_z'",
        ),
        (
            {
                "observations": observing(
                    x=ObservationTermCfg(func=mdp.joint_pos_rel, params={"asset_cfg": LEFT_HIP})
                )
            },
            "term 'x'.*'FL_hip_joint'.*'FR_hip_joint'",
        ),
        ({"observations": observing(command={"scale": (1.0, 2.0, 3.0), "clip": (-1, 2)})}, "clip"),
        (
            {"observations": observing(joint_vel={"scale": (1.0,) * 11 + (2.0,)})},
            "scale.*'joint_vel'",
        ),
        (
            {"observations": observing(joint_pos={"noise": UniformNoiseCfg(n_min=0.0, n_max=1.0)})},
            "noise.*'joint_pos'",
        ),
        (
            {"observations": observing(joint_pos={"bias": GaussianNoiseCfg(mean=1.0, std=1.0)})},
            "bias.*'joint_pos'",
        ),
        (
            {
                "commands": {**commanding(), "point": CommandOf()},
                "observations": observing(
                    x=ObservationTermCfg(
                        func=mdp.generated_commands, params={"command_name": "point"}
                    )
                ),
            },
            "command.*'point'",
        ),
    ],
)
def test_mirror_that_does_not_fit_the_names_is_refused(changes: dict[str, Any], name: str) -> None:
    env = go2(**changes)  # only a reader of the mirror needs one that fits
    with pytest.raises(ConfigError, match=name):
        _ = env.mirror


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (('name="FL_calf_joint" class="calf"', 'name="FL_calf_joint" class="calf" axis="0 1 .1"'),
         "axis.*'FL_calf_joint'"),
        (("0 0 0 0 0.9 -1.8 0 0.9 -1.8", "0 0 0 0 0.8 -1.8 0 0.9 -1.8"), "home.*'FL_thigh_joint'"),
    ],
)  # fmt: skip
def test_model_that_is_not_symmetric_is_refused(
    tmp_path: Path, edit: tuple[str, str], name: str
) -> None:
    env = go2(scene=model(tmp_path, edit))
    with pytest.raises(ConfigError, match=name):
        _ = env.mirror


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda _: {"mirror": {"FL": "FR"}}, "joint 'R._.*_joint'"),
        (lambda _: {"mirror": {"FL": "RL", "FR": "RR"}}, "joint '.*_joint'"),
        (
            lambda folder: {
                "scene": model(
                    folder,
                    ('name="RR_calf" class="calf"', 'name="RR_calf" kp="50" class="calf"'),
                )
            },
            "joint 'R[LR]_calf_joint'",
        ),
        (
            lambda _: {"observations": observing(projected_gravity={"mirror": "axial"})},
            r"\(obs\) term 'projected_gravity'",
        ),
        (
            lambda _: {
                "observations": observing(
                    gait=ObservationTermCfg(func=gait, mirror=("a", "b", "c"))
                )
            },
            "term 'gait'",
        ),
        (
            lambda _: {"rewards": {"drift": RewardTermCfg(func=left_speed, weight=1.0)}},
            "reward term 'drift'",
        ),
    ],
    ids=["pair missing", "pair wrong", "motor", "kind", "pair of columns", "reward"],
)
def test_mirror_that_does_not_fit_physics_or_terms_names_the_part(
    tmp_path: Path, change: Callable[[Path], dict[str, Any]], name: str
) -> None:
    env = go2(**change(tmp_path))
    assert env.mirror is not None
    with pytest.raises(ConfigError, match=name):
        checked_mirror(env)


def test_task_without_a_mirror_has_none_and_says_so(tmp_path: Path) -> None:
    env = twins(tmp_path)
    assert env.mirror is None
    with pytest.raises(ConfigError, match="mirror"):
        checked_mirror(env)
    with pytest.raises(ConfigError, match="mirror"):
        SymmetryTransform(env.mirror)


def test_mirrored_state_and_action_step_to_the_mirrored_observation() -> None:
    """By hand: legs are swapped, and everything lateral changes its sign."""
    still = mdp.UniformVelocityCommandCfg.Ranges(
        lin_vel_x=(0.5, 0.5), lin_vel_y=(0.0, 0.0), ang_vel_z=(0.0, 0.0)
    )
    env = go2(2, commands=commanding(ranges=still, rel_standing_envs=0.0))
    env.reset()
    qpos, qvel = (env.backend.get_state_views()[name].clone() for name in ("qpos", "qvel"))
    qvel[0, :6] = torch.tensor([0.3, 0.2, -0.1, 0.5, -0.4, 0.6])
    swapped = [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]
    lateral = torch.tensor([-1.0, 1.0, 1.0] * 4)
    qpos[1, :7] = qpos[0, :7] * torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0])
    qvel[1, :6] = qvel[0, :6] * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    for state, root in ((qpos, 7), (qvel, 6)):
        state[1, root:] = state[0, root:][swapped] * lateral
    env.backend.set_state_tensor(torch.arange(2), qpos, qvel)
    env.scene.read()
    action = torch.linspace(-1.0, 1.0, 12)
    actions = torch.stack((action, action[swapped] * lateral))
    after = env.step(TensorDict({"action": actions}, [2]))["next", "critic"]

    index, sign = env.mirror["critic"]
    torch.testing.assert_close(after[1], after[0, index] * sign, rtol=0.01, atol=0.01)
