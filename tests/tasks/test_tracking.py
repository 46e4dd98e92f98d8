"""Motion tracking: the command, its terms, where episodes start, and playback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from envs.tables import act, assert_bitwise_equal, drive, go2

from unilab import registry
from unilab.cli.visualize import views
from unilab.envs import (
    ManagerBasedRlEnv,
    TerminationTermCfg,
    TerrainGeneratorCfg,
    mdp,
    rotations,
    terrains,
)
from unilab.envs.motion import Motion
from unilab.errors import CapabilityError, ConfigError
from unilab.markers import Ghost
from unilab.tasks.tracking.g1 import g1_motion_tracking
from unilab.tasks.tracking.make_g1_steps import PATH

STEPS = Motion.load(PATH)


def track(num_envs: int = 4, cfg: Any = None, **command: Any) -> ManagerBasedRlEnv:
    """G1 without noise and randomization, from the motion's first frame unless told otherwise."""
    cfg = cfg or g1_motion_tracking()
    exact = {"pose_range": {}, "velocity_range": {}, "joint_position_range": (0.0, 0.0)}
    motion = replace(cfg.commands["motion"], **{"sampling_mode": "start", **exact, **command})
    obs = replace(cfg.observations["obs"], enable_corruption=False)
    cfg = replace(
        cfg,
        commands={"motion": motion},
        events={},
        observations={**cfg.observations, "obs": obs},
        num_threads=1,
    )
    return ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=0)


def command_of(env: ManagerBasedRlEnv) -> mdp.MotionCommand:
    term = env.command_manager.get_term("motion")
    assert isinstance(term, mdp.MotionCommand)
    return term


def moved(**span: float) -> dict[str, tuple[float, float]]:
    return {axis: (value, value) for axis, value in span.items()}


def close(a: torch.Tensor, b: Any, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=atol, rtol=0)


def test_episode_starts_in_a_frame_and_aims_at_the_next() -> None:
    env = track(sampling_mode="uniform")
    env.reset()
    command = command_of(env)
    frames = command.frame[:, 0] - 1
    bodies = [STEPS.body_names.index(name) for name in command.body_names]
    for name in ("pos", "quat", "lin_vel", "ang_vel"):
        reference = getattr(STEPS, f"body_{name}_w")[:, bodies]
        close(getattr(command, f"robot_body_{name}_w"), reference[frames], atol=2e-4)
        assert torch.equal(getattr(command, f"body_{name}_w"), torch.tensor(reference[frames + 1]))
    robot = env.scene["robot"].data
    close(robot.joint_vel, STEPS.joint_vel[frames])
    close(command.command, np.hstack((STEPS.joint_pos, STEPS.joint_vel))[frames + 1])
    assert len(set(frames.tolist())) == 4


def test_frames_advance_with_control_steps_and_the_end_truncates() -> None:
    env = track()
    root = act(env, env.reset())
    env.step(root)
    command = command_of(env)
    assert command.frame.flatten().tolist() == [2] * 4
    command.frame.fill_(command.last_frame - 1)
    ends = [env.step(root)["next"] for _ in range(2)]
    assert [end["truncated"].all().item() for end in ends] == [False, True]
    assert command.frame.flatten().tolist() == [command.last_frame] * 4


def test_a_robot_in_the_reference_is_paid_fully_and_elsewhere_less() -> None:
    rewards = {name: t for name, t in g1_motion_tracking().rewards.items() if "motion" in str(t)}
    paid = {}
    for name, pose in {"there": {}, "away": moved(x=0.2, pitch=0.3, yaw=0.4)}.items():
        env = track(pose_range=pose)
        env.reset()
        command_of(env).frame.sub_(1)
        paid[name] = {n: t.func(env, **t.params) for n, t in rewards.items()}
    assert len(rewards) == 6
    for name in rewards:
        assert paid["there"][name].min() > 0.999, name
        assert (paid["away"][name].max() < 0.9) == ("vel" not in name), name


def test_falling_early_does_not_pay_while_actions_are_random() -> None:
    env = ManagerBasedRlEnv(replace(g1_motion_tracking(), num_threads=1), num_envs=32, seed=0)
    root, draw = env.reset(), torch.Generator().manual_seed(0)
    paid = []
    for _ in range(40):
        action = torch.rand(env.action_spec.shape, generator=draw) - 0.5
        step, root = env.step_and_maybe_reset(root.set("action", action))
        paid.append(step["next", "reward"].mean() / env.step_dt)
    assert torch.stack(paid).mean() > 0.5


def test_bodies_are_compared_around_the_robots_own_anchor() -> None:
    env = track(pose_range=moved(x=3.0, y=-2.0, z=0.1, yaw=1.2))
    env.reset()
    command = command_of(env)
    command.frame.sub_(1)
    lower = command.robot_body_pos_w - torch.tensor([0.0, 0.0, 0.1])
    close(command.body_pos_relative_w, lower)
    turned = rotations.angle_between(command.body_quat_relative_w, command.robot_body_quat_w)
    assert turned.max() < 1e-3
    away = mdp.motion_anchor_pos_b(env, "motion")
    assert away.norm(dim=1).min() > 3.5
    close(away[:, 2], torch.full((4,), -0.1), atol=1e-2)
    bodies = mdp.robot_body_pos_b(env, "motion").unflatten(1, (-1, 3))
    assert bodies[:, command.anchor].abs().max() < 1e-6


def test_anchor_orientation_is_two_columns_of_the_rotation_from_robot_to_reference() -> None:
    env = track(pose_range=moved(yaw=0.5))
    env.reset()
    command_of(env).frame.sub_(1)
    cos, sin = np.cos(0.5), np.sin(0.5)
    close(mdp.motion_anchor_ori_b(env, "motion")[0], [cos, sin, -sin, cos, 0.0, 0.0], atol=1e-4)


@pytest.mark.parametrize(
    ("pose", "fired"),
    [
        ({}, set()),
        ({"x": 1.0, "yaw": 2.0}, set()),
        ({"z": 0.3}, {"anchor_pos", "ee_body_pos"}),
        ({"z": 0.2}, set()),
        ({"roll": 1.5}, {"anchor_ori", "ee_body_pos"}),
    ],
)
def test_a_robot_far_from_the_reference_ends_its_episode(pose, fired) -> None:
    env = track(pose_range=moved(**pose))
    env.reset()
    failures = {n: t for n, t in env.cfg.terminations.items() if not t.time_out}
    assert {n for n, t in failures.items() if t.func(env, **t.params).all()} == fired


def test_noise_of_the_start_is_within_its_ranges() -> None:
    env = track(64, pose_range={"x": (-0.1, 0.1)}, joint_position_range=(-0.2, 0.2))
    env.reset()
    robot, command = env.scene["robot"].data, command_of(env)
    away = command.robot_body_pos_w[:, 0] - torch.tensor(STEPS.body_pos_w[0, 0])
    joints = robot.joint_pos - torch.tensor(STEPS.joint_pos[0])
    assert 0.08 < away[:, 0].abs().max() <= 0.1001
    assert away[:, 1:].abs().max() < 1e-5
    assert 0.15 < joints.abs().max() <= 0.2001


def starts(env: ManagerBasedRlEnv) -> torch.Tensor:
    """How often each bin of a second was drawn, in one reset."""
    env.reset()
    command = command_of(env)
    bins = (command.frame[:, 0] - 1) * command.bin_count // command.last_frame
    return torch.bincount(bins, minlength=command.bin_count) / env.num_envs


@pytest.mark.parametrize(("kernel", "expected"), [(1, {3}), (3, {1, 2, 3})])
def test_adaptive_starts_are_drawn_where_robots_fail(kernel, expected) -> None:
    env = track(256, sampling_mode="adaptive", adaptive_kernel_size=kernel)
    even = starts(env)
    command_of(env).bin_failed_count[3] = 1.0
    drawn = starts(env)
    assert even.max() < 0.2
    assert set((drawn > 0.1).nonzero().flatten().tolist()) == expected
    assert drawn.sum() == 1.0
    close(command_of(env).start_probabilities().sum(), 1.0, atol=1e-6)


def test_failures_are_counted_where_they_happen() -> None:
    for height, counts in {0.3: [2.0, 1.0], 0.0: [0.0, 0.0]}.items():
        env = track(3, pose_range=moved(z=height))
        root, command = act(env, env.reset()), command_of(env)
        command.frame.copy_(torch.tensor([[10], [10], [60]]))
        bins = [frame * command.bin_count // 471 for frame in (10, 60)]
        done = env.step(root)["next", "terminated"]
        assert done.all() == (height > 0.0)
        failed = command.bin_failed_count / env.cfg.commands["motion"].adaptive_alpha
        assert bins[0] != bins[1]
        close(failed[bins], counts, atol=1e-3)
        close(failed.sum(), sum(counts), atol=1e-3)


def test_checkpoint_carries_the_failures_and_another_motion_starts_without(tmp_path) -> None:
    env, other = (track(n, sampling_mode="adaptive") for n in (4, 2))
    command_of(env).bin_failed_count[5] = 0.5
    other.import_training_state(env.export_training_state())
    assert command_of(other).bin_failed_count[5] == 0.5
    half = {n: getattr(STEPS, n)[:200] for n, v in vars(STEPS).items() if isinstance(v, np.ndarray)}
    replace(STEPS, **half).save(tmp_path / "half.npz")
    shorter = track(2, sampling_mode="adaptive", motion_file=tmp_path / "half.npz")
    shorter.import_training_state(env.export_training_state())
    assert command_of(shorter).bin_failed_count.sum() == 0.0


def test_episodes_continue_bit_for_bit_and_seeds_decide_them() -> None:
    def make(seed: int) -> ManagerBasedRlEnv:
        cfg = replace(g1_motion_tracking(), num_threads=1)
        return ManagerBasedRlEnv(cfg, num_envs=4, seed=seed)

    env, same, other = make(1), make(1), make(2)
    data = drive(env, 30)
    assert data["next", "done"].any()
    assert_bitwise_equal(data, drive(same, 30))
    drive(other, 5)
    other.import_episodes(env.export_episodes())
    root = act(env, env.rand_step()["next"].exclude("reward"))
    other.import_episodes(env.export_episodes())
    assert_bitwise_equal(env.step(root.clone())["next"], other.step(root.clone())["next"])


def test_a_refused_reset_leaves_frames_alone() -> None:
    env = track(sampling_mode="uniform")
    env.reset()
    before = command_of(env).frame.clone()
    object.__setattr__(command_of(env)._cfg, "joint_position_range", (0.0, float("nan")))
    with pytest.raises(ConfigError, match="joint_position_range"):
        env.reset()
    assert torch.equal(command_of(env).frame, before)


def changed(folder: Path, **arrays: Any) -> Path:
    path = folder / "m.npz"
    replace(STEPS, **arrays).save(path)
    return path


SHORT = {"joint_names": STEPS.joint_names[1:]} | {
    name: getattr(STEPS, name)[:, 1:] for name in ("joint_pos", "joint_vel")
}
OTHER = {"joint_names": ("tail_joint", *STEPS.joint_names)} | {
    name: np.pad(getattr(STEPS, name), ((0, 0), (1, 0))) for name in ("joint_pos", "joint_vel")
}
RENAMED = {"body_names": tuple(n.replace("torso", "chest") for n in STEPS.body_names)}


@pytest.mark.parametrize(
    ("arrays", "name"),
    [
        (SHORT, "joint_names must include 'left_hip_pitch_joint'"),
        ({"joint_pos": np.rad2deg(STEPS.joint_pos)}, "joint_pos of '.*range.*degrees"),
        (OTHER, "joint_names.*tail_joint.*another robot"),
        (RENAMED, "body_names.*torso_link"),
        ({"fps": 30.0}, "fps must be 50.*30"),
    ],
)
def test_motion_of_another_robot_or_rate_is_refused_by_name(tmp_path, arrays, name) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)command term 'motion'.*m\.npz.*{name}"):
        track(motion_file=changed(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ({"motion_file": "nowhere.npz"}, "nowhere.npz"),
        ({"anchor_body_name": "head"}, "anchor_body_name.*'head'"),
        ({"body_names": ("torso_lnk",)}, "torso_lnk"),
        ({"adaptive_alpha": 0.0}, "adaptive_alpha"),
        ({"adaptive_kernel_size": 0}, "adaptive_kernel_size"),
        ({"adaptive_kernel_size": 10**9}, "adaptive_kernel_size must be at most 9"),
        ({"sampling_mode": "random"}, "sampling_mode"),
        ({"pose_range": {"up": (0.0, 1.0)}}, "'up'"),
        ({"joint_position_range": (1.0, 0.0)}, "joint_position_range"),
    ],
)
def test_unusable_setting_of_the_command_is_refused_by_name(command, name) -> None:
    with pytest.raises(ConfigError, match=name):
        track(**command)


def test_motion_on_a_terrain_or_for_a_velocity_task_is_refused() -> None:
    cfg = g1_motion_tracking()
    hills = {"hills": terrains.HfPyramidSlopedTerrainCfg(slope_range=(0.0, 0.1))}
    ground = TerrainGeneratorCfg(sub_terrains=hills, num_rows=1, num_cols=1)
    with pytest.raises(ConfigError, match=r"scene\.terrain"):
        track(cfg=replace(cfg, scene=replace(cfg.scene, terrain=ground)))
    params = {"command_name": "base_velocity"}
    ended = TerminationTermCfg(func=mdp.motion_ended, params=params)
    with pytest.raises(ConfigError, match="'base_velocity' must be a MotionCommand"):
        go2(terminations={"ended": ended})


def test_motion_for_a_fixed_robot_is_refused() -> None:
    cfg = registry.config("pendulum_swingup")
    motion = mdp.MotionCommandCfg(motion_file=PATH, anchor_body_name="x", body_names="x")
    motion = replace(motion, entity_name=next(iter(cfg.scene.entities)))
    with pytest.raises(CapabilityError, match="fixed"):
        ManagerBasedRlEnv(replace(cfg, commands={"motion": motion}), num_envs=1)


def test_deploy_observes_only_what_a_robot_measures() -> None:
    full, deploy = (registry.config(f"g1_motion_tracking{end}") for end in ("", "_deploy"))
    seen, left = (list(cfg.observations["obs"].terms) for cfg in (full, deploy))
    assert set(seen) - set(left) == {"motion_anchor_pos_b", "base_lin_vel"}
    assert deploy.observations["critic"] == full.observations["critic"]
    told = track(1, deploy).deployment_metadata()
    joints = list(STEPS.joint_names)
    motion = {"motion_file": PATH.name, "anchor_body_name": "torso_link", "joint_names": joints}
    assert told["commands"] == {"motion": motion}
    assert told["joint_names"] == joints


def test_view_has_the_reference_beside_the_robot() -> None:
    env = track(2, pose_range=moved(x=1.0))
    env.reset()
    view = views(env, 2)[1]
    (ghost,) = view.markers
    assert isinstance(ghost, Ghost)
    close(torch.tensor(ghost.qpos[:3]), STEPS.body_pos_w[1, 0])
    close(torch.tensor(ghost.qpos[7:]), STEPS.joint_pos[1])
    assert view.qpos[0] - ghost.qpos[0] == pytest.approx(1.0, abs=1e-3)
    assert "error_anchor_pos 1.000" in view.title
